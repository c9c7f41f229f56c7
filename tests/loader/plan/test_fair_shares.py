"""Shares of an epoch: no worker claims more than its own, however early it begins."""

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.loader.plan.ordering import claims_of_share, splits_of_shares, uneven_shares


def claim(num_rows: int, start_row: int = 0) -> Claim:
    split = Split(path="a", num_rows=num_rows)
    return Claim(index=0, split=split, fence=1, start_row=start_row, end_row=num_rows)


class Plan:
    """Splits that workers claim one by one, in rounds of fair shares."""

    def __init__(self, sizes: list[int], num_workers: int) -> None:
        self.sizes, self.num_workers, self.cursor = sizes, num_workers, 0

    def claims(self) -> Iterator[Claim]:
        while self.cursor < len(self.sizes):
            self.cursor += 1
            yield claim(self.sizes[self.cursor - 1])

    def round(self, num_left: int) -> list[Claim]:
        num_rows, num_splits = sum(self.sizes), len(self.sizes)
        share_rows = num_rows * num_left // (num_splits * self.num_workers)
        return list(claims_of_share(self.claims(), share_rows, num_rows // num_splits))


@given(num_splits=st.integers(1, 60), num_workers=st.integers(1, 9), data=st.data())
def test_equal_splits_are_shared_to_within_one_whoever_begins_first(
    num_splits: int, num_workers: int, data: st.DataObject
) -> None:
    plan, shares = Plan([10] * num_splits, num_workers), [0] * num_workers
    # Each reads its first share to the end before another has begun.
    for worker in data.draw(st.permutations(range(num_workers))):
        shares[worker] += len(plan.round(num_splits))
    # At one pace, those with the fewest rows are the first to come for more.
    while plan.cursor < num_splits:
        worker = min(range(num_workers), key=lambda worker: shares[worker])
        shares[worker] += len(plan.round(num_splits - plan.cursor))
    assert (min(shares), max(shares)) == splits_of_shares(num_splits, num_workers)


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=60), num_workers=st.integers(1, 9))
def test_a_share_of_unequal_splits_exceeds_a_fair_one_by_less_than_a_split(
    sizes: list[int], num_workers: int
) -> None:
    plan = Plan(sizes, num_workers)
    for _ in range(num_workers):
        claimed = [one.end_row for one in plan.round(len(sizes))]
        assert sum(claimed[:-1]) <= sum(sizes) / num_workers


def test_only_rows_that_are_left_of_a_split_count_and_no_claim_is_asked_for_in_vain() -> None:
    asked = iter([claim(10, start_row=8), claim(10), claim(10), claim(10)])
    assert len(list(claims_of_share(asked, 22, 10))) == 3
    assert len(list(asked)) == 1


def test_a_share_that_is_smaller_than_a_split_is_one_split() -> None:
    assert len(list(claims_of_share(map(claim, [10, 10]), 0, 10))) == 1
    assert list(claims_of_share(islice(map(claim, [10]), 0), 0, 10)) == []


def test_shares_that_differ_by_more_than_a_tenth_are_named_with_what_to_do() -> None:
    assert uneven_shares(7, 2) == (
        "7 splits for 2 workers that train in step: shares of 3 to 4 splits, so up to 25% of a "
        "worker's steps have no rows of its own; 20 splits or more are even enough: set "
        "dispatch.split_rows, which cuts files at their row groups, or choose order static"
    )
    assert "shares of 0 to 1 splits, so up to 100%" in uneven_shares(7, 8)


@pytest.mark.parametrize(("num_splits", "num_workers"), [(8, 2), (19, 2), (80, 8), (3, 1), (0, 2)])
def test_nothing_is_said_of_shares_that_are_even_enough(num_splits: int, num_workers: int) -> None:
    assert uneven_shares(num_splits, num_workers) == ""
