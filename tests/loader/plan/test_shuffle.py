from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.errors import ConfigError
from featstore.loader.plan.shuffle import Shuffle, permutation, windows


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


@pytest.mark.parametrize(
    "options", [{"window_rows": 0}, {"interleave": 0}, {"window_rows": "all"}, {"interleave": True}]
)
def test_options_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"shuffle.{next(iter(options))}: expected an integer of 1 or more"
    ):
        Shuffle(**options)
