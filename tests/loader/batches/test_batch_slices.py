from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.batches.batch_slices import slice_batches
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.progress import Segment
from tests.loader.batches.conftest import KEY, block, claim_on


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7), st.booleans())
def test_batches_have_the_exact_size_and_all_rows_in_order(
    sizes: list[int], batch_size: int, drop_last: bool
) -> None:
    blocks = [block(split, 0, num_rows) for split, num_rows in enumerate(sizes)]
    expected = [row for one in blocks for row in one.columns[KEY].tolist()]
    cuts = list(slice_batches(blocks, batch_size, drop_last=drop_last))
    batches = [one.batch() for one in cuts if one.blocks]
    found = [row for batch in batches for row in batch["row"].tolist()]
    kept = len(expected) - len(expected) % batch_size if drop_last else len(expected)
    assert found == expected[:kept]
    assert sum(one.progress.num_dropped_rows for one in cuts) == len(expected) - kept
    assert all(batch.num_rows == batch_size for batch in batches[: kept // batch_size])
    lists = [values.tolist() for batch in batches for values in batch["tags"]]
    assert lists == [[row] * (row % 3) for row in found]
    assert all(batch["tags"].offsets[0] == 0 for batch in batches)


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7), st.booleans())
def test_every_split_is_completed_exactly_once(
    sizes: list[int], batch_size: int, drop_last: bool
) -> None:
    cuts = slice_batches(
        [block(split, 0, num_rows) for split, num_rows in enumerate(sizes)],
        batch_size,
        drop_last=drop_last,
    )
    complete = [s.claim.index for one in cuts for s in one.progress.segments if s.is_complete]
    assert complete == list(range(len(sizes)))


def test_progress_counts_rows_that_were_filtered_out() -> None:
    blocks = [block(4, 200, 3, places=np.array([7, 9, 42]))]
    segments = [one.progress.segments for one in slice_batches(blocks, 2, drop_last=False)]
    assert segments == [(Segment(claim_on(4), 210, False),), (Segment(claim_on(4), 300, True),)]


def test_a_resumed_block_begins_at_the_first_row_not_delivered() -> None:
    [source] = block(4, 200, 3, places=np.array([7, 9, 42])).sources
    assert [source.row_at(position) for position in (0, 207, 208, 210, 243, 300)] == [
        0,
        0,
        1,
        2,
        3,
        3,
    ]
    (only,) = slice_batches([block(0, 0, 5, begin=3)], 8, drop_last=False)
    assert only.batch()["row"].tolist() == [3, 4]


def test_a_batch_within_one_block_is_a_view_of_it() -> None:
    one = block(0, 0, 8)
    first, second = (found.batch() for found in slice_batches([one], 4, drop_last=False))
    assert second["row"].data_ptr() == one.columns[KEY].ctypes.data + 4 * 8
    assert first["row"] is first["row"]


def test_a_batch_that_is_used_in_inference_mode_leaves_the_others_to_train_on() -> None:
    first, second = (one.batch() for one in slice_batches([block(0, 0, 8)], 4, drop_last=False))
    weights = torch.nn.Embedding(8, 2)
    with torch.inference_mode():
        weights(first["row"])
    weights(second["row"]).sum().backward()
    assert weights.weight.grad is not None


def test_a_block_with_rows_of_several_splits_is_delivered_whole_with_progress_in_each() -> None:
    of_splits = [block(split, 10 * split, 2, is_last=split == 1).sources[0] for split in (0, 1)]
    columns: dict[tuple[str, str], Any] = {KEY: np.array([10, 0, 1, 11])}
    mixed = Block.of(columns, tuple(of_splits), num_rows=4, extras=pa.table({}))
    (only,) = slice_batches([mixed], 8, drop_last=False)
    assert only.batch()["row"].tolist() == [10, 0, 1, 11]
    assert only.progress.segments == (
        Segment(claim_on(0), 2, False),
        Segment(claim_on(1), 12, True),
    )
