"""The lock: what a number means is frozen, whatever it is called and wherever it stands."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import SpecError
from featstore.spec.lock import (
    Lock,
    LockedSlot,
    LockedVocabulary,
    from_json,
    load_lock,
    lock_url,
    to_json,
    write_lock,
)
from featstore.spec.meaning import make_lock, semantic_hashes
from featstore.spec.model import Fitted, Spec
from featstore.spec.parse import load_spec

GOLDEN = Path(__file__).parents[1] / "golden" / "spec_lock.json"
FROZEN = Path(__file__).parents[1] / "golden" / "spec_lock_frozen.json"
INPUTS = {
    "user": "string",
    "item": "string",
    "tags": "list<string>",
    "price": "double",
    "ts": "timestamp",
}
SLOTS: list[dict[str, Any]] = [
    {"slot": 1, "name": "u", "op": "hash", "of": "user"},
    {"slot": 2, "name": "t", "op": "hash", "of": "tags", "max_len": 5, "empty_as_null": True},
    {
        "name": "bin",
        "op": "bucketize",
        "of": "price",
        "boundaries": [10, 50.5],
        "default": 0,
        "store": False,
    },
    {"slot": 3, "name": "u_bin", "op": "cross", "of": ["u", "bin"]},
    {"slot": 4, "name": "i_bin", "op": "cross", "of": ["item", "bin"], "default": {"item": "none"}},
    {
        "slot": 5,
        "name": "index",
        "op": "bucketize",
        "of": "price",
        "boundaries": [1],
        "encode": "index",
    },
    {"slot": 6, "name": "h", "op": "hour", "of": "ts", "fill": -1},
    {
        "slot": 7,
        "name": "late",
        "op": "hour",
        "of": "ts",
        "tz": "America/New_York",
        "default": datetime.datetime(2026, 11, 1),
    },
]


def spec(*slots: dict[str, Any], **changes: Any) -> Spec:
    return load_spec(
        {"spec": 1, "inputs": INPUTS, "slots": list(slots or SLOTS), "retired": [99], **changes}
    )


def by_number(loaded: Spec) -> dict[int, str]:
    return {number: slot.hash for number, slot in make_lock(loaded).slots.items()}


def changed(position: int, **changes: Any) -> set[int]:
    """Numbers whose hash changes with one node."""
    slots = [entry | changes if i == position else entry for i, entry in enumerate(SLOTS)]
    before, after = by_number(spec()), by_number(spec(*slots))
    return {number for number in before if before[number] != after.get(number)}


def test_the_lock_file_is_as_it_was_first_written() -> None:
    assert to_json(make_lock(spec())) == GOLDEN.read_text()


def test_a_lock_reads_back_what_was_written(tmp_path: Path) -> None:
    lock = make_lock(spec())
    write_lock(lock, str(tmp_path / "spec.lock.json"))
    assert load_lock(str(tmp_path / "spec.lock.json")) == lock
    assert load_lock(str(tmp_path / "other.lock.json")) is None


@given(st.permutations(SLOTS), st.integers(0, len(SLOTS)))
def test_adding_and_reordering_slots_changes_no_hash(
    slots: list[dict[str, Any]], position: int
) -> None:
    added = {"slot": 50, "name": "added", "op": "cross", "of": ["u", "item"]}
    after = by_number(spec(*slots[:position], added, *slots[position:]))
    assert {number: after[number] for number in by_number(spec())} == by_number(spec())


def test_renaming_a_slot_or_an_inner_node_changes_no_hash() -> None:
    renamed = [entry | {"name": f"{entry['name']}_2"} for entry in SLOTS]
    for entry in renamed:
        entry["of"] = [
            f"{name}_2" if name in ("u", "bin") else name for name in _names(entry["of"])
        ]
    assert by_number(spec(*renamed)) == by_number(spec())


def _names(of: Any) -> list[str]:
    return [of] if isinstance(of, str) else of


@pytest.mark.parametrize(
    ("position", "changes", "numbers"),
    [
        (0, {"of": "item"}, {1, 3}),
        (0, {"default": "none"}, {1, 3}),
        (0, {"slot": 10}, {1}),
        (1, {"max_len": 6}, {2}),
        (1, {"truncate": "tail"}, {2}),
        (1, {"truncate": "head"}, set()),
        (1, {"empty_as_null": False}, {2}),
        (2, {"boundaries": [10, 50]}, {3, 4}),
        (2, {"boundaries": [10.0, 50.5]}, set()),
        (2, {"default": 1}, {3, 4}),
        (2, {"default": 0.0}, set()),
        (2, {"slot": 20, "store": True}, set()),
        (3, {"of": ["bin", "u"]}, {3}),
        (4, {"default": {"item": "nobody"}}, {4}),
        (5, {"encode": "sign"}, {5}),
        (6, {"fill": 0}, {6}),
        (6, {"tz": "UTC"}, set()),
    ],
)
def test_a_hash_changes_exactly_with_what_the_slot_stores(
    position: int, changes: dict[str, Any], numbers: set[int]
) -> None:
    assert changed(position, **changes) == numbers


def test_the_type_of_an_input_is_part_of_the_hash() -> None:
    before, after = by_number(spec()), by_number(spec(inputs=INPUTS | {"user": "long"}))
    assert {number for number in before if before[number] != after[number]} == {1, 3}


def test_what_malformed_values_do_is_no_part_of_what_a_row_that_is_there_means() -> None:
    inputs = {
        name: {"type": text, "on_error": "skip", "optional": True} for name, text in INPUTS.items()
    }
    assert by_number(spec(inputs=inputs)) == by_number(spec(on_error="fail")) == by_number(spec())


def test_numbers_that_are_gone_are_retired_for_good() -> None:
    first = make_lock(spec())
    second = make_lock(spec(SLOTS[0], retired=[]), first)
    assert second.retired == {2, 3, 4, 5, 6, 7, 99}
    assert make_lock(spec(SLOTS[0], retired=[]), second).retired == second.retired


def test_a_hash_per_stored_slot_and_none_for_inner_nodes() -> None:
    assert set(semantic_hashes(spec())) == {entry["name"] for entry in SLOTS} - {"bin"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2}', r"^a\.lock\.json: expected a lock of format 1, found 2"),
        (
            "{",
            r"a\.lock\.json: expected a lock file as `--update-lock` writes it, found "
            r"JSONDecodeError",
        ),
        ('{"format": 1, "slots": []}', r"a\.lock\.json: expected a lock file"),
        ("[]", r"a\.lock\.json: expected a lock file"),
        (
            '{"format": 1, "spec": 1, "retired": ["x"], "slots": {}}',
            r"a\.lock\.json: expected a lock file",
        ),
    ],
)
def test_a_file_that_is_no_lock_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        from_json(text, "a.lock.json")


def test_an_empty_lock_is_json() -> None:
    empty = Lock(spec=1, slots={}, retired=frozenset({3}))
    assert from_json(to_json(empty), "x") == empty
    one = Lock(spec=1, slots={1: LockedSlot(name="a", hash="ff")})
    assert from_json(to_json(one), "x") == one


def test_the_lock_lies_beside_the_spec() -> None:
    assert lock_url("a/flights.spec.yaml") == "a/flights.spec.lock.json"
    assert lock_url("s3://bucket/a.b/spec.yml") == "s3://bucket/a.b/spec.lock.json"
    assert lock_url("a.b/spec") == "a.b/spec.lock.json"


def test_a_shared_slot_and_a_sequence_are_part_of_what_a_slot_means() -> None:
    document = {
        "spec": 1,
        "inputs": {"items": "list<string>", "prices": "list<double>"},
        "slots": [
            {"slot": 1, "name": "seen", "op": "hash", "of": "items"},
            {"slot": 2, "name": "latest", "op": "hash", "of": "items", "max_len": 1},
        ],
    }
    plain = semantic_hashes(load_spec(document))
    cut = semantic_hashes(
        load_spec(document | {"sequences": {"events": {"of": ["items", "prices"], "max_len": 5}}})
    )
    assert not set(plain.values()) & set(cut.values())
    document["slots"][1]["share_slot"] = 1  # type: ignore[index]
    shared = semantic_hashes(load_spec(document))
    assert shared["seen"] == plain["seen"]
    assert shared["latest"] != plain["latest"]


def test_what_is_frozen_is_a_line_each_and_old_locks_stay_readable() -> None:
    fitted = Fitted(op="min_max", hash="abc", num_values=3, params={"min": 0.1, "max": 7.0})
    words = LockedVocabulary(num_values=2, digest="def", marks=("12345678",))
    lock = Lock(
        spec=1,
        slots={1: LockedSlot(name="u", hash="h")},
        fitted={"é": fitted},
        vocabularies={"w.txt": words},
    )
    text = to_json(lock)
    assert from_json(text, "x") == lock
    assert text == FROZEN.read_text()
    assert from_json(GOLDEN.read_text(), "x").fitted == {}
