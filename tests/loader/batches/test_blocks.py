"""Rows of blocks and rows of a split's stream, counted there and back; batches as views."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.batches.blocks import Block, BlockColumns
from featstore.loader.batches.progress import BlockSource, Segment
from featstore.reading.buffers import Ragged, Values
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import Key
from featstore.tensors.columns import Jagged
from featstore.tensors.packed import PackedColumns, TensorPlaces, UnpackedColumns
from tests.loader.batches.conftest import KEY, TAGS, block, claim_on


@st.composite
def sources(draw: st.DrawFn) -> tuple[BlockSource, int]:
    """A source, and how many of its rows passed the filters."""
    first, stream_rows = draw(st.integers(0, 50)), draw(st.integers(0, 20))
    places = None
    if draw(st.booleans()):
        chosen = draw(st.sets(st.integers(0, max(0, stream_rows - 1))))
        places = np.array(sorted(chosen) if stream_rows else [], np.int64)
    source = BlockSource(
        claim=claim_on(2, part=first),
        first_row=first,
        end_row=first + stream_rows,
        is_last=draw(st.booleans()),
        places=places,
    )
    return source, stream_rows if places is None else len(places)


@given(sources())
def test_the_row_of_a_block_that_a_stream_goes_on_at_is_found_again(
    found: tuple[BlockSource, int],
) -> None:
    source, num_rows = found
    ends = [source.through(row, num_rows) for row in range(num_rows + 1)]
    assert [source.row_at(end) for end in ends] == list(range(num_rows + 1))
    assert all(one < other for one, other in pairwise(ends[:-1]))
    assert ends[-1] == source.end_row


@given(sources(), st.data())
def test_a_part_of_a_source_counts_its_rows_as_the_whole_does(
    found: tuple[BlockSource, int], data: st.DataObject
) -> None:
    source, num_rows = found
    begin = data.draw(st.integers(0, num_rows))
    end = data.draw(st.integers(begin, num_rows))
    part = source.between(begin, end, num_rows)
    whole = [source.segment(row, num_rows) for row in range(begin, end + 1)]
    assert [part.segment(row - begin, end - begin) for row in range(begin, end + 1)] == whole
    assert [part.row_at(one.through) for one in whole] == list(range(end - begin + 1))


def test_a_stream_ends_with_its_last_row_only() -> None:
    source = BlockSource(claim=claim_on(0), first_row=0, end_row=3, is_last=True)
    assert [source.segment(row, 3).is_complete for row in range(4)] == [False, False, False, True]
    assert not source.between(0, 2, 3).is_last
    assert source.between(2, 3, 3).is_last


def test_lists_of_a_slice_are_read_by_offsets_of_the_whole() -> None:
    tags = block(0, 0, 6).slice(2, 5).get(TAGS)
    assert isinstance(tags, Ragged)
    assert tags.values.tolist() == [2, 2, 4]
    assert np.diff(tags.offsets).tolist() == [2, 0, 1]


def test_a_batch_over_several_blocks_has_their_rows_one_after_the_other() -> None:
    parts = [block(0, 0, 5).slice(4, 5), block(1, 0, 4).slice(0, 3)]
    made = BlockColumns(parts, BufferPool()).made()
    row, tags = made[KEY], made[TAGS]
    assert isinstance(row, torch.Tensor)
    assert isinstance(tags, Jagged)
    assert row.tolist() == [4, 1000, 1001, 1002]
    assert [each.tolist() for each in tags] == [[4], [1000], [1001, 1001], []]


def test_packed_columns_are_delivered_as_they_lie_and_only_as_a_whole() -> None:
    packed = BlockColumns([block(0, 0, 5)], BufferPool()).packed()
    columns = UnpackedColumns(packed)
    one = Block.of(columns, (), num_rows=5, extras=pa.table({}))
    assert one.whole is packed
    assert one.slice(1, 5).whole is None
    part = BlockColumns([one.slice(1, 5)], BufferPool()).made()[TAGS]
    assert isinstance(part, Jagged)
    assert [each.tolist() for each in part] == [[1], [2, 2], [], [4]]
    assert (one.num_jagged, block(0, 0, 5).num_jagged) == (0, 1)


def test_of_packed_columns_that_are_cut_off_only_the_rows_before_come() -> None:
    """Rows 3 and 4 are another worker's; those before them are a batch alone."""
    [source] = block(0, 0, 5).sources
    columns = UnpackedColumns(BlockColumns([block(0, 0, 5)], BufferPool()).packed())
    whole = Block.of(columns, (source,), num_rows=5, extras=pa.table({}))
    cut = whole.within({0: 3}, BufferPool())
    assert cut.segments == (Segment(source.claim, 3, is_complete=True),)
    packed = BlockColumns([cut], BufferPool()).packed()
    assert packed.num_rows == 3
    for made in (BlockColumns([cut], BufferPool()).made(), packed.made()):
        row, tags = made[KEY], made[TAGS]
        assert isinstance(row, torch.Tensor)
        assert isinstance(tags, Jagged)
        assert (row.tolist(), [each.tolist() for each in tags]) == ([0, 1, 2], [[], [1], [2, 2]])
    assert PackedColumns(buffers=(), places=TensorPlaces()).num_rows == 0


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_block_counts_the_memory_of_columns_and_extras(is_packed: bool) -> None:
    columns: dict[Key, Values] = {
        KEY: np.zeros(8, np.int64),
        TAGS: Ragged(np.zeros(4, np.int64), np.zeros(9, "i4")),
    }
    extras = pa.table({"note": pa.array([0] * 8, pa.int64())})
    one = Block.of(columns, (), num_rows=8, extras=extras)
    if not is_packed:
        assert one.size_bytes == 8 * 8 + 4 * 8 + 9 * 4 + 8 * 8
        return
    packed = BlockColumns([one], BufferPool()).packed()
    whole = Block.of(UnpackedColumns(packed), (), num_rows=8, extras=extras)
    assert whole.size_bytes == sum(buffer.nbytes for buffer in packed.buffers) + 8 * 8


def test_it_is_noted_that_columns_are_asked_for_but_not_that_a_batch_is_moved() -> None:
    packed = BlockColumns([block(0, 0, 5)], BufferPool()).packed()
    one = Block.of(UnpackedColumns(packed), (), num_rows=5, extras=pa.table({}))
    BlockColumns([one], BufferPool()).moved()
    assert not one.demand.is_seen
    BlockColumns([one.slice(0, 5)], BufferPool()).made()
    assert one.demand.is_seen


def test_tensors_of_packed_columns_are_made_once_and_need_gradients_wherever_they_are_made() -> (
    None
):
    columns = UnpackedColumns(BlockColumns([block(0, 0, 5)], BufferPool()).packed())
    with torch.inference_mode():
        made = columns.made()
    assert columns.made() is made
    row = made[KEY]
    assert isinstance(row, torch.Tensor)
    assert not row.is_inference()
