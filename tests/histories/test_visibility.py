"""Visibility: what each row sees equals what an oracle finds event by event."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from featstore.histories import visibility
from featstore.histories.visibility import (
    EventRanges,
    Events,
    ages,
    by_rank_and_time,
    keys_of_rows,
    ordered,
    visible,
)
from featstore.ops.arrays import values_of
from featstore.ops.columns import clean
from featstore.ops.hashing import key_signs
from featstore.spec.model import EventHistory
from featstore.spec.parse import load_spec
from tests.histories import oracle
from tests.histories.oracle import EVENTS, HISTORIES, ROWS, US, Event, batch_of, spec_of

Row = tuple[str | None, int | None]
CLICKS = spec_of().histories[0]


def events_of(history: EventHistory, events: Sequence[Event]) -> Events:
    batch = batch_of(events)
    columns = {
        name: clean(array, counts=Counter())
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    }
    return ordered(history, columns)


def ranges_of(history: EventHistory, events: Events, rows: Sequence[Row]) -> EventRanges:
    users, times = (pa.array([row[i] for row in rows], of) for i, of in ((0, pa.string()), (1, US)))
    return visible(events, history, keys_of_rows(key_signs(users), times), values_of(times))


def seen_by_row(events: Events, ranges: EventRanges) -> list[list[tuple[object, ...]]]:
    rows = list(zip(*(column.to_pylist() for column in _readable(events)), strict=True))
    return [
        [rows[i] for i in range(begin, end) if events.at[i] >= oldest]
        for begin, end, oldest in zip(ranges.begin, ranges.end, ranges.oldest, strict=True)
    ]


def _readable(events: Events) -> list[pa.Array]:
    """The columns with times as integers: those at the ends of int64 have no datetime."""
    columns = events.take(np.arange(len(events.order))).columns
    return [
        array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array for array in columns
    ]


def plain(event: Event) -> tuple[object, ...]:
    price = None if event.price is None or math.isnan(event.price) else event.price + 0.0
    return (event.user, event.at, event.arrived, event.item, price)


@given(HISTORIES, EVENTS, ROWS)
def test_each_row_sees_what_the_oracle_finds(
    history: EventHistory, events: list[Event], rows: list[Row]
) -> None:
    found = events_of(history, events)
    ranges = ranges_of(history, found, rows)
    expected = [[stored(event) for event in oracle.seen(events, *row, history)] for row in rows]
    assert [[stored_part(e) for e in row] for row in seen_by_row(found, ranges)] == expected
    begins = zip(ranges.begin, ranges.end, ranges.oldest, strict=True)
    assert all(begin == end or found.at[begin] >= oldest for begin, end, oldest in begins)
    complete = sum(oracle.is_complete(event, history) for event in events)
    assert complete == len(found.order) == len(found.known) == len(found.at) == found.first[-1]


def stored(event: Event) -> tuple[object, ...]:
    return stored_part(plain(event))


def stored_part(event: tuple[object, ...]) -> tuple[object, ...]:
    """What of an event may be stored: events that differ only in `arrived` may stand in any order."""
    return (event[0], event[1], *event[3:])


@given(HISTORIES, EVENTS, ROWS)
def test_no_event_of_the_rows_time_or_known_only_then_is_seen(
    history: EventHistory, events: list[Event], rows: list[Row]
) -> None:
    found = events_of(history, events)
    ranges = ranges_of(history, found, rows)
    for (user, as_of), begin, end in zip(rows, ranges.begin, ranges.end, strict=True):
        assert 0 <= end - begin <= history.max_len
        if begin < end:
            assert as_of is not None
            assert max(found.known[begin:end]) < as_of
            taken = found.take(np.arange(begin, end))
            assert set(taken.column("user").to_pylist()) == {user}


@given(HISTORIES, EVENTS, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_that_of_the_input(
    history: EventHistory, events: list[Event], random: object
) -> None:
    first = events_of(history, events)
    mixed = list(events)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    second = events_of(history, mixed)
    for name in ("user", "at", "item", "price"):
        one, other = (found.take(np.arange(len(found.order))) for found in (first, second))
        assert one.column(name).equals(other.column(name))
    assert np.array_equal(first.known, second.known)


@given(HISTORIES, EVENTS)
def test_blocks_too_wide_for_one_number_are_ordered_alike(
    history: EventHistory, events: list[Event]
) -> None:
    keys = np.array([len(event.user or "") for event in events], np.int64)
    times = np.array([event.at or 0 for event in events], np.int64)
    order = visibility._by_key_and_time(keys, times)
    expected = np.lexsort((times, keys))
    assert np.array_equal(keys[order], keys[expected])
    assert np.array_equal(times[order], times[expected])


def test_max_len_comes_before_window() -> None:
    """The last known events are kept first: one of them is too old, and none takes its place."""
    history = replace(CLICKS, logged_at="arrived", max_len=2, window=10)
    known = [(95, 96), (97, 98), (20, 99)]  # at, arrived
    events = [Event("a", at, arrived, str(at), None) for at, arrived in known]
    found = events_of(history, events)
    (row,) = seen_by_row(found, ranges_of(history, found, [("a", 100)]))
    assert [event[3] for event in row] == ["97"]


def test_a_late_event_is_seen_from_when_it_was_known_and_then_is_the_newest() -> None:
    history = replace(CLICKS, logged_at="arrived", max_len=10)
    events = [Event("a", 1, 50, "late", None), Event("a", 10, 10, "b", None)]
    found = events_of(history, events)
    rows = seen_by_row(found, ranges_of(history, found, [("a", t) for t in (10, 11, 50, 51)]))
    assert [[event[3] for event in row] for row in rows] == [[], ["b"], ["b"], ["b", "late"]]


def test_a_range_begins_with_an_event_inside_the_window() -> None:
    history = replace(CLICKS, logged_at="arrived", max_len=100, window=10)
    late = [Event("a", i % 7, 95, "old", None) for i in range(33)]
    found = events_of(history, [*late, Event("a", 96, 96, "new", None)])
    ranges = ranges_of(history, found, [("a", 100), ("a", 96), ("a", 97)])
    assert ranges.begin.tolist() == [33, 33, 33]
    assert ranges.end.tolist() == [34, 33, 34]


@given(
    st.lists(st.integers(-5, 5), max_size=40), st.booleans(), st.sampled_from([4, 2**17]), st.data()
)
def test_events_are_put_in_order_of_rank_and_time(
    times: list[int], is_sorted: bool, num_ranks: int, data: st.DataObject
) -> None:
    known = np.array(sorted(times) if is_sorted else times, np.int64)
    all_ranks = st.sampled_from([0, 1, num_ranks - 1])
    ranks = np.array(data.draw(st.lists(all_ranks, min_size=len(times), max_size=len(times))), int)
    found = by_rank_and_time(ranks, num_ranks, known)
    expected = np.lexsort((known, ranks))
    assert sorted(found.tolist()) == list(range(len(times)))
    assert ranks[found].tolist() == ranks[expected].tolist()
    assert known[found].tolist() == known[expected].tolist()


def test_ages_are_those_of_time_since() -> None:
    as_of, at = (pa.array(values, US) for values in ([2_500_000, 0, 2**63 - 1], [0, 1, -(2**63)]))
    assert (
        str(ages(as_of, at, CLICKS.derived[0]).to_pylist()) == "[2.5, -9.999999974752427e-07, nan]"
    )


@given(st.permutations(range(6)))
def test_ties_of_every_type_are_ordered_nulls_first(order: list[int]) -> None:
    inputs = {"user": "long", "at": "timestamp", "n": "long", "b": "boolean", "t": "timestamp"}
    slots = [
        {"slot": 300 + i, "name": f"c{i}", "op": "hash", "of": name}
        for i, name in enumerate(("t", "b", "n"))  # the order is that of `inputs`
    ]
    document = oracle.document_of(inputs=inputs, slots=slots)
    history = load_spec(
        document | {"inputs": {**inputs, "ts": "timestamp", "item": "string"}}
    ).histories[0]
    rows = [
        (None, None, None),
        (None, None, 1),
        (None, False, 0),
        (None, True, 0),
        (-1, True, 5),
        (2, None, 0),
    ]
    mixed = [rows[i] for i in order]
    n, b, t = zip(*mixed, strict=True)
    columns = {
        "user": pa.array([7] * 6),
        "at": pa.array([0] * 6, US),
        "n": pa.array(n, pa.int64()),
        "b": pa.array(b, pa.bool_()),
        "t": pa.array(t, US),
    }
    found = ordered(history, columns)
    assert [mixed[i] for i in found.order.tolist()] == rows
