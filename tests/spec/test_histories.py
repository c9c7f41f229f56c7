"""Histories in a spec: what they are read as, what is wrong with them, and what they leave alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest

from featstore.base.errors import SpecError
from featstore.base.schema import SlotKind
from featstore.spec.diff import diff
from featstore.spec.graph import build_graph
from featstore.spec.json_schema import spec_schema
from featstore.spec.lint import find_errors, lint
from featstore.spec.lock import Lock
from featstore.spec.meaning import make_lock
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.spec.show import show

ITEM = {"slot": 301, "name": "clicks_item", "op": "hash", "of": "item", "share_slot": 1}
AGE = {"slot": 303, "name": "clicks_age", "op": "time_since", "of": "at", "unit": "hour"}
INPUTS = {"user": "string", "at": "timestamp", "arrived": "timestamp", "item": "string"}
CLICKS: dict[str, Any] = {
    "name": "clicks",
    "key": "user",
    "as_of": "ts",
    "at": "at",
    "logged_at": "arrived",
    "max_len": 2000,
    "window": "90d",
    "inputs": INPUTS,
    "slots": [ITEM, AGE],
}
DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string", "ts": "timestamp", "item": "string"},
    "keep": ["ts"],
    "slots": [{"slot": 1, "name": "item", "op": "hash", "of": "item"}],
}
VALIDATOR = jsonschema.Draft7Validator(spec_schema())


def document(history: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The document with its history changed; options with the value None are left out of it."""
    changed = CLICKS | dict(history or {})
    kept = {name: value for name, value in changed.items() if value is not None}
    return DOCUMENT | {"histories": [kept]} | changes


def spec_of(history: Mapping[str, Any] | None = None, **changes: Any) -> Spec:
    return load_spec(document(history, **changes))


def slot(**changes: Any) -> dict[str, Any]:
    return {"slot": 302, "name": "clicks_other", "op": "hash", "of": "item"} | changes


def with_slots(*slots: Mapping[str, Any], **inputs: str) -> dict[str, Any]:
    return {"slots": [ITEM, *slots], "inputs": INPUTS | inputs}


def test_a_history_becomes_its_model() -> None:
    (clicks,) = spec_of().histories
    assert (clicks.name, clicks.key, clicks.as_of, clicks.at) == ("clicks", "user", "ts", "at")
    assert (clicks.logged_at, clicks.max_len) == ("arrived", 2000)
    assert clicks.window == 90 * 86_400_000_000
    assert clicks.inputs["at"] == pa.timestamp("us", tz="UTC")
    assert [node.name for node in clicks.events.nodes] == ["clicks_item"]
    assert [node.name for node in clicks.derived] == ["clicks_age"]
    assert clicks.times == ("at", "arrived")
    assert clicks.columns == tuple(
        f"clicks_{what}" for what in ("end", "length", "back", "key", "at")
    )


def test_logged_at_and_window_may_be_left_out() -> None:
    (clicks,) = spec_of(
        {"logged_at": None, "window": None, "inputs": {**INPUTS, "arrived": "string"}}
    ).histories
    assert (clicks.logged_at, clicks.window, clicks.times) == (None, None, ("at",))
    assert load_spec(document() | {"histories": None}).histories == ()


def test_slots_of_events_are_one_value_for_each_event() -> None:
    inner = {"name": "low", "op": "lower", "of": "item", "store": False}
    spec = spec_of(
        with_slots(inner, slot(of="low"), slot(slot=304, name="p", op="log1p", of="n"), n="long")
    )
    schema = build_graph(spec.histories[0].events).schema
    found = [(each.number, each.name, each.kind, each.shape, each.share_slot) for each in schema]
    assert found == [
        (301, "clicks_item", SlotKind.ID, (), 1),
        (302, "clicks_other", SlotKind.ID, (), None),
        (304, "p", SlotKind.FLOAT, (), None),
    ]
    assert build_graph(spec).schema.names == ("item",)


