from dataclasses import replace
from pathlib import Path

import pytest

from featstore.base.schema import SlotSchema
from featstore.table.row_masks import MaskRecord, RowMask
from featstore.table.snapshot import DataFile, FileList, GroupFiles, Snapshot, files_digest


def data_file(path: str, num_rows: int = 10, **partition: str) -> DataFile:
    return DataFile(
        path=path, url=f"/t/{path}", size_bytes=100, num_rows=num_rows, partition=partition
    )


FILES = (data_file("m=1/a", m="1"), data_file("m=1/b", m="1"), data_file("m=2/a", m="2"))
SNAPSHOT = Snapshot(url="/t", version=3, schema=SlotSchema(), data_files=FileList.of(FILES))


def test_a_snapshot_adds_up_its_files() -> None:
    assert (SNAPSHOT.num_rows, SNAPSHOT.size_bytes, SNAPSHOT.partitions) == (
        30,
        300,
        ({"m": "1"}, {"m": "2"}),
    )
    assert SNAPSHOT.in_partitions([{"m": "1"}]) == FILES[:2]
    assert SNAPSHOT.in_partitions([{"m": "3"}]) == ()


def test_the_digest_identifies_the_files_and_is_frozen() -> None:
    assert SNAPSHOT.digest == "d904ce2ebc960b3f926b3254f338f7c8ea116ea30732c5525b8856845d14c5c8"
    assert files_digest(reversed(FILES)) == SNAPSHOT.digest


def test_a_group_without_files_leaves_the_digest_as_it_is() -> None:
    none = GroupFiles.of({}, len(FILES))
    files = replace(SNAPSHOT.data_files, groups={"stale": none})
    assert replace(SNAPSHOT, data_files=files).digest == SNAPSHOT.digest


@pytest.mark.parametrize("other", [data_file("m=2/b", m="2"), data_file("m=2/a", 11, m="2")])
def test_the_digest_changes_with_the_files(other: DataFile) -> None:
    assert files_digest([*FILES[:2], other]) != SNAPSHOT.digest


def test_the_digest_changes_with_the_deleted_rows_of_a_file() -> None:
    found = {
        files_digest([*FILES[:-1], replace(FILES[-1], mask=mask)])
        for mask in (
            None,
            RowMask((MaskRecord("delta-vector", text="a"),), 2),
            RowMask((MaskRecord("delta-vector", text="b"),), 2),
            RowMask((MaskRecord("delta-vector", text="a"),), 3),
        )
    }
    assert len(found) == 4
    assert files_digest(FILES) in found


def test_the_digest_does_not_depend_on_where_the_table_lies(tmp_path: Path) -> None:
    moved = Snapshot(
        url=str(tmp_path), version=9, schema=SlotSchema(), data_files=FileList.of(FILES)
    )
    assert moved.digest == SNAPSHOT.digest
