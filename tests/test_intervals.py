import itertools

from hypothesis import given
from hypothesis import strategies as st

from featstore.base.intervals import Span, united

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def members(intervals: list[Span]) -> set[int]:
    return {number for first, end in intervals for number in range(first, end)}


@given(INTERVALS)
def test_a_union_has_the_members_of_all_in_order_and_without_touching(
    intervals: list[Span],
) -> None:
    union = list(united(intervals))
    assert members(union) == members(intervals)
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(union))


@given(INTERVALS, st.integers(0, 10))
def test_holes_up_to_a_size_are_filled_and_larger_ones_are_not(
    intervals: list[Span], hole: int
) -> None:
    union = list(united(intervals, hole))
    assert members(union) >= members(intervals)
    assert all(first - end > hole for (_, end), (first, _) in itertools.pairwise(union))
    filled = sorted(members(union) - members(intervals))
    assert (
        not filled
        or max(len(run) for run in "".join("x" if n in filled else " " for n in range(41)).split())
        <= hole
    )
