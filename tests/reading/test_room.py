"""The memory that decoding takes besides the decoded columns, and how many threads it leaves."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.schema import Slot, SlotKind
from featstore.native.footers import Chunks
from featstore.reading.aligned import aligned_reader
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader
from tests.parquet_files import put_parquet
from tests.programs import run_python

NAMES = [f"s{i}" for i in range(8)]
SLOTS = tuple(Slot(name=name, kind=SlotKind.ID) for name in NAMES)
SELECTION = Selection(slots=SLOTS)
NUM_ROWS = 5_000


def _written(path: Path, codec: str = "snappy") -> Path:
    rng = np.random.default_rng(7)
    return put_parquet(
        path,
        {name: rng.integers(0, 2**62, NUM_ROWS) for name in NAMES},
        compression=codec,
        row_group_size=NUM_ROWS // 2,
    )


def _longest(path: Path) -> int:
    """A column chunk as stored and as decompressed, as pyarrow tells."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    found: int = max(c.total_compressed_size + c.total_uncompressed_size for c in chunks)
    return found


@pytest.mark.parametrize(("codec", "times"), [("snappy", 1), ("zstd", 2)])
def test_a_thread_takes_a_column_chunk_as_stored_and_as_decompressed(
    tmp_path: Path, codec: str, times: int
) -> None:
    path = _written(tmp_path / "file.parquet", codec)
    with OpenFile(path) as footer:
        columns = footer.resolve(SELECTION)
        assert footer.footer.room_bytes([0], columns.leaf_places) == [times * _longest(path)]
        assert footer.footer.room_bytes([], columns.leaf_places) == []


@pytest.mark.parametrize(("fitting", "num_threads"), [(0, 1), (1, 1), (2, 2), (3.9, 3), (100, 4)])
def test_there_are_as_many_threads_as_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitting: float, num_threads: int
) -> None:
    path = _written(tmp_path / "file.parquet")
    monkeypatch.setattr(pa, "cpu_count", lambda: 4)
    most = int(_longest(path) * fitting)
    with OpenFile(path) as footer:
        reader = RowGroupReader(footer, SELECTION, as_values=True, most_room_bytes=most)
        assert reader.room_bytes([0, 1]) == num_threads * _longest(path)
        assert reader.read([0, 1]).table.equals(pq.read_table(path))


def test_a_thread_that_puts_rows_in_order_takes_the_decoded_column_as_well(tmp_path: Path) -> None:
    path = _written(tmp_path / "file.parquet")
    order = np.arange(NUM_ROWS)[::-1].copy()
    with OpenFile(path) as footer:
        most = int(footer.decoded_bytes(footer.resolve(SELECTION))[[0, 1]].sum(axis=0).max())
        assert 8 * NUM_ROWS <= most < 9 * NUM_ROWS
        reader = RowGroupReader(footer, SELECTION, num_threads=1, as_values=True)
        needed = reader.room_bytes([0, 1]) + most
        assert reader.room_bytes([0, 1], in_order=True) == needed
        limited = RowGroupReader(
            footer, SELECTION, num_threads=4, as_values=True, most_room_bytes=2 * needed
        )
        assert limited.room_bytes([0, 1], in_order=True) == 2 * needed
        assert limited.read([0, 1], order).table.equals(pq.read_table(path).take(order))


PEAK_MEMORY = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader
from featstore.base.schema import Slot, SlotKind

slots = tuple(Slot(name=name, kind=SlotKind.FLOAT, shape=(16,)) for name in sys.argv[2:])
with OpenFile(Path(sys.argv[1])) as file:
    reader = RowGroupReader(file, Selection(slots=slots), num_threads=1, as_values=True)
    order = np.arange(file.num_rows)[::-1].copy()
    rows = reader.read(range(len(file.row_group_rows)), order)
    print(pa.default_memory_pool().max_memory(), pa.total_allocated_bytes())
"""


def test_columns_that_arrow_reads_are_put_in_order_one_by_one(tmp_path: Path) -> None:
    """Beside all of them one column, and what Arrow takes to read a row group."""
    vectors = pa.FixedSizeListArray.from_arrays(np.arange(16 * NUM_ROWS, dtype=np.float32), 16)
    path = put_parquet(
        tmp_path / "file.parquet",
        dict.fromkeys(NAMES, vectors),
        compression="none",
        use_dictionary=False,
        row_group_size=NUM_ROWS // 10,
    )
    most_bytes, num_bytes = run_python(PEAK_MEMORY, path, *NAMES).stdout.split()
    assert int(most_bytes) < 1.6 * int(num_bytes)


def test_without_a_limit_there_is_room_for_every_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _written(tmp_path / "file.parquet")
    monkeypatch.setattr(pa, "cpu_count", lambda: 3)
    with OpenFile(path) as footer:
        reader = RowGroupReader(footer, SELECTION)
        assert reader.room_bytes([0]) == 3 * _longest(path)
        alone = RowGroupReader(footer, SELECTION, num_threads=1)
        assert alone.room_bytes([0]) == _longest(path)


def test_files_beside_each_other_are_read_in_turn_so_the_most_of_them_counts(
    tmp_path: Path,
) -> None:
    base = _written(tmp_path / "base.parquet")
    table = pq.read_table(base)
    group = put_parquet(
        tmp_path / "group.parquet",
        table.select(NAMES[:1]),
        compression="none",
        row_group_size=NUM_ROWS // 2,
    )
    with OpenFile(base) as footer, OpenFile(group) as beside:
        reader = aligned_reader(footer, [beside], SELECTION, num_threads=1)
        assert reader.room_bytes([0]) == max(_longest(base), _longest(group))


def test_a_footer_that_claims_any_size_leaves_one_thread(tmp_path: Path) -> None:
    path = _written(tmp_path / "file.parquet")
    with OpenFile(path) as footer:
        footer.footer.numbers[..., Chunks._fields.index("raw_bytes")] = (
            2**48
        )  # the most that a footer claims
        reader = RowGroupReader(footer, SELECTION, most_room_bytes=1 << 40)
        assert reader.room_bytes([0]) > 1 << 40
