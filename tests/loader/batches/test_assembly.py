"""Windows to blocks: nothing delivered twice, shuffled rows gathered batch by batch."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.base.errors import DataFileError
from featstore.dispatch.plan import Rows, as_ranges
from featstore.dispatch.terms import Claim
from featstore.loader.batches import assembly
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.batch_slices import slice_batches
from featstore.loader.batches.blocks import Block, BlockColumns
from featstore.loader.batches.mixing import MixTerms, read_mixed
from featstore.loader.batches.mixtures import Mixture, Splits, read_in_order
from featstore.loader.batches.progress import delivered
from featstore.loader.batches.split_reader import SplitReader
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder, Shuffle
from featstore.loader.request import decode
from featstore.reading.reader import Rows as ReadRows
from featstore.table.snapshot import DataFile
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import Key
from featstore.tensors.columns import Column
from featstore.tensors.packed import PackedColumns
from tests.loader.batches.conftest import Unlimited
from tests.loader.conftest import data_file, request_of, work_on

NUM_ROWS = 70
SCHEMA = pa.schema([("row", pa.int64())])


ALL_ROWS = [*range(NUM_ROWS), *range(1000, 1045), *range(2000, 2007)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[DataFile]:
    """Three files of 70, 45 and 7 rows."""
    root = tmp_path_factory.mktemp("files")
    return [
        data_file(
            root / f"{number}.parquet",
            pa.table({"row": [row for row in ALL_ROWS if row // 1000 == number]}),
        )
        for number in range(3)
    ]


def passes(row: int, where: str) -> bool:
    return row % 3 == 1 if "%" in where else row > 9000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> DataFile:
    path: Path = tmp_path_factory.mktemp("file") / "a.parquet"
    return data_file(path, pa.table({"row": range(NUM_ROWS)}))


def mixtures(
    *files: DataFile,
    start_rows: Sequence[int] = (0,),
    window_rows: int | None = None,
    where: str | None = None,
) -> Iterator[Mixture]:
    """All rows of the files from `start_rows` on, in order or, with `window_rows`, mixed."""
    shuffle = window_rows and Shuffle(window_rows=window_rows * len(files), interleave=len(files))
    order = RowOrder(seed=0, epoch=0, shuffle=shuffle or None)
    opened = partial(
        SplitReader, request=request_of(SCHEMA, "row", where=where), order=order, stats=Stats()
    )
    work = iter(
        work_on(file, index, start_row=start)
        for index, (file, start) in enumerate(zip(files, start_rows, strict=True))
    )
    splits = Splits(work=work, open_split=opened)
    if shuffle is None:
        return read_in_order(splits)
    terms = MixTerms(order=order, width=len(files), section_of=lambda index: range(len(files)))
    return read_mixed(splits, terms, Unlimited(), Stats())


def blocks_of(found: Iterable[Mixture], batch_size: int) -> list[Block]:
    return list(Assembler(request_of(SCHEMA, "row"), batch_size, Stats()).all_blocks(found))


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
        found = mixtures(file, start_rows=[start], window_rows=window_rows, where=where)
        return blocks_of(found, batch_size)

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
    """The rows of their split's stream that the block's rows are."""
    places = [
        range(source.first_row, source.end_row)
        if source.places is None
        else (source.first_row + source.places).tolist()
        for source in block.sources
    ]
    streams = list(map(iter, places))
    draws = [0] * block.num_rows if block.draws is None else block.draws.tolist()
    return [next(streams[number]) for number in draws][block.begin : block.end]


@pytest.mark.parametrize("start", [0, 37])
def test_shuffled_rows_lie_in_the_memory_of_their_batches(file: DataFile, start: int) -> None:
    blocks = blocks_of(mixtures(file, start_rows=[start], window_rows=30), 20)
    assert [len(block) for block in blocks] == {0: [20, 20, 20, 10], 37: [20, 13]}[start]
    assert all(block.whole is not None for block in blocks)


def test_tensors_are_made_ahead_once_columns_are_asked_for(
    file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PackedColumns] = []
    make = PackedColumns.made

    def noted(packed: PackedColumns) -> dict[Key, Column]:
        made.append(packed)
        return make(packed)

    def times_made(block: Block) -> int:
        return sum(packed is block.packed for packed in made)

    monkeypatch.setattr(PackedColumns, "made", noted)
    assembler = Assembler(request_of(SCHEMA, "row"), 20, Stats())
    found = mixtures(file, window_rows=30)
    first, *_ = assembler.blocks(next(found))
    assert times_made(first) == 0
    BlockColumns([first], BufferPool()).made()
    later = [block for mixture in found for block in assembler.blocks(mixture)]
    assert [times_made(block) for block in later] == [1] * len(later) != []
    for block in later:
        BlockColumns([block], BufferPool()).made()
    assert [times_made(block) for block in [first, *later]] == [1] * (1 + len(later))


def delivered_by(
    blocks: Iterable[Block], batch_size: int
) -> list[tuple[list[int], dict[int, Rows]]]:
    """After each batch: its rows, and what is delivered of each split."""
    done: dict[int, Rows] = {}
    found = []
    for one in slice_batches(blocks, batch_size, drop_last=False):
        for segment in one.progress.segments:
            before = done.get(segment.claim.index, 0)
            assert isinstance(before, int)
            assert segment.through >= before
            done[segment.claim.index] = delivered(before, segment)
        found.append((one.batch()["row"].tolist() if one.blocks else [], dict(done)))
    return found


@settings(max_examples=60)
@given(st.data())
def test_what_is_left_of_mixed_splits_is_delivered_in_the_same_order_from_any_batch(
    files: list[DataFile], data: st.DataObject
) -> None:
    batch_size = sliced = data.draw(st.integers(1, 40))
    where = data.draw(st.sampled_from([None, "row % 3 = 1", "row > 9000"]))
    if where is None:  # Filtered rows are counted at the ends of batches only.
        sliced = data.draw(st.integers(1, 40))

    def blocks(starts: Sequence[int]) -> list[Block]:
        found = mixtures(*files, start_rows=starts, window_rows=30, where=where)
        return blocks_of(found, batch_size)

    whole = delivered_by(blocks([0, 0, 0]), sliced)
    rows = [row for batch, _ in whole for row in batch]
    assert sorted(rows) == sorted(row for row in ALL_ROWS if where is None or passes(row, where))
    assert whole[-1][1] == dict.fromkeys(range(3), "complete")
    number = data.draw(st.integers(0, len(whole) - 1))
    done = whole[number][1]
    starts = [
        max((end for _, end in as_ranges(done.get(index, 0), file.num_rows)), default=0)
        for index, file in enumerate(files)
    ]
    left = [row for batch, _ in delivered_by(blocks(starts), sliced) for row in batch]
    assert left == rows[sum(len(batch) for batch, _ in whole[: number + 1]) :]


def test_a_lost_split_takes_its_rows_out_of_mixed_batches_and_no_others(
    files: list[DataFile],
) -> None:
    blocks = blocks_of(mixtures(*files, start_rows=[0, 0, 0], window_rows=30), 16)
    expected = [row for row in rows_of(blocks, 16) if row // 1000 != 1]

    def reserve(block: Block) -> dict[int, int]:
        return {at: -1 for at, source in enumerate(block.sources) if source.claim.index == 1}

    found = list(slice_batches(blocks, 16, drop_last=False, reserve=reserve))
    assert [row for one in found for row in one.batch()["row"].tolist()] == expected
    assert {one.batch().num_rows for one in found[:-1]} == {16}
    segments = [segment for one in found for segment in one.progress.segments]
    assert {segment.claim.index for segment in segments} == {0, 2}
    assert sum(segment.is_complete for segment in segments) == 2


def test_what_a_batch_leaves_of_a_block_is_looked_at_again_before_the_next_batch(
    files: list[DataFile],
) -> None:
    blocks = blocks_of(mixtures(*files, start_rows=[0, 0, 0], window_rows=30), 16)
    gone = {0}

    def reserve(block: Block) -> dict[int, int]:
        return {at: -1 for at, source in enumerate(block.sources) if source.claim.index in gone}

    slices = slice_batches(blocks, 16, drop_last=False, reserve=reserve)
    first = next(slices)
    last = first.blocks[-1]
    assert last.draws is not None
    left = [last.sources[number].claim.index for number in last.draws[last.end :]]
    assert 1 in left  # For the next batch.
    gone.add(1)
    rows = [row for one in slices if one.blocks for row in one.batch()["row"].tolist()]
    rows = [row for row in first.batch()["row"].tolist() if row // 1000 != 1] + rows
    assert rows == [row for row in rows_of(blocks, 16) if row >= 2000]


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("skips", [False, True])
def test_a_window_that_cannot_be_converted_is_an_error_or_left_out_with_what_follows(
    files: list[DataFile], monkeypatch: pytest.MonkeyPatch, is_shuffled: bool, skips: bool
) -> None:
    converted = decode.block_columns

    def broken(rows: ReadRows, *of: Any) -> Any:
        if rows.file_name == "1.parquet" and min(rows.table["row"].to_pylist()) > 1000:
            raise DataFileError("damaged")
        return converted(rows, *of)

    monkeypatch.setattr(assembly, "block_columns", broken)
    noted: list[tuple[int, int]] = []

    def skip(claim: Claim, row: int, error: BaseException) -> None:
        noted.append((claim.index, row))

    found = mixtures(*files, start_rows=[0, 0, 0], window_rows=16 if is_shuffled else None)
    assembler = Assembler(request_of(SCHEMA, "row"), 8, Stats(), skip if skips else None)
    if not skips:
        with pytest.raises(DataFileError, match="damaged"):
            [assembler.blocks(mixture) for mixture in found]
        return
    blocks = [block for mixture in found for block in assembler.blocks(mixture)]
    rows = rows_of(blocks + assembler.rest(), 99)
    assert sorted(rows) == [row for row in ALL_ROWS if row // 1000 != 1 or row < 1016]
    assert noted == [(1, 16)]


def test_what_is_no_bad_file_is_not_left_out(
    file: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = []
    skipping = Assembler(request_of(SCHEMA, "row"), 20, Stats(), lambda *of: noted.append(of))

    def broken(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(assembly, "block_columns", broken)
    with pytest.raises(ValueError, match="ours"):
        skipping.blocks(next(mixtures(file)))
    assert noted == []
