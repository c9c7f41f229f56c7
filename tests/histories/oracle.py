"""Which events a row sees, event by event in plain Python, as docs/design/histories.md says it."""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from featstore.spec.model import EventHistory, Spec
from featstore.spec.parse import load_spec

US = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Event:
    """An event; times in microseconds."""

    user: str | None
    at: int | None
    arrived: int | None
    item: str | None
    price: float | None


def seen(
    events: Iterable[Event], user: str | None, as_of: int | None, history: EventHistory
) -> list[Event]:
    """The events that a row sees, in order."""
    if user is None or not is_time(as_of):
        return []
    assert as_of is not None
    mine = [event for event in events if event.user == user and is_complete(event, history)]
    mine.sort(key=lambda event: order(event, history))
    end = sum(known(event, history) < as_of for event in mine)
    begin = max(0, end - history.max_len)
    oldest = -math.inf if history.window is None else as_of - history.window
    return [event for event in mine[begin:end] if time_of(event) >= oldest]


def order(event: Event, history: EventHistory) -> tuple[Any, ...]:
    price = None if event.price is None or math.isnan(event.price) else event.price
    return (known(event, history), event.at, _nulls_first(event.item), _nulls_first(price))


def known(event: Event, history: EventHistory) -> int:
    if history.logged_at != "arrived":
        return time_of(event)
    assert event.arrived is not None
    return max(time_of(event), event.arrived)


def time_of(event: Event) -> int:
    assert event.at is not None
    return event.at


def is_complete(event: Event, history: EventHistory) -> bool:
    has_times = is_time(event.at) and (history.logged_at != "arrived" or is_time(event.arrived))
    return event.user is not None and has_times


def is_time(time: int | None) -> bool:
    return time is not None and -(2**62) < time < 2**62


def _nulls_first(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)


def spec_of(**changes: Any) -> Spec:
    """A spec with one history, `clicks`, of events as above."""
    return load_spec(document_of(**changes))


def document_of(**changes: Any) -> dict[str, Any]:
    """The same as a document; `changes` are those of the history."""
    history = {
        "name": "clicks",
        "key": "user",
        "as_of": "ts",
        "at": "at",
        "max_len": 3,
        "inputs": {
            "user": "string",
            "at": "timestamp",
            "arrived": "timestamp",
            "item": "string",
            "price": "double",
        },
        "slots": [
            {"slot": 301, "name": "clicks_item", "op": "hash", "of": "item", "share_slot": 1},
            {"slot": 302, "name": "clicks_price", "op": "identity", "of": "price"},
            {"slot": 303, "name": "clicks_age", "op": "time_since", "of": "at", "unit": "second"},
        ],
    }
    return {
        "spec": 1,
        "inputs": {"user": "string", "ts": "timestamp", "item": "string"},
        "keep": ["ts"],
        "slots": [{"slot": 1, "name": "item", "op": "hash", "of": "item"}],
        "histories": [history | changes],
    }


def batch_of(events: Iterable[Event]) -> pa.RecordBatch:
    """The events as raw columns."""
    columns = list(zip(*map(astuple, events), strict=True)) or [()] * 5
    types = (pa.string(), US, US, pa.string(), pa.float64())
    arrays = [pa.array(values, of) for values, of in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["user", "at", "arrived", "item", "price"])


# Few values, so that keys, times and whole events are often equal, the ends of int64, and the last
# times.
ENDS = (-(2**63), 2**63 - 1, 2**62, 2**62 - 1, -(2**62) + 1)
USERS = st.sampled_from(["a", "b", "", None])
TIMES = st.one_of(st.integers(0, 12), st.sampled_from(ENDS), st.none())
ITEMS = st.sampled_from(["x", "y", "é", "", None])
PRICES = st.sampled_from([1.5, 0.0, -0.0, -2.0, math.nan, None])
EVENTS = st.lists(st.builds(Event, USERS, TIMES, TIMES, ITEMS, PRICES), max_size=40)
ROWS = st.lists(st.tuples(USERS, TIMES), max_size=25)
HISTORIES = st.builds(
    lambda logged_at, max_len, window: replace(
        spec_of().histories[0], logged_at=logged_at, max_len=max_len, window=window
    ),
    st.sampled_from([None, "at", "arrived"]),
    st.sampled_from([1, 2, 3, 50]),
    st.sampled_from([None, 1, 4, 2**63 - 1]),
)
