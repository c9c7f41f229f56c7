import hashlib
import json
from typing import Any

from featstore.spec.check import ordered
from featstore.spec.meaning import operator_path, semantic_hashes
from featstore.spec.parse import load_spec

INPUTS = {"user_id": "string", "ts": "timestamp", "price": "double", "tags": "list<string>"}


def paths(*slots: dict[str, Any]) -> dict[str, str]:
    numbered = [
        {"slot": i + 1, **slot} if slot.get("store", True) else slot for i, slot in enumerate(slots)
    ]
    spec, found = load_spec({"spec": 1, "inputs": INPUTS, "slots": numbered}), dict[str, str]()
    for node in ordered(spec):
        found[node.name] = operator_path(spec, node, found)
    return found


def test_a_path_goes_down_to_the_inputs() -> None:
    found = paths(
        {"name": "user_x_hour", "op": "cross", "of": ["user_id", "hour"]},
        {"name": "hour", "op": "hour", "of": "ts", "tz": "UTC", "store": False},
    )
    assert found["user_x_hour"] == "cross(user_id, hour(ts, tz=UTC))"


def test_a_node_that_has_the_name_of_its_input_reads_the_input() -> None:
    assert paths({"name": "price", "op": "log1p", "of": "price"})["price"] == "log1p(price)"


def test_short_params_defaults_and_fills_are_said_and_lists_left_to_the_spec() -> None:
    found = paths(
        {"name": "bin", "op": "bucketize", "of": "price", "boundaries": [1, 2], "default": 3.0},
        {"name": "log", "op": "log1p", "of": "price", "fill": 0.0},
        {"name": "tag", "op": "hash", "of": "tags", "truncate": "tail", "max_len": 5},
    )
    expected = {"bin": "bucketize(price, default=3.0)", "log": "log1p(price, fill=0.0)"}
    assert found == expected | {"tag": "hash(tags, max_len=5, truncate=tail)"}


def test_a_user_operator_stands_with_its_module() -> None:
    found = paths({"name": "own", "op": "my_package.my_module:function", "of": "price"})
    assert found["own"] == "my_package.my_module:function(price)"


def test_nodes_that_read_shared_ones_do_not_multiply() -> None:
    doubled = [
        {"name": f"n{i}", "op": "cross", "of": [f"n{i - 1}", f"n{i - 1}"]} for i in range(1, 40)
    ]
    found = paths({"name": "n0", "op": "hash", "of": "user_id"}, *doubled)
    assert (
        found["n2"]
        == "cross(cross(hash(user_id), hash(user_id)), cross(hash(user_id), hash(user_id)))"
    )
    assert found["n39"].endswith(")")
    assert max(map(len, found.values())) < 300


def test_a_hash_can_be_made_from_what_the_contracts_page_says() -> None:
    """docs/contracts.md, in plain JSON and hashlib: a slot that shares its number's signs, of a
    column of a sequence.
    """
    slots = [
        {"slot": 1, "name": "a", "op": "hash", "of": "item"},
        {
            "slot": 2,
            "name": "b",
            "op": "hash",
            "of": "clicks",
            "share_slot": 1,
            "default": ["none"],
        },
    ]
    inputs = {"item": "string", "clicks": "list<string>", "dwell": "list<double>"}
    sequences = {"events": {"of": ["clicks", "dwell"]}}
    spec = load_spec({"spec": 1, "inputs": inputs, "sequences": sequences, "slots": slots})
    sequence = {
        "of": [["clicks", "list<string>"], ["dwell", "list<double>"]],
        "max_len": None,
        "truncate": "head",
        "empty_as_null": False,
    }
    source = {"input": "clicks", "type": "list<string>", "sequence": sequence, "default": ["none"]}
    node = _sha256({"op": "hash", "of": [source]})
    expected = _sha256({"spec": 1, "slot": 2, "encode": "sign", "share_slot": 1, "node": node})
    assert semantic_hashes(spec)["b"] == expected


def _sha256(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
