"""What reading takes at least: whose bytes are counted, and that real pages are decompressed."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.schema import Slot, SlotKind
from featstore.loader.plan.roofline import FilePart, Limit, arrow_loop, limit_of, parts_read
from featstore.reading.file_columns import Selection
from tests.parquet_files import put_parquet

USER = Slot(name="user", kind=SlotKind.ID)
TAGS = Slot(name="tags", kind=SlotKind.ID, shape=(None,))
SELECTION = Selection(slots=(USER, TAGS), others=(pa.field("click", pa.int64()),))
NUM_ROWS = 5_000


def rows() -> pa.Table:
    ids = pa.array([row % 97 for row in range(NUM_ROWS)], pa.int64())
    tags = pa.array([[row % 5, row] for row in range(NUM_ROWS)], pa.list_(pa.int64()))
    return pa.table({"user": ids, "unread": ids, "tags": tags, "click": ids})


def test_the_limit_is_the_sum_of_reading_decompressing_and_writing() -> None:
    limit = Limit(
        stored_bytes=100, raw_bytes=300, tensor_bytes=400, copy_rate=100.0, decompress_rate=50.0
    )
    assert limit.parts_s == {"read": 1.0, "decompress": 6.0, "write": 4.0}
    assert limit.seconds == 11.0


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "brotli", "lz4"])
def test_bytes_are_those_of_the_columns_that_are_read(tmp_path: Path, codec: str) -> None:
    path = put_parquet(tmp_path / "a.parquet", rows(), compression=codec, row_group_size=2_000)
    limit = limit_of([FilePart(path, ("user", "tags"))] * 2, 1_000)
    metadata = pq.read_metadata(path)
    chunks = [metadata.row_group(i).column(j) for i in range(3) for j in (0, 2)]
    assert limit.stored_bytes == 2 * sum(chunk.total_compressed_size for chunk in chunks)
    assert limit.raw_bytes == 2 * sum(chunk.total_uncompressed_size for chunk in chunks)
    assert limit.tensor_bytes == 1_000
    assert limit.copy_rate > 0
    assert 0 < limit.decompress_rate < math.inf


def test_what_is_not_compressed_is_only_copied(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", rows(), compression="none")
    limit = limit_of([FilePart(path, ("user",))], 0)
    assert (limit.raw_bytes, limit.decompress_rate) == (0, math.inf)
    assert limit.parts_s["decompress"] == 0


def test_pages_of_version_2_are_not_sampled(tmp_path: Path) -> None:
    """Levels come before the compressed values in them: no codec takes such a page whole."""
    first = put_parquet(tmp_path / "1.parquet", rows(), data_page_version="2.0", use_dictionary=[])
    limit = limit_of([FilePart(first, ("user", "tags"))], 0)
    assert limit.raw_bytes > 0
    assert limit.decompress_rate == math.inf
    second = put_parquet(tmp_path / "2.parquet", rows())
    assert limit_of([FilePart(first, ("tags",)), FilePart(second, ("tags",))], 0).seconds > 0


def test_a_column_is_read_of_the_last_file_that_has_it(tmp_path: Path) -> None:
    base = put_parquet(tmp_path / "base.parquet", rows())
    group = put_parquet(tmp_path / "group.parquet", rows().select(["tags"]))
    assert list(parts_read([base, group], SELECTION)) == [
        FilePart(base, ("user", "click")),
        FilePart(group, ("tags",)),
    ]
    assert list(parts_read([group], Selection(slots=(USER,)))) == []


def test_arrows_loop_reads_all_rows_of_these_columns(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "a.parquet", rows(), row_group_size=2_000)
    found = list(arrow_loop([FilePart(path, ("user", "tags"))]))
    assert [table.num_rows for table in found] == [2_000, 2_000, 1_000]
    assert pa.concat_tables(found) == rows().select(["user", "tags"])
