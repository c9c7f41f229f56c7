"""Splits of a size: never across files, whole row groups, small files left whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.plan import Split
from featstore.dispatch.sizing import RowGroups, SplitSize, splits_of

GROUPS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), max_size=12)


def _file(groups: Any) -> RowGroups:
    return RowGroups(path="a", num_rows=[rows for rows, _ in groups], sizes_bytes=[size for _, size in groups])


@given(groups=GROUPS, most=st.integers(1, 300), by_rows=st.booleans())
def test_the_splits_of_a_file_are_all_its_row_groups_in_order_and_none_is_too_large(
    groups: Any, most: int, by_rows: bool
) -> None:
    weights = [rows if by_rows else size for rows, size in groups]
    splits = list(splits_of(_file(groups), SplitSize(num_rows=most) if by_rows else SplitSize(size_bytes=most)))
    covered: list[Any] = []
    for split in splits:
        last = len(groups) - 1 if split.last_row_group is None else split.last_row_group
        mine = range(split.first_row_group, last + 1)
        assert split.num_rows == sum(groups[i][0] for i in mine)
        assert sum(weights[i] for i in mine) <= most or len(mine) == 1
        covered += mine
    assert covered == list(range(len(groups)))


@given(groups=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=2, max_size=12), most=st.integers(1, 300))
def test_no_two_neighbours_would_fit_into_one_split(groups: list[Any], most: int) -> None:
    splits = list(splits_of(_file(groups), SplitSize(num_rows=most)))
    for one, other in zip(splits, splits[1:]):  # noqa: B905, RUF007
        assert one.num_rows + groups[other.first_row_group][0] > most


def test_a_file_that_is_no_larger_than_a_split_is_whole() -> None:
    assert list(splits_of(_file([(5, 1), (5, 1)]), SplitSize(num_rows=10))) == [Split(path="a", num_rows=10)]
    assert list(splits_of(_file([]), SplitSize(num_rows=10))) == [Split(path="a", num_rows=0)]


@pytest.mark.parametrize("size", [{}, {"num_rows": 0}, {"size_bytes": -1}, {"num_rows": 1, "size_bytes": 1}])
def test_a_size_is_of_rows_or_of_bytes(size: Any) -> None:
    with pytest.raises(ValueError, match="split size: expected rows or bytes, 1 or more, found"):
        SplitSize(**size)


def test_row_groups_have_rows_and_sizes() -> None:
    with pytest.raises(ValueError, match="a: rows of 2 row groups, but sizes of 1"):
        RowGroups(path="a", num_rows=[1, 2], sizes_bytes=[1])
