"""What a stager is told of data files: what to bring of them, and which of them are damaged."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.decoded.file_sources import check, stage_items, staging_source
from featstore.reading.file_columns import Selection
from featstore.table.snapshot import DataFile, GroupFile
from tests.damaged_files import flip
from tests.loader.conftest import data_file
from tests.parquet_files import put_parquet

SELECTION = Selection(slots=(Slot(name="a", kind=SlotKind.ID),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table = pa.table({"a": range(3_000), "b": range(3_000, 6_000)})
    data_file(tmp_path / "a.parquet", table, row_group_size=1_000)
    return tmp_path / "a.parquet"


def test_a_file_is_staged_with_those_of_its_groups_under_the_key_of_its_split() -> None:
    group = GroupFile(
        group="g", path="g/p", url="s3://g/p", size_bytes=5, num_rows=1, version="2", crc32=7
    )
    file = DataFile(
        path="p",
        url="s3://p",
        size_bytes=9,
        num_rows=1,
        partition={},
        version="1",
        crc32=6,
        groups=(group,),
    )
    found = [(i.key, i.url, i.size_bytes, i.version, i.crc32) for i in stage_items(file, "k")]
    assert found == [("k", "s3://p", 9, "1", 6), ("k", "s3://g/p", 5, "2", 7)]


def test_of_a_file_only_what_is_selected_of_it_is_brought(path: Path) -> None:
    data, plan = path.read_bytes(), staging_source(SELECTION).plan_ranges
    assert plan is not None
    spans = plan(data, len(data), "a.parquet")
    assert isinstance(spans, tuple)
    footer = (len(data) - pq.read_metadata(path).serialized_size - 8, len(data))
    assert 0 < sum(end - first for first, end in spans) < 0.7 * len(data)
    path.write_bytes(
        b"".join(
            bytes([byte]) if any(first <= at < end for first, end in (*spans, footer)) else b"\0"
            for at, byte in enumerate(data)
        )
    )
    check(path, "a.parquet", spans)


def test_a_file_without_a_footer_is_refused_or_brought_whole_for_a_reader_that_will(
    path: Path,
) -> None:
    bad = b"x" * 100
    for accepts_bad in (False, True):
        plan = staging_source(SELECTION, accepts_bad=accepts_bad).plan_ranges
        assert plan is not None
        if accepts_bad:
            assert plan(bad, 5_000, "a.parquet") == ((0, 5_000),)
            continue
        with pytest.raises(DataFileError, match=r"^a\.parquet: "):
            plan(bad, 5_000, "a.parquet")


def test_a_damaged_page_is_found_where_it_was_brought_and_only_there(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"a": range(3_000)}, write_page_checksum=True)
    flip(path, 2_000, bit=4)
    end = path.stat().st_size
    with pytest.raises(DataFileError, match=r"^day/a\.parquet: "):
        check(path, "day/a.parquet", [(0, end)])
    check(path, "day/a.parquet", [(end - 8, end)])


def test_a_file_that_was_cut_off_has_no_footer(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataFileError, match=r"^day/a\.parquet: "):
        check(path, "day/a.parquet", [])
