"""The golden vectors of the sign, and of float slots. They may be appended to, never changed.

Every id ever stored depends on them.
"""

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.extraction.extractor import Extractor
from featstore.spec.parse import load_spec

LINES = (Path(__file__).parents[1] / "golden" / "signs.jsonl").read_text().splitlines()
FLOATS = (Path(__file__).parents[1] / "golden" / "floats.jsonl").read_text().splitlines()
VECTORS = [json.loads(line) for line in (*LINES, *FLOATS)]
NUM_FROZEN = 128
FROZEN_SHA256 = "f7d81d931b0e3b8ec783f3494d89acc9a5bb14df4ca8caef176c46d8ad322eee"


def value_of(written: Any) -> Any:
    if isinstance(written, list):
        return [value_of(item) for item in written]
    if isinstance(written, dict) and "map" in written:
        return [(key, value_of(item)) for key, item in written["map"]]
    if isinstance(written, dict):
        return bytes.fromhex(written["hex"]) if "hex" in written else datetime.datetime.fromisoformat(written["time"])
    return written


def extractor_of(vector: dict[str, Any]) -> Extractor:
    sequences = vector.get("sequences", {})
    return Extractor(load_spec({"spec": 1, "inputs": vector["inputs"], "sequences": sequences, "slots": vector["slots"]}))


def raw_column(vector: dict[str, Any], name: str, rows: list[Any]) -> pa.Array:
    declared = load_spec({"spec": 1, "inputs": vector["inputs"], "slots": []}).inputs[name]
    return pa.array(rows, pa.binary() if any(isinstance(row, bytes) for row in rows) else declared)


def test_the_first_vectors_are_as_they_were_written() -> None:
    assert len(LINES) >= NUM_FROZEN
    assert hashlib.sha256("\n".join(LINES[:NUM_FROZEN]).encode()).hexdigest() == FROZEN_SHA256


@pytest.mark.parametrize("num_rows", [2, 40])  # few values are hashed one by one, many in numpy
@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_arrow_kernel_gives_the_golden_sign(vector: dict[str, Any], num_rows: int) -> None:
    row = {name: value_of(value) for name, value in vector["row"].items()}
    columns = [raw_column(vector, name, [None, *[value] * num_rows]) for name, value in row.items()]
    stored = extractor_of(vector)(pa.RecordBatch.from_arrays(columns, names=list(row))).column("f").to_pylist()
    assert str(stored[1:]) == str([vector["stored"]] * num_rows)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_a_single_row_gives_the_golden_sign(vector: dict[str, Any]) -> None:
    row = {name: value_of(value) for name, value in vector["row"].items()}
    assert str(extractor_of(vector).one(row)["f"]) == str(vector["stored"])