def test_event_columns_may_be_optional_and_say_what_malformed_values_cause() -> None:
    inputs = {**INPUTS, "item": {"type": "string", "optional": True, "on_error": "skip"}}
    (clicks,) = spec_of({"inputs": inputs}, on_error="fail").histories
    assert clicks.events.optional == frozenset({"item"})
    assert clicks.events.on_error == dict.fromkeys(("user", "at", "arrived"), "fail") | {
        "item": "skip"
    }


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "my clicks"}, r"^histories\[0\]\.name: expected a name of letters"),
    ({"key": None}, r"^histories\[0\]\.key: expected text, found None"),
    ({"keys": "user"}, r"^histories\[0\]\.keys: expected one of name, key, .*; did you mean 'key'"),
    ({"max_len": 0}, r"^histories\[0\]\.max_len: expected an integer, 1 to 2147483647, found 0"),
    ({"max_len": None}, r"^histories\[0\]\.max_len: expected an integer, .*, found None"),
    ({"window": "90"}, r"^histories\[0\]\.window: expected a time such as .*90d.*, found '90'"),
    ({"window": 90}, r"^histories\[0\]\.window: expected a time such as .*, found 90"),
    ({"window": "0d"}, r"^histories\[0\]\.window: expected a time"),
    (
        {"slots": []},
        r"^histories\[0\]\.slots: expected at least one slot with a number, found none",
    ),
    ({"slots": None}, r"^histories\[0\]\.slots: expected a list, found None"),
    ({"inputs": None}, r"^histories\[0\]\.inputs: expected a mapping, found None"),
    (
        {"as_of": "user"},
        r"^histories\[0\]\.as_of: expected an input that `keep` stores, found 'user'",
    ),
    ({"as_of": "tss"}, r"^histories\[0\]\.as_of: .*`keep`.*; did you mean 'ts'"),
    (
        {"at": "att"},
        r"^histories\[0\]\.at: expected an event column, found 'att'; did you mean 'at'",
    ),
    ({"at": "item"}, r"^histories\[0\]\.at: expected a timestamp, found 'item', a string"),
    ({"logged_at": "ts"}, r"^histories\[0\]\.logged_at: expected an event column, found 'ts'"),
    ({"logged_at": "item"}, r"^histories\[0\]\.logged_at: expected a timestamp, found 'item'"),
    ({"key": "arrived"}, r"^histories\[0\]\.key: expected an input, which the rows have too"),
    ({"key": "ts"}, r"^histories\[0\]\.key: expected an event column, which the events have too"),
    (
        {"inputs": {**INPUTS, "user": "long"}},
        r"^histories\[0\]\.key: expected one type .*, found 'user', a string of the rows and a long of the events",
    ),
    (
        {"inputs": {**INPUTS, "item": "list<string>"}},
        r"^histories\[0\]\.inputs\.item: expected a type of one value, .*, found 'list<string>'",
    ),
    (
        {"slots": [{**ITEM, "of": "itm"}]},
        r"^histories\[0\]\.slots\[0\]\.of: .*; did you mean 'item'",
    ),
    (
        {"slots": [{**ITEM, "of": "ts"}]},
        r"^histories\[0\]\.slots\[0\]\.of: expected an input column",
    ),
    (
        with_slots(slot(op="split", separator=",")),
        r"^histories\[0\]\.slots\[1\]\.op: expected an operator with one value for each event, found 'split', a list<string>",
    ),
    (
        with_slots(slot(op="standardize", of="n"), n="long"),
        r"^histories\[0\]\.slots\[1\]\.op: expected an operator without a fit or a file",
    ),
    (
        with_slots(slot(op="vocabulary", file="x.txt")),
        r"^histories\[0\]\.slots\[1\]\.op: expected an operator without a fit or a file",
    ),
    (
        with_slots(slot(op="time_since", of="arrived", unit="day")),
        r"^histories\[0\]\.slots\[1\]\.of: expected `at` \(at\), .*, or two times, found 'arrived'",
    ),
    (
        with_slots({**AGE, "unit": "year"}),
        r"^histories\[0\]\.slots\[1\]\.unit: expected one of second",
    ),
    (with_slots({**AGE, "fill": 0}), r"^histories\[0\]\.slots\[1\]\.fill: expected no such option"),
    (
        with_slots({**AGE, "values": "top"}),
        r"^histories\[0\]\.slots\[1\]\.values: expected no such",
    ),
    (
        with_slots({"name": "age", "op": "time_since", "of": "at", "unit": "day", "store": False}),
        r"^histories\[0\]\.slots\[1\]: expected a slot number, since nothing can read",
    ),
    (
        with_slots(AGE, slot(op="log1p", of="clicks_age")),
        r"^histories\[0\]\.slots\[2\]\.of: expected an input column or a node, found 'clicks_age'",
    ),
    (
        with_slots(slot(slot=1)),
        r"^histories\[0\]\.slots\[1\]\.slot: expected a unique number, found 1, which is that of slots\[0\]",
    ),
    (with_slots(slot(slot=301)), r"^histories\[0\]\.slots\[1\]\.slot: expected a unique number"),
    (
        with_slots(slot(name="ITEM")),
        r"^histories\[0\]\.slots\[1\]\.name: expected a unique column name, not that of slots\[0\]",
    ),
    (
        with_slots(slot(name="clicks_item")),
        r"^histories\[0\]\.slots\[1\]\.name: expected a unique name",
    ),
    (
        with_slots(slot(name="clicks_at")),
        r"^histories\[0\]\.name: expected a unique column name, not that of histories\[0\]\.slots\[1\]\.name, found 'clicks_at'",
    ),
    (
        with_slots(slot(share_slot=9)),
        r"^histories\[0\]\.slots\[1\]\.share_slot: expected the number of another slot",
    ),
    (with_slots(slot(share_slot=303), AGE), r"^histories\[0\]\.slots\[1\]\.share_slot: expected"),
]


