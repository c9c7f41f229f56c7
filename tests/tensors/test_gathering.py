import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.reading.buffers import Ragged, Values
from featstore.reading.gather import buffers_of, places_of
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import LABEL, SLOT
from featstore.tensors.columns import Columns, Jagged
from featstore.tensors.gathering import gather_batches

IDS, TAGS, PAIR, CLICK = (SLOT, "ids"), (SLOT, "tags"), (SLOT, "pair"), (LABEL, "click")


def made(batch: Columns) -> Any:
    """The columns by key, tensors or jagged ones."""
    return batch.made()


def pieces_of(sizes: Sequence[int], offset_types: Sequence[Any] = (np.int32,)) -> Any:
    """Pieces of rows numbered through, from which every column follows."""
    pieces, first = [], 0
    for number, size in enumerate(sizes):
        rows = np.arange(first, first + size)
        lengths = rows % 3
        offsets = np.cumsum([0, *lengths]).astype(offset_types[number % len(offset_types)])
        columns: dict[Any, Values] = {
            IDS: rows + 2**53 + 1,
            TAGS: Ragged(np.repeat(rows, lengths), offsets),
            PAIR: np.stack([rows, -rows], axis=1).astype(np.float32),
            CLICK: rows.astype(np.float32),
        }
        pieces.append(buffers_of(columns, size))
        first += size
    return pieces


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 32)),
    st.lists(st.sampled_from([np.int32, np.int64]), min_size=1),
)
def test_each_part_is_one_batch_in_one_buffer_per_dtype(
    sizes: list[int], random: random.Random, inner: list[int], offset_types: list[Any]
) -> None:
    order = list(range(sum(sizes)))
    random.shuffle(order)
    cuts = [0, *sorted(min(cut, len(order)) for cut in inner), len(order)]
    batches = gather_batches(
        pieces_of(sizes, offset_types),
        places_of(np.array(order, np.int64), sizes, np.array(cuts)),
        BufferPool(),
        BufferPool(),
    )
    for batch, first, end in zip(batches, cuts, cuts[1:], strict=False):
        rows = order[first:end]
        assert made(batch)[IDS].tolist() == [row + 2**53 + 1 for row in rows]
        assert made(batch)[PAIR].tolist() == [[row, -row] for row in rows]
        assert made(batch)[CLICK].tolist() == rows
        tags = made(batch)[TAGS]
        assert isinstance(tags, Jagged)
        assert [values.tolist() for values in tags] == [[row] * (row % 3) for row in rows]
        assert {buffer.dtype for buffer in batch.buffers} == {torch.int64, torch.float32}
        total = sum(column.numel() for key in (IDS, PAIR, CLICK) for column in [made(batch)[key]])
        assert sum(map(len, batch.buffers)) == total + tags.values.numel() + tags.offsets.numel()


def test_memory_serves_again_when_no_batch_refers_to_it() -> None:
    pool = BufferPool()
    places = places_of(np.arange(4), [4], np.array([0, 2, 4]))
    batches = gather_batches(pieces_of([4]), places, pool, BufferPool())
    kept, address = made(batches[1])[IDS], made(batches[0])[IDS].data_ptr()
    expected = kept.tolist()
    del batches
    other = gather_batches(pieces_of([4]), places, pool, BufferPool())
    assert address not in [made(batch)[IDS].data_ptr() for batch in other]
    assert kept.tolist() == expected
    del kept, other
    assert (
        made(gather_batches(pieces_of([4]), places, pool, BufferPool())[0])[IDS].data_ptr()
        == address
    )
