from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError
from featstore.loader.plan.shuffle import RowOrder, Shuffle, permutation, round_size, windows
from featstore.reading.buffers import Array


def test_without_shuffling_each_row_group_is_a_window() -> None:
    assert windows([5, 0, 7], None) == [range(1), range(1, 2), range(2, 3)]


def test_a_window_is_the_fewest_row_groups_that_hold_its_rows() -> None:
    assert windows([40, 40, 40, 100, 10], 100) == [range(3), range(3, 4), range(4, 5)]


@given(st.lists(st.integers(0, 50)), st.integers(1, 120))
def test_windows_cover_every_row_group_once(rows: list[int], window_rows: int) -> None:
    assert [index for window in windows(rows, window_rows) for index in window] == list(
        range(len(rows))
    )


@given(st.integers(0, 200), st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
def test_a_permutation_holds_every_place_once(num_rows: int, key: list[int]) -> None:
    assert sorted(permutation(num_rows, *key).tolist()) == list(range(num_rows))


def test_the_order_is_the_same_on_every_machine() -> None:
    assert permutation(12, 7, 1, 3, 0).tolist() == [11, 5, 2, 9, 7, 8, 4, 10, 0, 1, 3, 6]


def test_another_seed_epoch_split_or_window_is_another_order() -> None:
    orders = [
        permutation(1000, *key)
        for key in ((1, 2, 3, 4), (0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0))
    ]
    assert all(not np.array_equal(orders[0], other) for other in orders[1:])


ORDER = RowOrder(seed=7, epoch=1, shuffle=Shuffle())


def drawn(
    splits: Sequence[int],
    split_rows: Sequence[int],
    num_taken: int,
    num_rows: int,
    order: RowOrder = ORDER,
) -> Array:
    """From which of the open splits, whose windows do not end, the next rows come."""
    streams = array("q")
    for share, (split, rows) in enumerate(zip(splits, split_rows, strict=True)):
        streams.extend((split, max(1, rows), 0 if share else num_taken, 1 << 62, share))
    draws, shares = np.zeros(num_rows, np.uint16), np.zeros((len(splits), 2), np.int64)
    assert order.draw(streams, draws, shares, len(splits)) == (num_rows, len(splits), -1)
    return draws


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=9),
    st.integers(0, 2**40),
    st.integers(0, 99),
    st.integers(0, 99),
)
def test_draws_that_are_made_in_two_steps_are_those_that_are_made_in_one(
    split_rows: list[int], num_taken: int, first: int, second: int
) -> None:
    splits = list(range(3, 3 + len(split_rows)))
    whole = drawn(splits, split_rows, num_taken, first + second)
    parts = [
        drawn(splits, split_rows, num_taken, first),
        drawn(splits, split_rows, num_taken + first, second),
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert not len(whole) or whole.max() < len(splits)


def test_the_draws_are_the_same_on_every_machine() -> None:
    # Across the end of a round.
    draws = drawn([2, 5, 9], [100, 300, 600], 250, 20)
    assert "".join(map(str, draws)) == "21022221022112202222"


def test_splits_are_drawn_in_proportion_to_their_rows() -> None:
    draws = drawn([0, 1, 2], [100, 300, 600], 0, 100_000)
    for num_rows in (256, 1_000, 30_000, 100_000):
        counts = np.bincount(draws[:num_rows], minlength=3)
        assert np.abs(counts - num_rows * np.array([0.1, 0.3, 0.6])).max() < 20
    whole = draws[: 100_000 // 256 * 256].reshape(-1, 256)
    for split, share in enumerate((0.1, 0.3, 0.6)):
        found = (whole == split).sum(axis=1)
        assert np.abs(found - 256 * share).max() < 1
        # No place of a round is that of a split.
        assert np.abs((whole == split).mean(axis=0) - share).max() < 0.15


@given(
    rows=st.lists(st.integers(1, 30_000), min_size=2, max_size=9),
    first=st.integers(0, 10_000),
)
def test_splits_that_are_opened_together_end_together(rows: list[int], first: int) -> None:
    splits = list(range(len(rows)))
    counts = np.bincount(drawn(splits, rows, first, sum(rows)), minlength=len(rows))
    assert np.abs(counts - rows).max() <= 64


@pytest.mark.parametrize(
    ("seed", "epoch", "splits"), [(8, 1, [2, 5]), (7, 2, [2, 5]), (7, 1, [2, 6])]
)
def test_another_seed_epoch_or_set_of_splits_draws_otherwise(
    seed: int, epoch: int, splits: list[int]
) -> None:
    other = RowOrder(seed=seed, epoch=epoch, shuffle=Shuffle())
    draws = drawn([2, 5], [9, 9], 0, 100)
    assert not np.array_equal(drawn(splits, [9, 9], 0, 100, other), draws)


@given(num_splits=st.integers(1, 200), width=st.integers(1, 40))
def test_rounds_are_few_and_of_equal_size(num_splits: int, width: int) -> None:
    sizes, place = list[int](), 0
    while place < num_splits:
        sizes.append(round_size(place, num_splits, width))
        assert all(
            round_size(at, num_splits, width) == sizes[-1] for at in range(place, place + sizes[-1])
        )
        place += sizes[-1]
    assert sum(sizes) == num_splits
    assert len(sizes) == -(-num_splits // width)
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= width


def test_ten_splits_are_five_and_five_where_eight_may_be_open() -> None:
    assert [round_size(place, 10, 8) for place in (0, 4, 5, 9)] == [5, 5, 5, 5]
    assert [round_size(place, 10, 4) for place in (0, 4, 7)] == [4, 3, 3]


def test_the_window_of_a_split_is_its_part_of_all_rows_in_memory() -> None:
    assert Shuffle(window_rows=100, interleave=8).split_window_rows == 12
    assert Shuffle(window_rows=3, interleave=8).split_window_rows == 1
    with pytest.raises(ConfigError, match=r"shuffle\.interleave: expected at most 32768, found"):
        Shuffle(interleave=65_537)


@pytest.mark.parametrize(
    "options", [{"window_rows": 0}, {"interleave": 0}, {"window_rows": "all"}, {"interleave": True}]
)
def test_options_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"shuffle.{next(iter(options))}: expected an integer of 1 or more"
    ):
        Shuffle(**options)


def test_within_is_a_name() -> None:
    assert Shuffle(within="dt").within == "dt"
    with pytest.raises(
        ConfigError, match=r"shuffle\.within: expected the name of a partition key, found 3"
    ):
        Shuffle(within=3)  # type: ignore[arg-type]
