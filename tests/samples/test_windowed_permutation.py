from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError
from featstore.samples.permutation import WindowedPermutation, rows_of_groups

GROUPS = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any)


def order_of(sizes: list[int], window_groups: int, key: str = "a") -> list[int]:
    made = WindowedPermutation(
        group_rows=rows_of_groups(sizes), window_groups=window_groups, key=key
    )
    return [int(row) for row in made.at(np.arange(sum(sizes)))]


@given(sizes=GROUPS, window_groups=st.integers(1, 40))
def test_every_row_comes_once(sizes: list[int], window_groups: int) -> None:
    assert sorted(order_of(sizes, window_groups)) == list(range(sum(sizes)))


@given(sizes=GROUPS, window_groups=st.integers(1, 40))
def test_a_row_group_is_read_in_one_window(sizes: list[int], window_groups: int) -> None:
    """Between the first and the last row of a row group come rows of at most `window_groups`."""
    groups = np.repeat(np.arange(len(sizes)), sizes)[order_of(sizes, window_groups)]
    for group in np.unique(groups):
        (places,) = np.nonzero(groups == group)
        assert len(np.unique(groups[places[0] : places[-1] + 1])) <= window_groups


@given(data=st.data(), sizes=GROUPS, window_groups=st.integers(1, 10))
def test_any_positions_in_any_order_are_those_of_the_whole(
    data: st.DataObject, sizes: list[int], window_groups: int
) -> None:
    positions = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=20))
    made = WindowedPermutation(
        group_rows=rows_of_groups(sizes), window_groups=window_groups, key="a"
    )
    whole = order_of(sizes, window_groups)
    found = made.at(np.array(positions, np.int64))
    assert found.tolist() == [whole[position] for position in positions]


def test_row_groups_and_rows_within_a_window_are_shuffled() -> None:
    order = np.array(order_of([100] * 100, 5))
    windows = (order // 100).reshape(20, 500)
    members = [tuple(np.unique(window).tolist()) for window in windows]
    assert all(len(groups) == 5 for groups in members)
    assert members != sorted(members)
    rising = order[1:] > order[:-1]
    assert abs(rising.mean() - 0.5) < 0.02
    # A window's first half holds rows of each of its row groups.
    assert all(len(np.unique(window[:250])) == 5 for window in windows)


def test_another_key_is_another_order() -> None:
    assert order_of([10] * 10, 3, "a") != order_of([10] * 10, 3, "b")


@pytest.mark.parametrize("sizes", [[], [1.5], [-1], [[1]], 3, ["a"]])
def test_what_are_no_row_groups_is_refused(sizes: Any) -> None:
    with pytest.raises(ConfigError, match="row_groups: expected the number of rows of each"):
        rows_of_groups(sizes)


def test_the_rows_of_a_table_whose_groups_are_unequal_begin_where_they_do() -> None:
    sizes = [3, 0, 5, 1]
    order = order_of(sizes, 1)
    begins = [0, *accumulate(sizes)]
    first = next(i for i in range(4) if begins[i] <= order[0] < begins[i + 1])
    assert set(order[: sizes[first]]) == set(range(begins[first], begins[first + 1]))
