"""Values of one kind, of other types than the table's."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

from featstore.reading.buffers import as_type


def required(value: pa.DataType) -> pa.Field:
    return pa.field("element", value, nullable=False)


US = pa.timestamp("us")
POINT = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string())])


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (pa.array(["a", None, "ü"], pa.string_view()), pa.string()),
        (pa.array(["a", None, "ü"], pa.large_string()), pa.string()),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.nulls(3), pa.list_(pa.string())),
        (pa.array([1, None], pa.int32()), pa.int64()),
        (pa.array([[1], None, [], [2, None]], pa.list_(pa.int32())), pa.list_(pa.int64())),
        (pa.array([[0.5], None, []], pa.large_list(pa.float64())), pa.list_(pa.float32())),
        (pa.array([["a"], None], pa.large_list(pa.string_view())), pa.list_(pa.string())),
        (pa.array([["a"], None, []]), pa.list_(required(pa.string()))),
        (pa.array([["a"], None, []], pa.list_(required(pa.string()))), pa.list_(pa.string())),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), pa.list_(pa.int64())),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32())), pa.list_(pa.int64(), 2)),
        (
            pa.array([[("a", 1)], None, []], pa.map_(pa.large_string(), pa.int32())),
            pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
        ),
        (pa.array([[], None], pa.list_(pa.null())), pa.list_(pa.list_(pa.int64()))),
    ],
)
def test_values_stay_whatever_the_layout(array: pa.Array, type_: pa.DataType) -> None:
    found = as_type(pa.chunked_array([array.slice(0, 1), array.slice(1), array.slice(0, 0)]), type_)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (type_, array.to_pylist())


def test_members_of_structs_are_found_by_name() -> None:
    own = pa.struct([pa.field("z", pa.int8()), pa.field("x", pa.int32())])
    array = pa.array([{"x": 1, "z": 2}, None, {"x": 3, "z": 4}], own)
    found = as_type(pa.chunked_array([array, array.slice(1)]), POINT)
    one, three = {"x": 1, "y": None}, {"x": 3, "y": None}
    assert (found.type, found.to_pylist()) == (POINT, [one, None, three, None, three])


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_digits_below_a_microsecond_are_cut_towards_the_past(zone: str | None) -> None:
    array = pa.array([-1, -1_000, -1_001, 1_999, None, 0], pa.timestamp("ns"))
    found = as_type(pa.chunked_array([array.slice(1), array]), pa.timestamp("us", zone))
    expected = [-1, -2, 1, None, 0, -1, -1, -2, 1, None, 0]
    assert found.cast(pa.int64()).to_pylist() == expected
    nested = pa.chunked_array([pa.ListArray.from_arrays([0, 6], array)])
    (cut,) = as_type(nested, pa.list_(pa.timestamp("us"))).to_pylist()
    assert cut[0] == datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (pa.array([2**31]), pa.int32()),
        (pa.array([[2**31]]), pa.list_(pa.int32())),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([datetime.datetime(9999, 1, 1)], US), pa.timestamp("ns")),
        (pa.array([[1, 2, 3]]), pa.list_(pa.int64(), 2)),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(array: Any, type_: pa.DataType) -> None:
    with pytest.raises(pa.ArrowInvalid):
        as_type(pa.chunked_array([array]), type_)
