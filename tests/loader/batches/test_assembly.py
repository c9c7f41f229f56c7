"""Windows to blocks: nothing delivered twice, shuffled rows gathered batch by batch."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.dispatch.terms import Claim
from featstore.errors import DataFileError, MissingValueError
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.batch_slices import slice_batches
from featstore.loader.batches.blocks import Block
from featstore.loader.plan.shuffle import RowOrder, Shuffle
from featstore.loader.rows.split_reader import SplitReader, Window
from featstore.loader.stats import Stats
from featstore.table.snapshot import DataFile
from tests.loader.conftest import data_file, request_of, work_on

NUM_ROWS = 70
SCHEMA = pa.schema([("row", pa.int64())])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> DataFile:
    path: Path = tmp_path_factory.mktemp("file") / "a.parquet"
    return data_file(path, pa.table({"row": range(NUM_ROWS)}))


def windows(
    file: DataFile, start_row: int = 0, *, window_rows: int | None = None, where: str | None = None
) -> Iterator[Window]:
    shuffle = None if window_rows is None else Shuffle(window_rows=window_rows)
    reader = SplitReader(
        work_on(file, start_row=start_row),
        request=request_of(SCHEMA, "row", where=where),
        order=RowOrder(seed=0, epoch=0, shuffle=shuffle),
        stats=Stats(),
    )
    while not reader.is_finished:
        yield from reader.read()
    reader.close()


def rows_of(blocks: list[Block], batch_size: int) -> list[int]:
    slices = slice_batches(blocks, batch_size, drop_last=False)
    return [row for one in slices if one.blocks for row in one.batch()["row"].tolist()]


@settings(max_examples=30)
@given(
    st.integers(0, NUM_ROWS),
    st.integers(1, 30),
    st.sampled_from([None, 30]),
    st.sampled_from([None, "row % 3 = 1"]),
)
def test_a_resumed_claim_delivers_what_was_left_of_the_whole_and_ends_it(
    file: DataFile, start: int, batch_size: int, window_rows: int | None, where: str | None
) -> None:
    def blocks(start: int) -> list[Block]:
        assembler = Assembler(request_of(SCHEMA, "row"), batch_size, Stats())
        found = windows(file, start, window_rows=window_rows, where=where)
        return [block for window in found for block in assembler.blocks(window)]

    whole = blocks(0)
    rows = [
        row
        for block in whole
        for row, place in zip(rows_of([block], 99), places_of(block), strict=True)
        if place >= start
    ]
    left = blocks(start)
    assert rows_of(left, batch_size) == rows
    assert [segment.is_complete for block in left for segment in block.segments].count(True) == 1


def places_of(block: Block) -> list[int]:
    """The rows of the split's stream that the block's rows are."""
    [source] = block.sources
    first, places = source.first_row, source.places
    return [first + (row if places is None else int(places[row])) for row in range(block.num_rows)]


@pytest.mark.parametrize("start", [0, 37])
def test_shuffled_rows_lie_in_the_memory_of_their_batches(file: DataFile, start: int) -> None:
    assembler = Assembler(request_of(SCHEMA, "row"), 20, Stats())
    found = [assembler.blocks(window) for window in windows(file, start, window_rows=30)]
    sizes = [len(block) for blocks in found for block in blocks]
    assert sizes == {0: [20, 12, 8, 20, 4, 6], 37: [20, 7, 6]}[start]
    assert all(block.whole is not None for blocks in found for block in blocks)


def test_what_follows_a_window_that_failed_is_left_out_with_it(file: DataFile) -> None:
    noted = []

    def skip(claim: Claim, row: int, error: DataFileError) -> None:
        noted.append((claim.index, row, str(error)))

    assembler = Assembler(request_of(SCHEMA, "row"), 20, Stats(), skip)
    first, second, *_, last = windows(file)
    assert rows_of(assembler.blocks(first), 99) == list(range(16))
    assert assembler.leaves_out(second, DataFileError("damaged"))
    assert noted == [(0, 16, "damaged")]
    assert assembler.blocks(last) == []


@pytest.mark.parametrize("error", [MissingValueError("a null label"), ValueError("ours")])
def test_what_is_no_bad_file_is_not_left_out(file: DataFile, error: Exception) -> None:
    noted = []
    skipping = Assembler(request_of(SCHEMA, "row"), 20, Stats(), lambda *of: noted.append(of))
    window = next(windows(file))
    assert not skipping.leaves_out(window, error)
    assert not Assembler(request_of(SCHEMA, "row"), 20, Stats()).leaves_out(
        window, DataFileError("damaged")
    )
    assert noted == []
    assert len(skipping.blocks(window)) == 1
