import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.intervals import Span, capped_cuts, coalesce, covers, missing, num_bytes, united

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


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair))),
    max_size=8,
)


def _bytes(spans: Any) -> Any:
    return {at for first, end in spans for at in range(first, end)}


@given(spans=SPANS)
def test_a_union_is_the_same_bytes_in_spans_that_neither_touch_nor_are_empty(spans: Any) -> None:
    merged = united(spans)
    assert _bytes(merged) == _bytes(spans)
    assert num_bytes(merged) == len(_bytes(spans))
    assert all(first < end for first, end in merged)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(merged))


@given(wanted=SPANS, held=SPANS)
def test_what_is_missing_is_what_is_wanted_and_not_held(wanted: Any, held: Any) -> None:
    assert _bytes(missing(wanted, held)) == _bytes(wanted) - _bytes(held)
    assert covers(held, wanted) == (_bytes(wanted) <= _bytes(held))


@given(wanted=SPANS, hole_bytes=st.integers(0, 20), request_bytes=st.integers(1, 30))
def test_requests_cover_what_is_wanted_in_order_and_only_bridge_small_holes(
    wanted: Any, hole_bytes: int, request_bytes: int
) -> None:
    requests = coalesce(wanted, hole_bytes=hole_bytes, request_bytes=request_bytes)
    assert _bytes(requests) >= _bytes(wanted)
    assert all(0 < end - first <= request_bytes for first, end in requests)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(requests))
    extra = united((at, at + 1) for at in _bytes(requests) - _bytes(wanted))
    assert all(end - first <= hole_bytes for first, end in extra)
    gaps = [
        right[0] - left[1]
        for left, right in zip(united(requests), united(requests)[1:], strict=False)
    ]
    assert all(gap > hole_bytes for gap in gaps)


@pytest.mark.parametrize(
    ("hole_bytes", "request_bytes", "requests"),
    [
        (0, 100, ((0, 10), (12, 20), (50, 60))),
        (2, 100, ((0, 20), (50, 60))),
        (30, 100, ((0, 60),)),
        (30, 25, ((0, 25), (25, 50), (50, 60))),
    ],
)
def test_requests_by_hole_limit_and_size(
    hole_bytes: int, request_bytes: int, requests: Any
) -> None:
    assert (
        coalesce([(12, 20), (0, 10), (50, 60)], hole_bytes=hole_bytes, request_bytes=request_bytes)
        == requests
    )


@given(
    st.lists(st.integers(0, 5), max_size=12),
    st.integers(1, 9),
    st.integers(1, 5),
    st.one_of(st.none(), st.tuples(st.integers(1, 5), st.integers(0, 12))),
    st.sampled_from([np.int32, np.int64]),
    st.integers(0, 3),
)
def test_batches_end_where_the_next_row_does_not_fit(
    lengths: list[int],
    max_values: int,
    batch_size: int,
    begun: tuple[int, int] | None,
    dtype: Any,
    before: int,
) -> None:
    """Row by row, also after rows of a batch that has begun."""
    cuts = [0]
    num_rows, num_values = begun or (0, 0)
    num_rows = min(num_rows, batch_size - 1)
    started = (num_rows, num_values if num_rows else 0)
    num_rows, num_values = started
    for row, length in enumerate(lengths):
        if num_rows and (num_rows == batch_size or num_values + length > max_values):
            cuts.append(row)
            num_rows = num_values = 0
        num_rows, num_values = num_rows + 1, num_values + length
    cuts += [len(lengths)] if lengths else []
    offsets = (before + np.cumsum([0, *lengths])).astype(dtype)
    assert capped_cuts(offsets, max_values, batch_size, started) == cuts