@pytest.mark.parametrize(("history", "message"), WRONG)
def test_what_is_wrong_is_said_with_its_path(history: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build_graph(spec_of(history))


@pytest.mark.parametrize(("history", "message"), WRONG)
def test_lint_finds_what_building_finds(history: dict[str, Any], message: str) -> None:
    errors: list[SpecError] = []
    spec = load_spec(document(history), errors)
    errors += find_errors(spec, is_whole=not errors)
    with pytest.raises(SpecError, match=message):
        raise SpecError(str(errors[0]))


def test_lint_names_each_error_once_and_what_nothing_reads(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(document(with_slots(slot(of="itm"), AGE), keep=[])))
    findings = lint(str(path)).findings
    assert [text.partition(": expected")[0] for text in findings] == [
        "histories[0].as_of",
        "histories[0].slots[1].of",
    ]
    path.write_text(json.dumps(document(with_slots(AGE, spare="string"))))
    assert [text.partition(": expected")[0] for text in lint(str(path)).findings] == [
        "histories[0].inputs.spare"
    ]
    path.write_text(json.dumps(document()))
    assert lint(str(path)).ok


@pytest.mark.parametrize("share", [{**ITEM, "share_slot": 1}, {**ITEM, "share_slot": 302}])
def test_a_slot_may_share_the_signs_of_a_slot_of_rows_or_of_events(share: dict[str, Any]) -> None:
    spec = spec_of({"slots": [share, slot()]})
    assert find_errors(spec) == []
    assert build_graph(spec.histories[0].events).schema["clicks_item"].share_slot in (1, 302)


def test_two_histories_of_one_name_are_refused() -> None:
    other = CLICKS | {"slots": [slot()]}
    with pytest.raises(SpecError, match=r"^histories\[1\]\.name: expected a unique column name"):
        build_graph(load_spec(DOCUMENT | {"histories": [CLICKS, other]}))


def test_the_key_and_as_of_of_rows_are_read_and_no_other_column_more() -> None:
    assert list(build_graph(spec_of()).columns) == ["user", "ts", "item"]
    assert list(build_graph(load_spec(DOCUMENT)).columns) == ["ts", "item"]


def test_a_spec_without_histories_has_the_hash_that_it_had() -> None:
    """`tests/golden/spec_hash.json` holds one of earlier versions; this is the same with the key."""
    golden = json.loads((Path(__file__).parents[1] / "golden" / "spec_hash.json").read_text())
    for empty in (list[str](), None):
        assert load_spec(golden["spec"] | {"histories": empty}).hash == golden["hash"]


CHANGES: list[dict[str, Any]] = [
    {"name": "views"},
    {"max_len": 1999},
    {"window": "89d"},
    {"window": None},
    {"logged_at": None},
    {"at": "arrived", "slots": [ITEM]},
    {"slots": [ITEM]},
    {"slots": [AGE, ITEM]},
    {"slots": [{**ITEM, "default": "x"}, AGE]},
    {"slots": [ITEM, {**AGE, "unit": "day"}]},
    {"inputs": {**INPUTS, "item": {"type": "string", "on_error": "skip"}}},
]


@pytest.mark.parametrize("change", CHANGES, ids=json.dumps)
def test_what_changes_a_history_changes_the_hash(change: dict[str, Any]) -> None:
    assert spec_of(change).hash != spec_of().hash


def test_what_does_not_change_a_history_leaves_the_hash() -> None:
    same = {"window": "2160h", "inputs": {**dict(reversed(INPUTS.items())), "spare": "long"}}
    assert spec_of(same).hash == spec_of().hash


def locked(history: Mapping[str, Any] | None = None) -> Lock:
    return make_lock(spec_of(history))


def test_the_lock_has_the_slots_of_histories() -> None:
    assert {number: of.name for number, of in locked().slots.items()} == {
        1: "item",
        301: "clicks_item",
        303: "clicks_age",
    }


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"max_len": 10}, {301, 303}),
        ({"window": None}, {301, 303}),
        ({"logged_at": None}, {301, 303}),
        ({"slots": [ITEM, {**AGE, "unit": "day"}]}, {303}),
        ({"slots": [{**ITEM, "default": "x"}, AGE]}, {301}),
        ({"slots": [{**ITEM, "name": "clicks_thing"}, AGE]}, set[int]()),
        ({"name": "views"}, set[int]()),
    ],
)
def test_a_slots_meaning_has_the_rule_of_its_history(
    change: dict[str, Any], changed: set[int]
) -> None:
    before, after = locked().slots, locked(change).slots
    assert {number for number in before if before[number].hash != after[number].hash} == changed


