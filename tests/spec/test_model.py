import datetime
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from featstore.spec.model import type_name
from featstore.spec.parse import load_spec

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "spec_hash.json").read_text())


def document(**changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(GOLDEN["spec"])), **changes}


def hash_of(**changes: Any) -> str:
    return load_spec(document(**changes)).hash


def slots_with(position: int, **changes: Any) -> list[dict[str, Any]]:
    slots: list[dict[str, Any]] = document()["slots"]
    slots[position].update(changes)
    return slots


def test_the_hash_of_a_spec_is_the_golden_one() -> None:
    assert load_spec(GOLDEN["spec"]).hash == GOLDEN["hash"]


def test_the_hash_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(load_spec(GOLDEN["spec"]))).hash == GOLDEN["hash"]


@pytest.mark.parametrize(
    "changes",
    [
        {"retired": [1, 2]},
        {"output": {"rows_per_file": 100_000}},
        {"output": {"compression": "zstd"}},
        {"inputs": {**GOLDEN["spec"]["inputs"], "unread": "string"}},
        {"inputs": {**GOLDEN["spec"]["inputs"], "unread": {"type": "string", "on_error": "skip"}}},
        {"inputs": {**GOLDEN["spec"]["inputs"], "price": {"type": "double", "optional": False}}},
        {"inputs": dict(reversed(GOLDEN["spec"]["inputs"].items()))},
        {"inputs": {**GOLDEN["spec"]["inputs"], "clicked": "int"}},
        {"slots": slots_with(2, boundaries=[10.0, 50, 200.0])},
        {"slots": slots_with(0, store=True, empty_as_null=False, encode="sign", default=None)},
    ],
)
def test_what_does_not_change_content_does_not_change_the_hash(changes: dict[str, Any]) -> None:
    assert hash_of(**changes) == GOLDEN["hash"]


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {"clicks": "clicked"}},
        {"weight": "price"},
        {"keep": []},
        {"inputs": {**GOLDEN["spec"]["inputs"], "user_id": "long"}},
        {"slots": slots_with(0, name="viewer")},
        {"slots": slots_with(0, slot=999)},
        {"slots": slots_with(0, default="none")},
        {"slots": slots_with(0, empty_as_null=True)},
        {"slots": slots_with(1, max_len=21)},
        {"slots": slots_with(2, boundaries=[10, 50])},
        {"slots": slots_with(2, encode="index")},
        {"slots": slots_with(2, fill=0)},
        {"slots": list(reversed(document()["slots"]))},
        {"on_error": "skip"},
        {"inputs": {**GOLDEN["spec"]["inputs"], "price": {"type": "double", "on_error": "null"}}},
        {"inputs": {**GOLDEN["spec"]["inputs"], "price": {"type": "double", "optional": True}}},
    ],
)
def test_what_changes_content_changes_the_hash(changes: dict[str, Any]) -> None:
    assert hash_of(**changes) != GOLDEN["hash"]


def test_the_specs_word_and_that_of_every_column_are_one() -> None:
    each = {
        name: {"type": text, "on_error": "skip"} for name, text in GOLDEN["spec"]["inputs"].items()
    }
    assert hash_of(on_error="skip") == hash_of(inputs=each) != hash_of(on_error="fail")


def test_a_timestamp_default_is_part_of_the_hash() -> None:
    slot = {"slot": 1, "name": "h", "op": "hour", "of": "ts"}
    inputs = {"ts": "timestamp"}
    hashes = {
        load_spec(
            {
                "spec": 1,
                "inputs": inputs,
                "slots": [{**slot, "default": datetime.datetime(2013, 1, day)}],
            }
        ).hash
        for day in (1, 2)
    }
    assert len(hashes) == 2


@pytest.mark.parametrize(
    "declared", ["string", "long", "double", "boolean", "timestamp", "list<string>", "list<double>"]
)
def test_canonical_types_are_named_as_they_are_declared(declared: str) -> None:
    assert type_name(load_spec(document(inputs={"x": declared})).inputs["x"]) == declared
