"""Trimming: every row finds its own events in its holder's list, and no list has more than needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.histories.trimming import MAX_EVENTS, Trimmed, seen_only, trim
from featstore.ops.arrays import Integers
from featstore.ops.lists import offsets_from, positions_of

NUM_EVENTS = 8  # of a key
KEYS = (7, 3, 12, 5)


@st.composite
def row_groups(draw: st.DrawFn) -> tuple[Integers, Integers, Integers]:
    """Keys, begins and ends of the rows of a row group; 0 is no key."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(0, NUM_EVENTS), st.integers(0, NUM_EVENTS)),
            max_size=30,
        )
    )
    keys = [0 if key == 4 else KEYS[key] for key, *_ in rows]
    firsts = [0 if key == 4 else key * NUM_EVENTS for key, *_ in rows]
    begin = [first + min(a, b) for first, (_, a, b) in zip(firsts, rows, strict=True)]
    end = [
        first + (min(a, b) if key == 4 else max(a, b))
        for first, (key, a, b) in zip(firsts, rows, strict=True)
    ]
    return tuple(np.array(values, np.int64) for values in (keys, begin, end))  # type: ignore[return-value]


def lists_of(trimmed: Trimmed) -> tuple[list[int], Integers]:
    """The list column of the events' positions: values and offsets."""
    return (
        positions_of(trimmed.starts, trimmed.counts).tolist(),
        offsets_from(trimmed.counts),
    )


def rows_of(trimmed: Trimmed) -> list[list[int]]:
    """What each row reads from its holder's list."""
    values, offsets = lists_of(trimmed)
    found = []
    for row, (end, length, back) in enumerate(
        zip(trimmed.end.tolist(), trimmed.length.tolist(), trimmed.back.tolist(), strict=True)
    ):
        assert 0 <= back <= row
        held = values[offsets[row - back] : offsets[row - back + 1]]
        assert 0 <= length <= end <= len(held)
        found.append(held[end - length : end])
    return found


@given(row_groups())
def test_each_row_reads_its_events_from_the_first_row_of_its_key(
    group: tuple[Integers, Integers, Integers],
) -> None:
    keys, begin, end = group
    trimmed = trim(keys, begin, end)
    assert rows_of(trimmed) == [
        list(range(b, e)) for b, e in zip(begin.tolist(), end.tolist(), strict=True)
    ]
    for row, key in enumerate(keys.tolist()):
        holder = row if key == 0 else keys.tolist().index(key)
        assert row - trimmed.back[row] == holder
        if row != holder:
            assert trimmed.counts[row] == 0


@given(row_groups())
def test_a_list_spans_what_its_rows_see_and_nothing_beyond(
    group: tuple[Integers, Integers, Integers],
) -> None:
    keys, begin, end = group
    trimmed = trim(keys, begin, end)
    for row in np.flatnonzero(trimmed.back == 0).tolist():
        ranges = [
            (b, e)
            for key, b, e in zip(keys.tolist(), begin.tolist(), end.tolist(), strict=True)
            if key == keys[row] != 0 and b < e
        ]
        span = [min(b for b, _ in ranges), max(e for _, e in ranges)] if ranges else [0, 0]
        assert [trimmed.starts[row], trimmed.starts[row] + trimmed.counts[row]] == span


@given(row_groups(), st.data())
def test_rows_that_are_left_read_the_same_after_their_lists_are_trimmed_again(
    group: tuple[Integers, Integers, Integers], data: st.DataObject
) -> None:
    keys, begin, end = group
    trimmed = trim(keys, begin, end)
    left = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys))), bool
    )
    values, offsets = lists_of(trimmed)
    holders = np.arange(len(keys)) - trimmed.back
    stops = offsets[holders] + trimmed.end
    again = trim((holders + 1)[left], (stops - trimmed.length)[left], stops[left])
    found = [[values[i] for i in row] for row in rows_of(again)]
    assert found == [row for row, is_left in zip(rows_of(trimmed), left, strict=True) if is_left]


@given(row_groups())
def test_events_that_no_row_sees_are_left_out_and_each_row_has_the_same(
    group: tuple[Integers, Integers, Integers],
) -> None:
    _, begin, end = group
    seen, begins, ends = seen_only(begin, end, NUM_EVENTS * len(KEYS))
    ranges = [list(range(b, e)) for b, e in zip(begin.tolist(), end.tolist(), strict=True)]
    assert seen.tolist() == sorted(set[int]().union(*ranges))
    found = [seen[b:e].tolist() for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
    assert found == ranges


def test_events_between_the_ranges_of_a_key_are_kept() -> None:
    keys = np.array([5, 5])
    trimmed = trim(keys, np.array([0, 90]), np.array([10, 100]))
    assert trimmed.counts.tolist() == [100, 0]
    assert trimmed.end.tolist() == [10, 100]
    assert trimmed.length.tolist() == [10, 10]


def test_a_row_that_sees_nothing_does_not_widen_the_list() -> None:
    keys = np.array([5, 5, 5])
    trimmed = trim(keys, np.array([0, 90, 200]), np.array([0, 100, 200]))
    assert (trimmed.starts[0], trimmed.counts.tolist()) == (90, [10, 0, 0])
    assert trimmed.end.tolist() == [0, 10, 0]


def test_more_events_than_a_list_column_holds_are_refused() -> None:
    keys, begin = np.array([5, 6]), np.array([0, MAX_EVENTS])
    with pytest.raises(InputError, match=r"at most 2,147,483,647 events .* 2 rows: lower `output"):
        trim(keys, begin, np.array([MAX_EVENTS, MAX_EVENTS + 1]))


def test_spans_of_two_keys_that_overlap_are_refused() -> None:
    keys, begin = np.array([5, 6]), np.array([0, 9])
    with pytest.raises(
        ValueError, match=r"expected the events of each key side by side, found 0-10"
    ):
        trim(keys, begin, np.array([10, 20]))
