import datetime
import decimal
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.ops.columns import clean, read_column, readable

TEXT, LONG, DOUBLE, TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC")
NOON = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)


def read(array: pa.Array, declared: pa.DataType) -> tuple[list[Any], dict[str, int]]:
    assert readable(array.type, declared)
    counts: Counter[str] = Counter()
    result = read_column(array, declared=declared, counts=counts)
    result.validate(full=True)
    assert result.type == declared
    return result.to_pylist(), dict(counts)


def cleaned(values: list[Any], declared: pa.DataType) -> tuple[list[Any], dict[str, int]]:
    counts: Counter[str] = Counter()
    result = clean(pa.array(values, declared), counts=counts)
    result.validate(full=True)
    return result.to_pylist(), dict(counts)


@pytest.mark.parametrize(
    "raw", [TEXT, pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()], ids=str
)
def test_text_is_read_from_every_arrow_type_of_text(raw: pa.DataType) -> None:
    assert read(pa.array(["a", None, "é"]).cast(raw), TEXT) == (["a", None, "é"], {})


def test_text_is_read_from_dictionaries_and_fixed_size_binary() -> None:
    assert read(pa.array(["a", None, "a"]).dictionary_encode(), TEXT) == (["a", None, "a"], {})
    assert read(pa.array([b"ab", None], pa.binary(2)), TEXT) == (["ab", None], {})


@pytest.mark.parametrize(
    "raw", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint32(), pa.uint64()], ids=str
)
def test_longs_are_read_from_every_integer(raw: pa.DataType) -> None:
    assert read(pa.array([1, None], raw), LONG) == ([1, None], {})


@pytest.mark.parametrize("raw", [pa.float32(), pa.int32(), pa.uint64(), pa.int64()], ids=str)
def test_doubles_are_read_from_every_number(raw: pa.DataType) -> None:
    assert read(pa.array([2, None], raw), DOUBLE) == ([2.0, None], {})


def test_doubles_are_read_from_decimals() -> None:
    assert read(pa.array([decimal.Decimal("1.50")]), DOUBLE) == ([1.5], {})


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_timestamps_of_every_unit_and_zone_are_one_instant(unit: str, zone: str | None) -> None:
    naive = NOON.replace(tzinfo=None)
    assert read(
        pa.array([naive if zone is None else NOON, None], pa.timestamp(unit, tz=zone)), TIME
    ) == ([NOON, None], {})


def test_a_date_is_midnight_utc() -> None:
    assert read(pa.array([NOON.date()]), TIME) == ([NOON.replace(hour=0)], {})


@pytest.mark.parametrize(
    "declared", [TEXT, LONG, DOUBLE, TIME, pa.bool_(), pa.list_(TEXT), pa.list_(DOUBLE)], ids=str
)
def test_a_column_of_nulls_is_read_as_any_type(declared: pa.DataType) -> None:
    assert read(pa.nulls(2), declared) == ([None, None], {})


@pytest.mark.parametrize(
    "raw", [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)], ids=str
)
def test_lists_of_every_layout_are_read_also_from_a_slice(raw: pa.DataType) -> None:
    array = pa.array([[1, 2], None, [3, None]], raw)
    assert read(array, pa.list_(LONG)) == ([[1, 2], None, [3, None]], {})
    assert read(array.slice(1), pa.list_(LONG)) == ([None, [3, None]], {})


@pytest.mark.parametrize(
    ("raw", "declared"),
    [
        (LONG, TEXT),
        (TEXT, LONG),
        (DOUBLE, LONG),
        (pa.bool_(), LONG),
        (LONG, pa.bool_()),
        (LONG, TIME),
        (TEXT, DOUBLE),
        (TEXT, pa.list_(TEXT)),
        (pa.list_(TEXT), TEXT),
        (pa.list_(TEXT), pa.list_(LONG)),
        (pa.struct([("a", TEXT)]), TEXT),
    ],
)
def test_other_types_are_not_readable(raw: pa.DataType, declared: pa.DataType) -> None:
    assert not readable(raw, declared)


