"""Histories of single rows, against the oracle."""

import datetime
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError, InputError
from featstore.extraction.fit import fit_spec
from featstore.extraction.sample import lint_sample
from featstore.extraction.units.extractor import EventExtractor, Extractor
from featstore.ops.hashing import sign, value_hash
from featstore.spec.lint import lint
from featstore.spec.lock import lock_url, write_lock
from featstore.spec.meaning import make_lock
from featstore.spec.parse import load_spec
from tests.histories import oracle
from tests.histories.oracle import Event, spec_of

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TIMES = st.one_of(
    st.integers(0, 12_000_000), st.integers(0, 6).map(lambda n: n * 2_000_000), st.none()
)
EVENTS = st.lists(
    st.builds(Event, oracle.USERS, TIMES, TIMES, oracle.ITEMS, oracle.PRICES), max_size=30
)
CHANGES = st.fixed_dictionaries(
    {"max_len": st.sampled_from([1, 3, 100])},
    optional={"logged_at": st.just("arrived"), "window": st.sampled_from(["1s", "5s", "1d"])},
)


def time_of(after_us: int | None) -> datetime.datetime | None:
    return None if after_us is None else START + datetime.timedelta(microseconds=after_us)


def raw(event: Event) -> dict[str, object]:
    times = {"at": time_of(event.at), "arrived": time_of(event.arrived)}
    return {"user": event.user, "item": event.item, "price": event.price, **times}


def item_sign(item: str | None) -> int:
    return int(sign(1, value_hash(pa.array([item], pa.string())))[0].as_py())


@given(CHANGES, EVENTS, oracle.USERS, TIMES)
def test_a_row_has_the_events_of_the_oracle(
    changes: dict[str, Any], events: list[Event], user: str | None, as_of: int | None
) -> None:
    spec = spec_of(**changes)
    row = Extractor(spec).one(
        {"user": user, "ts": time_of(as_of), "item": "x"}, {"clicks": list(map(raw, events))}
    )
    seen = oracle.seen(events, user, as_of, spec.histories[0])
    assert list(row) == ["item", "ts", "clicks_item", "clicks_price", "clicks_age"]
    assert row["item"] == item_sign("x")
    assert row["clicks_item"] == [item_sign(event.item) for event in seen]
    prices = [math.nan if event.price is None else event.price + 0.0 for event in seen]
    assert str(row["clicks_price"]) == str(prices)
    expected = [((as_of or 0) - oracle.time_of(event)) / 1e6 for event in seen]
    assert row["clicks_age"] == pytest.approx(expected, rel=1e-6)


def rows_and_events() -> tuple[dict[str, object], list[dict[str, object]]]:
    events = [raw(Event("u", n * 1_000_000, None, f"i{n}", 1.0)) for n in range(5)]
    return {"user": "u", "ts": time_of(3_500_000), "item": "x"}, events


def test_an_age_is_the_time_before_the_row() -> None:
    row, events = rows_and_events()
    assert Extractor(spec_of()).one(row, {"clicks": events})["clicks_age"] == [2.5, 1.5, 0.5]


def test_values_of_other_types_are_read_as_those_of_a_column() -> None:
    row, events = rows_and_events()
    expected = Extractor(spec_of()).one(row, {"clicks": events})
    other = [
        {**event, "item": str(event["item"]).encode(), "price": np.float64(1.0)} for event in events
    ]
    mixed = [*other[:2], {**events[2], "price": 1}, *events[3:]]
    extractor = Extractor(spec_of())
    assert extractor.one(row, {"clicks": other}) == expected
    assert extractor.one(row, {"clicks": mixed}) == expected


def test_a_value_that_cannot_be_read_is_told_with_its_event() -> None:
    row, events = rows_and_events()
    events[2]["at"] = "yesterday"
    with pytest.raises(
        InputError, match=r"^events of clicks, row 2: column 'at': expected timestamp, found 'yest"
    ):
        Extractor(spec_of()).one(row, {"clicks": events})


def test_a_missing_column_of_events_is_named() -> None:
    row, events = rows_and_events()
    del events[1]["item"]
    with pytest.raises(InputError, match=r"^missing input column: expected 'item'"):
        Extractor(spec_of()).one(row, {"clicks": events})


def test_events_of_all_histories_are_needed_and_no_others() -> None:
    row, _ = rows_and_events()
    extractor = Extractor(spec_of())
    with pytest.raises(
        InputError,
        match=r"^events: expected those of the history 'clicks', found nothing; give \[\]",
    ):
        extractor.one(row)
    with pytest.raises(InputError, match=r"^events: expected those of clicks, found 'click'"):
        extractor.one(row, {"click": [], "clicks": []})
    plain = load_spec(
        {
            "spec": 1,
            "inputs": {"u": "string"},
            "slots": [{"slot": 1, "name": "u", "op": "hash", "of": "u"}],
        }
    )
    with pytest.raises(InputError, match=r"^events: expected none, found 'clicks'"):
        Extractor(plain).one({"u": "a"}, {"clicks": []})


