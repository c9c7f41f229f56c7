"""Events that no row sees are left out of blocks, and no others."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from featstore.histories.needed import RowTimes, may_be_seen
from featstore.histories.visibility import complete, keys_of_rows
from featstore.ops.arrays import values_of
from featstore.ops.hashing import key_signs
from featstore.spec.model import EventHistory
from tests.histories.oracle import EVENTS, HISTORIES, ROWS, US, Event, batch_of, spec_of
from tests.histories.test_visibility import Row, events_of, ranges_of, seen_by_row


def times_of(rows: Sequence[Row]) -> RowTimes:
    users, times = (pa.array([row[i] for row in rows], of) for i, of in ((0, pa.string()), (1, US)))
    return RowTimes.of(keys_of_rows(key_signs(users), times), values_of(times))


def left_of(history: EventHistory, rows: RowTimes, events: Sequence[Event]) -> list[Event]:
    batch = batch_of(events)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    keys, places = complete(history, columns)
    known = np.maximum.reduce([values_of(columns[name])[places] for name in history.times])
    return [events[places[i]] for i in may_be_seen(history, rows, keys[places], known)]


@given(EVENTS, ROWS, HISTORIES, st.integers(0, 40), st.integers(0, 25))
def test_rows_see_the_same_of_what_is_left_of_each_block(
    events: list[Event], rows: list[Row], history: EventHistory, cut: int, cut_rows: int
) -> None:
    times = RowTimes.joined([times_of(rows[:cut_rows]), times_of(rows[cut_rows:])])
    left = [*left_of(history, times, events[:cut]), *left_of(history, times, events[cut:])]
    whole, of_left = events_of(history, events), events_of(history, left)
    expected, found = (ranges_of(history, each, rows) for each in (whole, of_left))
    assert seen_by_row(of_left, found) == seen_by_row(whole, expected)
    assert (found.end - found.begin).tolist() == (expected.end - expected.begin).tolist()


def test_what_is_left_is_what_rows_may_see() -> None:
    """Of a key without rows nothing, nothing from its last row on, and of what its first row knows
    the newest `max_len`.
    """
    history = spec_of(max_len=2).histories[0]
    events = [Event(user, at, None, "x", None) for user in "ab" for at in range(10)]
    left = left_of(history, times_of([("a", 5), ("a", 8), (None, 9), ("c", 3)]), events)
    assert [(event.user, event.at) for event in left] == [("a", at) for at in (3, 4, 5, 6, 7)]


def test_events_that_became_known_with_the_oldest_one_are_left() -> None:
    history = spec_of(max_len=2).histories[0]
    events = [Event("a", at, None, item, None) for item in "xyz" for at in (1, 2)]
    assert len(left_of(history, times_of([("a", 9)]), events)) == 3
    assert not left_of(history, times_of([]), events)
