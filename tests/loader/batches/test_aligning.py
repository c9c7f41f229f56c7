"""Blocks divided where batches end, compared with batches sliced from the blocks as they are."""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.plan import Rows
from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.batch_slices import BatchAligner, slice_batches
from featstore.loader.batches.blocks import Block, ColumnDemand
from featstore.loader.batches.progress import delivered
from featstore.tensors.buffer_pool import BufferPool
from tests.loader.batches.conftest import KEY, block

# For each block: its rows, the first one that is not delivered yet, and whether rows before, between
# and behind them were filtered out.
BLOCKS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=1, max_size=6
)


def blocks_of(of: Iterable[tuple[int, int, bool]]) -> list[Any]:
    return [
        block(
            split,
            100,
            num_rows,
            begin=min(begin, num_rows),
            places=3 + 2 * np.arange(num_rows) if is_filtered else None,
        )
        for split, (num_rows, begin, is_filtered) in enumerate(of)
    ]


# Rows have at most two values. Without a cap batches end by rows.
CAPS = st.one_of(
    st.none(), st.integers(2, 9).map(lambda most: BatchCap(max_values=most, of="tags"))
)


def aligned(
    blocks: Iterable[Any], batch_size: int, cap: BatchCap | None = None, *, is_seen: bool = True
) -> list[Block]:
    aligner = BatchAligner(batch_size, BufferPool(), ColumnDemand(is_seen), cap)
    found = [one for each in blocks for one in aligner.add(each)]
    return found + aligner.rest()


def batches_of(
    blocks: Iterable[Any],
    batch_size: int,
    cap: BatchCap | None = None,
    lost: Collection[int] = (),
) -> list[tuple[list[int], list[list[int]], dict[int, Rows]]]:
    """Rows and lists of each batch, and what is delivered of each split with it."""
    found, done = [], dict[int, Rows]()

    def reserve(of: Block) -> dict[int, int]:
        return {at: -1 for at, source in enumerate(of.sources) if source.claim.index in lost}

    for one in slice_batches(blocks, batch_size, drop_last=False, reserve=reserve, cap=cap):
        for segment in one.progress.segments:
            before = done.get(segment.claim.index, 0)
            done[segment.claim.index] = delivered(before, segment)
        if one.blocks:
            batch = one.batch()
            lists = [values.tolist() for values in batch["tags"]]
            assert int(batch["tags"].offsets[0]) == 0
            found.append((batch["row"].tolist(), lists, dict(done)))
    return found


@given(BLOCKS, st.integers(1, 9), CAPS, st.booleans())
def test_batches_and_what_is_delivered_with_each_are_the_same(
    of: list[tuple[int, int, bool]], batch_size: int, cap: BatchCap | None, is_seen: bool
) -> None:
    blocks = aligned(blocks_of(of), batch_size, cap, is_seen=is_seen)
    assert batches_of(blocks, batch_size, cap) == batches_of(blocks_of(of), batch_size, cap)


@given(BLOCKS, st.integers(1, 9), CAPS)
def test_each_batch_lies_in_one_block(
    of: list[tuple[int, int, bool]], batch_size: int, cap: BatchCap | None
) -> None:
    blocks = aligned(blocks_of(of), batch_size, cap)
    slices = slice_batches(blocks, batch_size, drop_last=False, cap=cap)
    assert all(len(one.blocks) <= 1 for one in slices)


@given(BLOCKS, st.integers(1, 9), CAPS, st.sets(st.integers(0, 5)))
def test_rows_of_lost_claims_are_left_out_of_every_batch(
    of: list[tuple[int, int, bool]], batch_size: int, cap: BatchCap | None, lost: set[int]
) -> None:
    found = batches_of(aligned(blocks_of(of), batch_size, cap), batch_size, cap, lost)
    expected = batches_of(blocks_of(of), batch_size, cap, lost)
    assert [rows for rows, _, _ in found] == [rows for rows, _, _ in expected]
    assert [lists for _, lists, _ in found] == [lists for _, lists, _ in expected]


@given(BLOCKS, st.integers(1, 9))
def test_each_row_left_to_others_is_counted_once(
    of: list[tuple[int, int, bool]], batch_size: int
) -> None:
    counts = []
    for blocks in (blocks_of(of), aligned(blocks_of(of), batch_size)):
        counted = 0

        def reserve(of: Block) -> dict[int, int]:
            nonlocal counted
            lost = dict.fromkeys(range(len(of.sources)), -1)
            counted += of.num_rows_beyond(lost)
            return lost

        list(slice_batches(blocks, batch_size, drop_last=False, reserve=reserve))
        counts.append(counted)
    assert counts[0] == counts[1]


def test_only_a_batch_that_straddles_is_copied() -> None:
    one, other = block(0, 0, 10), block(1, 0, 10)
    first, joined, second = aligned([one, other], 4)
    assert [len(each) for each in (first, joined, second)] == [8, 4, 8]
    assert joined.whole is not None
    for each, of, begin in ((first, one, 0), (second, other, 2)):
        values: Any = each.tensors(BufferPool())[KEY]
        assert values.data_ptr() == of.columns[KEY][begin:].ctypes.data


@pytest.mark.parametrize("is_seen", [False, True])
def test_tensors_are_made_ahead_once_columns_are_asked_for(is_seen: bool) -> None:
    [found] = aligned([block(0, 0, 8)], 4, is_seen=is_seen)
    assert (found.ahead is not None) == is_seen
    size_bytes = found.size_bytes
    batches = [one.batch() for one in slice_batches([found], 4, drop_last=False)]
    assert [batch["row"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert size_bytes - block(0, 0, 8).size_bytes == (2 * 8 * 5 if is_seen else 0)


def test_extra_columns_of_a_batch_that_straddles_come_with_it() -> None:
    blocks = [block(split, 0, 3) for split in range(2)]
    for one in blocks:
        one.extras = pa.table({"x": one.columns[KEY]})
    batches = [one.batch() for one in slice_batches(aligned(blocks, 4), 4, drop_last=False)]
    assert [batch.extras["x"].to_pylist() for batch in batches] == [[0, 1, 2, 1000], [1001, 1002]]
