"""Ranges of delivered rows, compared with sets of rows."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from featstore.base.intervals import united
from featstore.dispatch.plan import Split, as_ranges, compact, extent, part_extent

NUM_ROWS = 30
ROWS = st.sets(st.integers(0, NUM_ROWS - 1))
SPLIT = Split(path="a", num_rows=NUM_ROWS)


def _ranges(rows: Any) -> Any:
    return united((row, row + 1) for row in rows)


def _rows(ranges: Any) -> Any:
    return {row for first, end in ranges for row in range(first, end)}


@given(one=ROWS, other=ROWS)
def test_a_union_has_the_rows_of_both_in_ranges_that_do_not_touch(one: Any, other: Any) -> None:
    both = united([*_ranges(one), *_ranges(other)])
    assert _rows(both) == one | other
    assert all(a[1] < b[0] for a, b in itertools.pairwise(both))


@given(rows=ROWS)
def test_a_number_of_rows_equals_its_ranges(rows: Any) -> None:
    ranges = _ranges(rows)
    assert as_ranges(compact(ranges), NUM_ROWS) == ranges
    assert as_ranges("complete", NUM_ROWS) == ((0, NUM_ROWS),)


@given(rows=ROWS)
def test_a_split_and_its_parts_cover_exactly_the_remaining_rows(rows: Any) -> None:
    if len(rows) == NUM_ROWS:
        return
    ranges = _ranges(rows)
    whole = extent(SPLIT, ranges)
    ends = [*whole.cuts[1:], whole.end]
    parts = [
        part_extent(SPLIT, ranges, first, end) for first, end in zip(whole.cuts, ends, strict=False)
    ]
    left = _rows(
        [
            (whole.start_row, (*whole.cuts, whole.end)[0]),
            *((part.start_row, part.end) for part in parts),
        ]
    )
    assert left == set(range(NUM_ROWS)) - rows
