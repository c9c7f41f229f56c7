"""The simulated orders of peers, and how mixing is measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle_parts import orders
from shuffle_parts.mixing import mixing_of

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=9)


@given(sizes=SIZES, seed=st.integers(0, 9), most=st.integers(1, 50))
def test_every_order_has_each_row_once(sizes: list[int], seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    files = orders.shuffled(orders.stored(sizes), random)
    one_by_one = orders.one_after_the_other(files)
    for order in (
        orders.buffered(one_by_one, most, random),
        orders.interleaved(files, most, block_length=1 + seed),
        orders.dealt(files, most),
        orders.spread(files, most, random),
    ):
        assert sorted(order.tolist()) == list(range(sum(sizes)))


@given(seed=st.integers(0, 99), buffer_rows=st.integers(1, 30))
def test_no_row_leaves_a_buffer_before_it_has_come_in(seed: int, buffer_rows: int) -> None:
    order = orders.buffered(np.arange(100), buffer_rows, np.random.default_rng(seed))
    assert all(row <= place + buffer_rows for place, row in enumerate(order.tolist()))


def test_open_files_give_blocks_in_turn_and_one_that_ends_is_replaced() -> None:
    files = orders.stored([4, 2, 3])
    assert orders.interleaved(files, 2).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8]
    assert orders.interleaved(files, 2, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8]
    assert orders.dealt(files, 2).tolist() == [0, 4, 1, 5, 2, 3, 6, 7, 8]


@given(seed=st.integers(0, 99))
def test_rows_of_a_shard_lie_in_a_range_of_a_block_and_a_quarter(seed: int) -> None:
    shards = orders.stored([10] * 50)
    order = orders.spread(shards, 100, np.random.default_rng(seed))
    place = np.empty(500, np.int64)
    place[order] = np.arange(500)
    ranges = [place[shard].max() - place[shard].min() for shard in shards]
    assert max(ranges) <= 1.25 * 100 + 60  # In sorted order, others crowd between.
    assert np.mean(ranges) > 50


def test_a_shard_of_more_rows_than_a_block_is_not_mixed_with_others() -> None:
    order = orders.spread(orders.stored([50, 50]), 10, np.random.default_rng(0))
    assert sorted(order[:50].tolist()) == list(range(50))


@pytest.mark.parametrize(
    ("order", "files", "travel", "apart"),
    [
        (np.arange(12), 1.0, 0, 1),
        (np.array([0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]), 2.0, 2, 2),
        (np.array([6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]), 1.0, 0, 1),
    ],
)
def test_mixing_is_told_by_files_and_distances(
    order: orders.Rows, files: float, travel: int, apart: int
) -> None:
    found = mixing_of(order, [6, 6], 3)
    assert (found.files_in_a_batch, found.travel_rows, found.apart_rows) == (files, travel, apart)
