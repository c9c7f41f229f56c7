"""Bytes and values of columns, from footers."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.loader.plan.column_sizes import ColumnSizes
from featstore.reading.file_columns import Selection
from featstore.table.snapshot import DataFile, GroupFile
from tests.parquet_files import put_parquet

USER = Slot(name="user", kind=SlotKind.ID)
TAGS = Slot(name="tags", kind=SlotKind.ID, shape=(None,))
SELECTION = Selection(slots=(USER, TAGS), others=(pa.field("click", pa.int64()),))


def data_file(path: Path, groups: tuple[GroupFile, ...] = ()) -> DataFile:
    num_rows, size_bytes = pq.read_metadata(path).num_rows, path.stat().st_size
    return DataFile(
        path=path.name,
        url=str(path),
        size_bytes=size_bytes,
        num_rows=num_rows,
        partition={},
        groups=groups,
    )


def stored(path: Path, leaf: str) -> int:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema == leaf)


def test_bytes_and_values_are_summed_over_files_and_row_groups(tmp_path: Path) -> None:
    one = put_parquet(
        tmp_path / "a.parquet",
        {
            "user": list(range(100)),
            "tags": [[1] * (i % 3) for i in range(100)],
            "other": ["x"] * 100,
        },
        row_group_size=30,
    )
    other = put_parquet(tmp_path / "b.parquet", {"user": [1, 2], "click": [0, 1]})
    found = ColumnSizes.of([data_file(one), data_file(other)], SELECTION)
    assert found.num_rows == 102
    assert found.bytes_per_row("user") == (stored(one, "user") + stored(other, "user")) / 102
    assert found.num_values == {"user": 102, "tags": 34 + 33 + 66, "click": 2}
    assert found.bytes_per_row("other") == 0


def test_a_column_of_a_slot_group_is_counted_in_its_file(tmp_path: Path) -> None:
    base = put_parquet(tmp_path / "a.parquet", {"user": list(range(100)), "click": [1] * 100})
    beside = put_parquet(tmp_path / "g.parquet", {"click": list(range(100))})
    group = GroupFile(
        path="g.parquet", url=str(beside), size_bytes=beside.stat().st_size, num_rows=100, group="g"
    )
    found = ColumnSizes.of([data_file(base, (group,))], SELECTION)
    assert found.stored_bytes["click"] == stored(beside, "click") != stored(base, "click")
    assert found.stored_bytes["user"] == stored(base, "user")


def test_no_file_has_no_bytes_and_a_wrong_type_is_named_with_its_file(tmp_path: Path) -> None:
    assert ColumnSizes.of([], SELECTION).bytes_per_row("user") == 0
    wrong = put_parquet(tmp_path / "w.parquet", {"tags": ["a"]})
    with pytest.raises(DataFileError, match=r"w\.parquet: column 'tags': expected list"):
        ColumnSizes.of([data_file(wrong)], SELECTION)
