from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError
from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.batch_slices import BatchAligner, slice_batches
from featstore.loader.batches.blocks import Block, ColumnDemand
from featstore.reading.buffers import Ragged
from featstore.tensors.buffer_pool import BufferPool
from tests.loader.batches.conftest import KEY, TAGS, block, claim_on

SIZES = st.lists(st.integers(0, 9), max_size=8)


def model(rows: list[int], batch_size: int, max_values: int) -> list[list[int]]:
    """Row by row: each row goes to the batch before it if it fits. A row has `row % 3` values."""
    batches: list[list[int]] = []
    for row in rows:
        last = batches[-1] if batches else []
        fits = len(last) < batch_size and sum(each % 3 for each in [*last, row]) <= max_values
        if last and fits:
            last.append(row)
        else:
            batches.append([row])
    return batches


def mixed(rows: np.ndarray[Any, Any]) -> Block:
    """The rows, drawn in turn from two splits."""
    draws = np.arange(len(rows), dtype=np.int32) % 2
    sources = [
        block(split, 0, int((draws == split).sum())).sources[0]._replace(claim=claim_on(split))
        for split in (0, 1)
    ]
    lengths = rows % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    columns: dict[Any, Any] = {KEY: rows, TAGS: Ragged(np.repeat(rows, lengths), offsets)}
    return Block.of(
        columns,
        tuple(sources),
        num_rows=len(rows),
        extras=pa.table({}),
        draws=draws,
    )


@given(SIZES, st.integers(1, 12), st.integers(2, 20), st.booleans(), st.booleans())
def test_each_batch_has_as_many_rows_as_fit(
    sizes: list[int], batch_size: int, max_values: int, drop_last: bool, is_mixed: bool
) -> None:
    blocks = [block(split, 0, num_rows) for split, num_rows in enumerate(sizes)]
    if is_mixed:
        blocks = [mixed(each.columns[KEY]) for each in blocks if len(each)]
    rows = [row for each in blocks for row in each.columns[KEY].tolist()]
    cap = BatchCap(max_values=max_values, of="tags")
    slices = list(slice_batches(blocks, batch_size, drop_last=drop_last, cap=cap))
    batches = [each.batch() for each in slices if each.blocks]
    found = [batch["row"].tolist() for batch in batches]
    expected = model(rows, batch_size, max_values)
    if drop_last and expected and len(expected[-1]) < batch_size:
        left_out = expected.pop()
        assert slices[-1].progress.num_dropped_rows == len(left_out)
    assert found == expected
    lists = [values.tolist() for batch in batches for values in batch["tags"]]
    assert lists == [[row] * (row % 3) for batch in found for row in batch]
    counted = [each.num_values for each in slices if each.blocks]
    assert counted == [len(batch["tags"].values) for batch in batches]


@given(SIZES, st.integers(1, 12), st.integers(2, 20), st.booleans())
def test_every_split_is_completed_exactly_once(
    sizes: list[int], batch_size: int, max_values: int, drop_last: bool
) -> None:
    blocks = [block(split, 0, num_rows) for split, num_rows in enumerate(sizes)]
    cap = BatchCap(max_values=max_values, of="tags")
    slices = slice_batches(blocks, batch_size, drop_last=drop_last, cap=cap)
    complete = [s.claim.index for one in slices for s in one.progress.segments if s.is_complete]
    assert complete == list(range(len(sizes)))


@given(st.integers(0, 9), st.integers(2, 6))
def test_rows_that_others_have_taken_are_left_out(limit: int, max_values: int) -> None:
    cap = BatchCap(max_values=max_values, of="tags")

    def reserve(part: Block) -> dict[int, int]:
        return {0: limit} if part.sources[0].claim.index == 0 and part.end > limit else {}

    slices = slice_batches(
        [block(0, 0, 9), block(1, 0, 9)], 8, drop_last=False, reserve=reserve, cap=cap
    )
    found = [each.batch()["row"].tolist() for each in slices if each.blocks]
    assert [row for rows in found for row in rows] == [*range(limit), *range(1000, 1009)]
    assert all(sum(row % 3 for row in rows) <= max_values for rows in found)


@pytest.mark.parametrize("is_aligned", [False, True])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_row_above_the_cap_is_an_error_after_the_batches_before_it(
    is_aligned: bool, is_mixed: bool
) -> None:
    cap = BatchCap(max_values=1, of="tags")
    blocks = [block(6, 0, 9)]
    if is_mixed:
        blocks = [mixed(each.columns[KEY]) for each in blocks]
    elif is_aligned:
        aligner = BatchAligner(8, BufferPool(), ColumnDemand(is_seen=True), cap)
        blocks = [*aligner.add(blocks[0]), *aligner.rest()]
    slices, found = slice_batches(blocks, 8, drop_last=False, cap=cap), list[list[int]]()
    with pytest.raises(ConfigError, match=r"in each row, found 2 in a row of [016]: raise"):
        found += (one.batch()["row"].tolist() for one in slices)
    assert found == [[6000, 6001]]  # They have 0 and 1 values, and 6002 has 2.
    slices = slice_batches([block(7, 0, 9)], 8, drop_last=False, cap=cap)
    message = (
        "batch.max_values: expected at most 1 values of 'tags' in each row, found 2 in a row of 7: "
        "raise max_values, or cut longer lists with slots: [{name: tags, max_len: 1}]"
    )
    with pytest.raises(ConfigError) as raised:
        list(slices)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_values": 0, "of": "tags"}, "batch.max_values: expected"),
        ({"max_values": 9, "of": 7}, "batch.of: expected the name of a list slot, found 7"),
    ],
)
def test_a_cap_that_makes_no_sense_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchCap(**options)
