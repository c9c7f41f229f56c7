"""The golden vectors of the sign, and of float slots. They may be appended to, never changed.

Every id ever stored depends on them.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.extraction.units.extractor import Extractor
from featstore.spec.parse import load_spec
from tests.golden_values import value_of

LINES = (Path(__file__).parents[1] / "golden" / "signs.jsonl").read_text().splitlines()
FLOATS = (Path(__file__).parents[1] / "golden" / "floats.jsonl").read_text().splitlines()
VECTORS = [json.loads(line) for line in (*LINES, *FLOATS)]
NUM_FROZEN = 128
FROZEN_SHA256 = "f7d81d931b0e3b8ec783f3494d89acc9a5bb14df4ca8caef176c46d8ad322eee"


# The rules that decide parity, and vectors that would fail were the rule another. Every engine runs
# all vectors (tests/contracts/test_operator_engines.py); what follows from a rule for bad specs or
# for reading is tested with those.
RULES = {
    "null is missing, [] is known to be empty, '' is a value": [
        "missing text", "empty text is a value", "empty list", "missing list", "empty text in a "
            "list is a value",
    ],
    "empty_as_null makes '' missing": ["empty text as missing", "empty text in a list as missing", "sequence, empty text"],
    "default replaces a missing input, fill a null result": [
        "default for missing text", "no default for empty text", "default does not replace an "
            "empty list", "filled bucket",
        "bucket of NaN with default", "lookup of no such key, filled", "ratio to zero, filled",
    ],
    "null elements are dropped, order and duplicates kept": [
        "null elements are dropped", "a list of nulls is empty", "duplicates and order are kept", "identity of a list",
    ],
    "lists are cut at head or tail after nulls are dropped": [
        "list cut at the head", "list cut at the tail", "nulls are dropped before a list is cut",
    ],
    "an id slot stores signs, of integers that of their text": [
        "at a boundary", "hour in UTC", "bucket of an integer", "weekend", "length", "cross with a "
            "bucket",
    ],
    "encode: index stores index + 1, 0 missing": ["bucket index", "missing bucket index", "index of NaN"],
    "members of a cross are chained in order": [
        "cross of two", "cross in the other order", "cross does not join texts, first", "cross with a crossed node",
        "cross with itself",
    ],
    "a missing member makes a cross missing, an empty list makes it []": [
        "cross with a missing member", "cross with the last member missing", "cross with an empty "
            "list",
        "cross with a missing list", "cross of a missing text with an empty list",
    ],
    "combinations have the first member outermost": ["cross of lists, the first outermost", "cross of lists, cut"],
    "numbers are hashed as shortest decimals, booleans as 1 and 0, instants as microseconds": [
        "integer -9223372036854775808", "integer of declared type short", "declared uint16", "true", "false",
        "timestamp, before the epoch", "timestamp, an offset is no difference", "list of timestamps",
    ],
    "NaN is null, -0.0 is 0.0, infinities clip or are null": [
        "bucket of NaN", "bucket of -0.0", "bucket of infinity", "identity of -0.0", "identity of "
            "inf", "clip of infinity",
        "log1p of minus one",
    ],
    "b[i] <= x < b[i+1], compared in float64": ["at a boundary", "at the last boundary", "bucket beyond 2**53"],
    "bytes are hashed as given, invalid UTF-8 is replaced": [
        "e acute, composed", "e acute, decomposed", "full width A", "invalid UTF-8 is replaced", "invalid utf-8, overlong",
        "case is kept",
    ],
    "float64 inside, one cast to float32; overflow and division by zero are null": [
        "identity of 16777217.0", "identity of 1e+300", "identity of 1e-300", "ratio to zero", "combine by mean",
    ],
    "the slot's number, not its name or place, is hashed": ["another slot", "slot 1", "shared slot "
        "number"],
}  # fmt: skip


def extractor_of(vector: dict[str, Any]) -> Extractor:
    sequences = vector.get("sequences", {})
    return Extractor(
        load_spec(
            {
                "spec": 1,
                "inputs": vector["inputs"],
                "sequences": sequences,
                "slots": vector["slots"],
            }
        )
    )


def raw_column(vector: dict[str, Any], name: str, rows: list[Any]) -> pa.Array:
    declared = load_spec({"spec": 1, "inputs": vector["inputs"], "slots": []}).inputs[name]
    return pa.array(rows, pa.binary() if any(isinstance(row, bytes) for row in rows) else declared)


def test_the_first_vectors_are_as_they_were_written() -> None:
    assert len(LINES) >= NUM_FROZEN
    assert hashlib.sha256("\n".join(LINES[:NUM_FROZEN]).encode()).hexdigest() == FROZEN_SHA256


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_parity_has_vectors(rule: str) -> None:
    assert set(RULES[rule]) <= {vector["name"] for vector in VECTORS}


@pytest.mark.parametrize("num_rows", [2, 40])  # few values are hashed one by one, many in numpy
@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_arrow_kernel_gives_the_golden_sign(vector: dict[str, Any], num_rows: int) -> None:
    row = {name: value_of(value) for name, value in vector["row"].items()}
    columns = [raw_column(vector, name, [None, *[value] * num_rows]) for name, value in row.items()]
    stored = (
        extractor_of(vector)(pa.RecordBatch.from_arrays(columns, names=list(row)))
        .column("f")
        .to_pylist()
    )
    assert str(stored[1:]) == str([vector["stored"]] * num_rows)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_single_row_gives_the_golden_sign(vector: dict[str, Any]) -> None:
    row = {name: value_of(value) for name, value in vector["row"].items()}
    assert str(extractor_of(vector).one(row)["f"]) == str(vector["stored"])