def test_a_slot_of_rows_has_the_meaning_that_it_had() -> None:
    assert locked().slots[1] == make_lock(load_spec(DOCUMENT)).slots[1]


def test_diff_shows_what_changes_in_histories(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(json.dumps(document()))
    new.write_text(json.dumps(document({"slots": [ITEM, slot(), {**AGE, "unit": "day"}]})))
    assert str(diff(str(old), str(new))) == ("added    302 clicks_other\nchanged  303 clicks_age")


def test_lint_compares_slots_of_histories_with_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(document()))
    assert lint(str(path), update_lock=True).ok
    path.write_text(json.dumps(document({"max_len": 10, "slots": [ITEM]})))
    assert [text.partition(" has ")[0] for text in lint(str(path)).findings] == [
        "histories[0].slots[0]: slot 301 ('clicks_item')",
        "slots: slot 303 ('clicks_age') of the lock is gone; --update-lock retires its number",
    ]


def test_show_lists_histories_with_their_slots(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(document()))
    lines = [" ".join(line.split()) for line in str(show(str(path))).splitlines()[2:]]
    assert lines == [
        "1 item id scalar hash(item) item: string",
        "ts kept",
        "clicks history key=user, as_of=ts, at=at, logged_at=arrived, max_len=2000, "
        "window=90d user: string, at: timestamp, arrived: timestamp",
        "301 clicks_item id list hash(item) share_slot=1 item: string",
        "303 clicks_age float list time_since(at), while reading unit=hour at: timestamp",
    ]


def test_the_schema_accepts_histories_and_refuses_what_the_parser_refuses() -> None:
    assert VALIDATOR.is_valid(document())
    assert VALIDATOR.is_valid(document({"logged_at": None, "window": None}))
    refused: list[dict[str, Any]] = [
        {"key": None},
        {"max_len": 0},
        {"window": "90"},
        {"slots": None},
        {"inputs": None},
        {"histry": 1},
        {"slots": [{**ITEM, "slot": 0}]},
        {"inputs": {"user": "strin"}, "name": 3},
    ]
    for change in refused:
        assert not VALIDATOR.is_valid(document(change)), change
        with pytest.raises(SpecError):
            build_graph(spec_of(change))