def test_invalid_utf8_is_replaced_and_counted_but_not_under_nulls_or_outside_of_a_slice() -> None:
    values = [b"\xff", b"ok\xc3\xa9", None, b"a\xffb", b"\xf0\x9f\x99"]
    assert read(pa.array(values, pa.binary()).slice(1), TEXT) == (
        ["oké", None, "a�b", "�"],
        {"invalid utf-8": 2},
    )
    lists = pa.array([[b"\xff"], [b"x", None, b"\xff"]], pa.list_(pa.binary()))
    assert read(lists.slice(1), pa.list_(TEXT)) == ([["x", None, "�"]], {"invalid utf-8": 1})


def test_integers_above_int64_are_null_and_counted() -> None:
    assert read(pa.array([2**63, 2**63 - 1, None], pa.uint64()), LONG) == (
        [None, 2**63 - 1, None],
        {"out of range": 1},
    )


def test_timestamps_that_microseconds_cannot_hold_are_null_and_counted() -> None:
    seconds = pa.array([1, -(2**63), 2**62, None], LONG).view(pa.timestamp("s"))
    assert read(seconds, TIME)[0][1:] == [None, None, None]
    assert read(seconds, TIME)[1] == {"out of range": 2}


def test_nan_becomes_null_and_is_counted() -> None:
    assert cleaned([1.0, float("nan"), None], DOUBLE) == ([1.0, None, None], {"nan": 1})


def test_negative_zero_becomes_zero() -> None:
    assert str(cleaned([-0.0], DOUBLE)[0]) == "[0.0]"


def test_infinities_are_left_to_the_operators() -> None:
    assert cleaned([float("inf"), float("-inf")], DOUBLE) == ([float("inf"), float("-inf")], {})


def test_null_elements_are_dropped_and_counted_and_a_list_of_nulls_is_empty() -> None:
    assert cleaned([["a", None], [None, None], [], None], pa.list_(TEXT)) == (
        [["a"], [], [], None],
        {"null elements": 3},
    )


def test_nan_elements_are_dropped_and_counted_as_nan() -> None:
    assert cleaned([[1.0, float("nan")], None, [None]], pa.list_(DOUBLE)) == (
        [[1.0], None, []],
        {"null elements": 1, "nan": 1},
    )


def test_elements_under_a_null_list_are_neither_seen_nor_counted() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array(["a", None, "b"]), mask=pa.array([True, False])
    )
    counts: Counter[str] = Counter()
    assert clean(hidden, counts=counts).to_pylist() == [None, ["b"]]
    assert not counts


def test_invalid_bytes_under_a_null_stay_null() -> None:
    data = pa.py_buffer(b"\xffa\xff")
    validity = pa.py_buffer(bytes([0b110]))
    offsets = pa.py_buffer(np.array([0, 1, 2, 3], np.int32).tobytes())
    strings = pa.Array.from_buffers(pa.string(), 3, [validity, offsets, data])
    assert read(strings, TEXT) == ([None, "a", "\ufffd"], {"invalid utf-8": 1})


@pytest.mark.parametrize("zone", ["UTC", None])
def test_nanoseconds_are_cut_towards_the_past(zone: str | None) -> None:
    nanoseconds = [-1, -500, -1_000, -1_001, 999, 1_000, -(2**63), 2**63 - 1, None]
    times = pa.array([7, *nanoseconds], pa.timestamp("ns", zone))[1:]
    found, counts = read(times, TIME)
    expected = [n if n is None else n // 1_000 for n in nanoseconds]
    assert (pa.array(found, TIME).cast(LONG).to_pylist(), counts) == (expected, {})
    lists = pa.array([[-1], None], pa.list_(pa.timestamp("ns", zone)))
    assert read(lists, pa.list_(TIME))[0] == [
        [NOON.replace(1969, 12, 31, 23, 59, 59, 999_999)],
        None,
    ]


@pytest.mark.parametrize("scale", [2, 18, 30])
@pytest.mark.parametrize("wide", [pa.decimal128, pa.decimal256])
def test_a_decimal_is_read_as_the_nearest_double_whatever_its_scale(wide: Any, scale: int) -> None:
    texts = [f"{n}.{n * 7919 % 97:02}" for n in range(1_000, 9_999)] + ["-12345678.91", "0.01"]
    array = pa.array(map(decimal.Decimal, texts), pa.decimal128(12, 2)).cast(wide(38, scale))
    assert read(array, DOUBLE) == (list(map(float, texts)), {})
