"""A single value is taken as a file's column of such values would be."""

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.errors import InputError
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.values import single
from featstore.ops.columns import readable
from featstore.spec.model import read_type
from featstore.spec.parse import load_spec

D = decimal.Decimal
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
REFUSED: list[tuple[str, Any]] = [
    ("long", np.float32(2.5)),
    ("long", np.float64(2.0)),
    ("long", D("2.5")),
    ("long", True),
    ("long", np.bool_(True)),
    ("long", 2**63),
    ("long", 10**400),
    ("long", "2"),
    ("list<long>", np.array([1.5])),
    ("list<long>", [1, np.float32(1.5)]),
    ("list<long>", [D("1.5")]),
    ("list<long>", [True]),
    ("list<long>", "12"),
    ("list<long>", {1: 2}),
    ("list<string>", [b"\xff"]),
    ("timestamp", 5),
    ("timestamp", 1.5),
    ("timestamp", "2026-01-01"),
    ("list<timestamp>", [5]),
    ("double", True),
    ("double", "1.5"),
    ("double", 2**2000),
    ("double", 10**5000),
    ("list<double>", [True]),
    ("boolean", 1),
    ("string", 1),
    ("map<string, long>", {"a": 1.5}),
    ("map<string, double>", {"a": True}),
    ("map<string, map<string, long>>", {"a": {"b": D("1.5")}}),
    ("map<string, long>", 5),
    ("long", object()),
]
TAKEN: list[tuple[str, Any, Any]] = [
    ("long", np.int32(3), 3),
    ("long", None, None),
    ("double", 1, 1.0),
    ("double", 2**60 + 1, 2.0**60),
    ("double", D("1.1"), D("1.1")),
    ("double", np.float32(0.5), 0.5),
    ("double", np.int8(2), 2),
    ("list<double>", [1, 2.5], [1.0, 2.5]),
    ("list<double>", [2**60 + 1], [2**60 + 1]),
    ("list<long>", np.array([1, 2]), [1, 2]),
    ("list<long>", (1, None), [1, None]),
    ("list<string>", np.array(["a"]), ["a"]),
    ("timestamp", datetime.date(2026, 1, 1), datetime.date(2026, 1, 1)),
    ("timestamp", NOON, NOON),
    ("map<string, double>", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    (
        "map<string, map<string, long>>",
        {"a": {"b": 1}, "c": None},
        [("a", [("b", 1)]), ("c", None)],
    ),
]


@pytest.mark.parametrize(
    ("name", "value"),
    REFUSED,
    ids=[f"{name} <- {type(value).__name__}{i}" for i, (name, value) in enumerate(REFUSED)],
)
def test_a_value_that_a_file_would_be_refused_for_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"column 'x': expected {name}, found"):
        single("x", value, _type(name), said=None)


@pytest.mark.parametrize(("name", "value", "expected"), TAKEN)
def test_a_value_that_a_file_may_have_is_taken(name: str, value: Any, expected: Any) -> None:
    array = single("x", value, _type(name), said=None)
    assert readable(array.type, _type(name))
    assert array.to_pylist() == [expected]


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("long", np.float32(2.5), "not whole"),
        ("long", D("2.5"), "not whole"),
        ("long", 10**40, "out of range"),
        ("long", 2**63, "out of range"),
        ("long", 10**400, "wrong type"),
        ("double", 2**2000, "wrong type"),
        ("list<long>", [2**63], "out of range"),
        ("list<long>", np.array([1.5]), "not whole"),
        ("list<long>", [-(2**70)], "out of range"),
        ("timestamp", 5, "wrong type"),
        ("double", True, "wrong type"),
        ("map<string, long>", {"a": 1.5}, "wrong type"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_malformed_value_is_counted_and_missing_where_the_spec_says_so(
    name: str, value: Any, what: str
) -> None:
    extractor = _keeping(name, "null")
    found = extractor.one({"x": value, "u": "a"})["x"]
    assert found in (None, [], [None])
    assert extractor.counts[f"x: {what}"] == 1
    with pytest.raises(InputError, match="column 'x'"):
        _keeping(name, "fail").one({"x": value, "u": "a"})


def test_numbers_too_long_to_write_are_described() -> None:
    with pytest.raises(InputError, match="found an integer of 16,610 bits"):
        single("x", 10**5000, pa.int64(), said=None)


def _type(name: str) -> pa.DataType:
    arrow_type = read_type(name)
    assert arrow_type is not None
    return arrow_type


def _keeping(name: str, on_error: str) -> Extractor:
    slots = [{"slot": 1, "name": "s", "op": "hash", "of": "u"}]
    inputs = {"x": {"type": name, "on_error": on_error}, "u": "string"}
    return Extractor(load_spec({"spec": 1, "inputs": inputs, "keep": ["x"], "slots": slots}))