def test_a_row_needs_its_key_and_time() -> None:
    row, _ = rows_and_events()
    for name in ("user", "ts"):
        left = {key: value for key, value in row.items() if key != name}
        with pytest.raises(InputError, match=f"^missing input column: expected '{name}'"):
            Extractor(spec_of()).one(left, {"clicks": []})


def test_what_is_dropped_of_events_is_counted_with_the_history() -> None:
    row, events = rows_and_events()
    events[0]["user"], events[1]["price"] = None, math.nan
    extractor = Extractor(spec_of())
    extractor.one(row, {"clicks": events})
    assert extractor.counts == {"clicks.events without key or time": 1, "clicks.price: nan": 1}


def test_events_that_the_spec_skips_are_left_out() -> None:
    row, events = rows_and_events()
    events[2]["item"] = b"\xff"
    inputs = {
        "user": "string",
        "at": "timestamp",
        "arrived": "timestamp",
        "item": {"type": "string", "on_error": "skip"},
        "price": "double",
    }
    found = Extractor(spec_of(inputs=inputs)).one(row, {"clicks": events})
    assert found["clicks_age"] == [3.5, 2.5, 0.5]


def test_a_batch_of_events_is_put_in_order_for_the_extractor_to_take() -> None:
    (history,) = spec_of().histories
    extractor: EventExtractor = pickle.loads(pickle.dumps(EventExtractor(history)))
    events = [Event(user, at, None, f"{user}{at}", 0.5) for at in (3, 1, 2) for user in "ab"]
    found = extractor.take_events(oracle.batch_of(events))
    items = found.take(np.arange(6)).column("item").to_pylist()
    assert items in (["a1", "a2", "a3", "b1", "b2", "b3"], ["b1", "b2", "b3", "a1", "a2", "a3"])
    values = extractor(found.take(np.array([4, 1])))
    assert values.column("clicks_item").to_pylist() == [item_sign(items[4]), item_sign(items[1])]
    assert found.at.tolist() == [1, 2, 3, 1, 2, 3]


def test_slots_of_rows_are_explained_sampled_and_fitted_beside_histories(tmp_path: Path) -> None:
    row, _ = rows_and_events()
    slots = [
        {"slot": 1, "name": "item", "op": "hash", "of": "item"},
        {"slot": 2, "name": "scaled", "op": "standardize", "of": "price"},
    ]
    inputs = {"user": "string", "ts": "timestamp", "item": "string", "price": "double"}
    document = oracle.document_of(logged_at="arrived") | {"inputs": inputs, "slots": slots}
    raw_url, spec_url = str(tmp_path / "raw.parquet"), str(tmp_path / "spec.yaml")
    pq.write_table(pa.Table.from_pylist([{**row, "price": 1.0}, {**row, "price": 3.0}]), raw_url)
    Path(spec_url).write_text(json.dumps(document))
    fitted = fit_spec(load_spec(spec_url), raw_url)
    assert fitted.fitted["scaled"].params == {"mean": 2.0, "stddev": 1.0}
    write_lock(make_lock(fitted), lock_url(spec_url))
    assert lint_sample(lint(spec_url), raw_url).ok
    explained = Extractor(fitted).explain({**row, "price": 1.0})
    assert explained.of("scaled").steps[-1].value == -1.0


def test_no_batch_of_rows_is_extracted_without_its_histories() -> None:
    batch = pa.RecordBatch.from_pylist([{"user": "u", "ts": START, "item": "x"}])
    with pytest.raises(
        ConfigError, match=r"^histories: expected none for a batch of rows.*found clicks; .*`Ex"
    ):
        Extractor(spec_of())(batch)


def test_prices_of_events_may_be_text() -> None:
    def lists_of(price: dict[str, Any], texts: list[Any]) -> dict[str, object]:
        spec = load_spec(
            {
                "spec": 1,
                "inputs": {"user": "string", "at": "timestamp"},
                "keep": ["user", "at"],
                "slots": [],
                "histories": [
                    {
                        "name": "paid",
                        "key": "user",
                        "as_of": "at",
                        "at": "at",
                        "max_len": 5,
                        "inputs": {"user": "string", "at": "timestamp", "price": price},
                        "slots": [{"slot": 1, "name": "prices", "op": "identity", "of": "price"}],
                    }
                ],
            }
        )
        events = [{"user": "u", "at": time_of(at), "price": text} for at, text in enumerate(texts)]
        row = {"user": "u", "at": time_of(1_000)}
        return Extractor(spec).one(row, {"paid": events})

    as_text = {"type": "double", "text": True}
    found = lists_of(as_text, ["1.50", " 2", "x", 3.0])
    assert repr(found["prices"]) == "[1.5, 2.0, nan, 3.0]"
    assert lists_of({**as_text, "on_error": "skip"}, ["1.50", "x"])["prices"] == [1.5]
    with pytest.raises(InputError, match="expected double, found "):
        lists_of({"type": "double"}, ["1.50"])
