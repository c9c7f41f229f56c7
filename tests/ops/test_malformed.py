"""Malformed values are found where they are, once each, and shown as short texts."""

import datetime
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops.columns import read_column
from featstore.ops.malformed import (
    MalformedValues,
    all_wrong,
    find_malformed,
    find_unequal,
    narrow,
    narrowable,
    short_text,
)

TEXT, LONG, DOUBLE, TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC")
MAPS = pa.map_(TEXT, LONG)


def plain(found: list[MalformedValues]) -> list[tuple[str, list[int], tuple[str, ...]]]:
    return [
        (one.what, one.rows.tolist(), tuple(map(one.text, range(min(3, len(one.rows))))))
        for one in found
    ]


def narrowed(
    array: pa.Array, declared: pa.DataType = LONG
) -> tuple[list[Any], list[Any], dict[str, int]]:
    assert narrowable(array.type, declared)
    counts: Counter[str] = Counter()
    result, found = narrow(array, declared, counts)
    result.validate(full=True)
    assert result.type == declared
    return result.to_pylist(), plain(found), dict(counts)


@pytest.mark.parametrize("raw", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_invalid_utf8_is_found_and_shown_as_bytes(raw: pa.DataType) -> None:
    array = pa.array([b"a", b"\xff", None, "é".encode(), b"b\xff"], raw)
    assert plain(find_malformed(array, TEXT)) == [
        ("invalid utf-8", [1, 4], (r"b'\xff'", r"b'b\xff'"))
    ]
    assert plain(find_malformed(array.slice(2), TEXT)) == [("invalid utf-8", [2], (r"b'b\xff'",))]


def test_invalid_utf8_in_a_string_column_is_shown_as_bytes() -> None:
    array = pa.array([b"ok", b"\xff"]).view(TEXT)
    assert plain(find_malformed(array, TEXT)) == [("invalid utf-8", [1], (r"b'\xff'",))]
    assert plain(find_malformed(array.dictionary_encode(), TEXT)) == [
        ("invalid utf-8", [1], (r"b'\xff'",))
    ]


def test_integers_above_int64_are_found() -> None:
    array = pa.array([2**63 - 1, None, 2**63], pa.uint64())
    assert plain(find_malformed(array, LONG)) == [("out of range", [2], ("9223372036854775808",))]
    assert find_malformed(array, DOUBLE) == []


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        (pa.timestamp("s"), 2**63 // 10**6),
        (pa.timestamp("ms"), 2**63 // 10**3),
        (pa.date32(), 106_751_991),
    ],
    ids=str,
)
def test_times_beyond_microseconds_are_found_and_null_when_read(
    raw: pa.DataType, limit: int
) -> None:
    numbers = pa.array(
        [limit, limit + 1, None, -limit - 1], pa.int32() if raw == pa.date32() else LONG
    )
    array = numbers.view(raw)
    assert plain(find_malformed(array, TIME)) == [
        ("out of range", [1, 3], (str(limit + 1), str(-limit - 1)))
    ]
    counts: Counter[str] = Counter()
    assert read_column(array, declared=TIME, counts=counts).is_null().to_pylist() == [
        False,
        True,
        True,
        True,
    ]
    assert counts == {"out of range": 2}


def test_what_lies_in_lists_and_maps_is_found_by_row_but_not_under_a_null() -> None:
    lists = pa.array([[b"\xff"], [], None, [b"a", b"\xfe", b"\xfd"]], pa.list_(pa.binary()))
    assert plain(find_malformed(lists, pa.list_(TEXT))) == [
        ("invalid utf-8", [0, 3, 3], (r"b'\xff'", r"b'\xfe'", r"b'\xfd'"))
    ]
    assert plain(find_malformed(lists.slice(1), pa.list_(TEXT))) == [
        ("invalid utf-8", [2, 2], (r"b'\xfe'", r"b'\xfd'"))
    ]
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pa.array([b"\xff", b"\xfe"]), mask=pa.array([True, False])
    )
    assert plain(find_malformed(hidden, pa.list_(TEXT))) == [("invalid utf-8", [1], (r"b'\xfe'",))]
    maps = pa.array([[(b"a", 1)], [(b"\xff", 2**63)]], pa.map_(pa.binary(), pa.uint64()))
    assert plain(find_malformed(maps, MAPS)) == [
        ("invalid utf-8", [1], (r"b'\xff'",)),
        ("out of range", [1], ("9223372036854775808",)),
    ]


def test_nulls_nan_and_infinities_are_not_malformed() -> None:
    assert find_malformed(pa.nulls(2), LONG) == []
    assert find_malformed(pa.array([float("nan"), float("inf"), None]), DOUBLE) == []
    assert (
        find_malformed(pa.array([[None], None, [float("nan")]], pa.list_(DOUBLE)), pa.list_(DOUBLE))
        == []
    )


@given(
    st.lists(st.none() | st.binary(max_size=4) | st.text(max_size=3).map(str.encode), max_size=20)
)
def test_as_many_are_found_as_reading_counts(values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    counts: Counter[str] = Counter()
    read_column(array, declared=TEXT, counts=counts)
    assert sum(len(found.rows) for found in find_malformed(array, TEXT)) == counts.total()


@pytest.mark.parametrize("raw", [DOUBLE, pa.float32()], ids=str)
def test_whole_floats_are_longs_and_the_others_malformed(raw: pa.DataType) -> None:
    array = pa.array([1.0, 1.5, None, float("nan"), float("inf"), -0.0, -(2.0**63), 2.0**63], raw)
    values, found, counts = narrowed(array)
    assert values == [1, None, None, None, None, 0, -(2**63), None]
    assert found == [
        ("out of range", [4, 7], ("inf", "9.223372036854776e+18")),
        ("not whole", [1], ("1.5",)),
    ]
    assert counts == {"nan": 1}


def test_whole_decimals_are_longs_and_the_others_malformed() -> None:
    values = [
        Decimal("1.00"),
        Decimal("1.50"),
        None,
        Decimal(2**63),
        Decimal(2**63 - 1),
        Decimal(-(2**63)),
    ]
    assert narrowed(pa.array(values, pa.decimal128(38, 2))) == (
        [1, None, None, None, 2**63 - 1, -(2**63)],
        [("out of range", [3], ("9223372036854775808.00",)), ("not whole", [1], ("1.50",))],
        {},
    )


def test_lists_of_floats_are_narrowed_element_by_element() -> None:
    lists = pa.array([[9.5], [1.0, 2.5], None, [None, 3.0]], pa.large_list(DOUBLE))
    assert narrowed(lists.slice(1), pa.list_(LONG)) == (
        [[1, None], None, [None, 3]],
        [("not whole", [0], ("2.5",))],
        {},
    )


@given(st.lists(st.none() | st.floats() | st.integers(-(2**70), 2**70).map(float), max_size=10))
def test_narrowing_is_what_python_says(values: list[float | None]) -> None:
    good = [
        v is not None
        and v == v
        and abs(v) != float("inf")
        and v == int(v)
        and -(2**63) <= int(v) < 2**63
        for v in values
    ]
    result, found, _ = narrowed(pa.array(values, DOUBLE))
    assert result == [
        int(v) if v is not None and keep else None for v, keep in zip(values, good, strict=True)
    ]
    missing = sum(v is None or v != v for v in values)
    assert sum(len(rows) for _, rows, _ in found) == len(values) - sum(good) - missing


@pytest.mark.parametrize(
    ("raw", "declared"),
    [
        (TEXT, LONG),
        (DOUBLE, TEXT),
        (pa.bool_(), LONG),
        (DOUBLE, pa.list_(LONG)),
        (pa.list_(DOUBLE), LONG),
    ],
)
def test_other_types_cannot_be_narrowed(raw: pa.DataType, declared: pa.DataType) -> None:
    assert not narrowable(raw, declared)


def test_every_value_of_a_column_of_the_wrong_type_is_malformed_but_no_null() -> None:
    array = pa.array([["a"], None, []])
    assert plain(all_wrong(array)) == [("wrong type", [0, 2], ("['a']", "[]"))]
    assert all_wrong(pa.array([None, None], TEXT)) == []


def test_lists_of_different_lengths_are_found() -> None:
    one, other = (
        pa.array([[1], [1, 2], None, None]),
        pa.array([["a"], ["a"], None, []], pa.large_list(TEXT)),
    )
    assert plain(find_unequal([one, other])) == [("lengths differ", [1, 3], ("2, 1", "-1, 0"))]


def test_values_are_shown_on_one_short_line() -> None:
    assert short_text("a\nb") == r"'a\nb'"
    assert len(short_text("x" * 1000)) == 60
    assert short_text(datetime.date(2013, 1, 1)) == "datetime.date(2013, 1, 1)"
    many = pa.array([b"\xff"] * 10)
    assert len(list(find_malformed(many, TEXT)[0].examples())) == 3


@pytest.mark.parametrize("scale", [0, 2, 57, 58, 60])
def test_decimals_of_up_to_76_digits_are_longs_where_they_are_whole(scale: int) -> None:
    values = [Decimal(7), Decimal(-7), None, *([Decimal("7.25")] if scale else [])]
    bad = [(3, "not whole")] if scale else []
    if scale <= 56:
        bad += [(len(values), "out of range")]
        values += [Decimal(2**63), Decimal(2**63 - 1)]
    array, found = narrow(pa.array(values, pa.decimal256(76, scale)), pa.int64(), Counter())
    expected = [None if v is None or v == 2**63 or v % 1 else int(v) for v in values]
    assert array.to_pylist() == expected
    assert sorted((int(row), one.what) for one in found for row in one.rows) == sorted(bad)


@pytest.mark.parametrize("declared", [DOUBLE, LONG], ids=str)
@given(
    values=st.lists(
        st.none()
        | st.text("0123456789+-.eE ,naif_\uff11\n", max_size=12)
        | st.floats().map(str)
        | st.integers(-(2**65), 2**65).map(str)
    )
)
def test_numbers_of_texts_are_what_python_says(
    declared: pa.DataType, values: list[str | None]
) -> None:
    array = pa.array(values, TEXT)
    assert narrowable(TEXT, declared, text=True)
    assert not narrowable(TEXT, declared)
    result, found = narrow(array, declared, Counter())
    result.validate(full=True)
    assert result.type == declared
    expected = [number_of(value, is_long=declared == LONG) for value in values]
    assert list(map(repr, result.to_pylist())) == [
        repr(None if isinstance(value, str) else value) for value in expected
    ]
    assert sorted((row, one.what) for one in found for row in one.rows.tolist()) == [
        (row, value) for row, value in enumerate(expected) if isinstance(value, str)
    ]


def number_of(text: str | None, *, is_long: bool) -> float | int | str | None:
    """The number of a text, or what is wrong with it."""
    text = (text or "").strip(" \t\n\v\f\r")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        return "not a number"
    if not text.isascii() or "_" in text or text.lower() in ("-nan", "+nan"):
        return "not a number"
    has_digits = any(map(str.isdigit, text))
    if not is_long:
        return "out of range" if math.isinf(value) and has_digits else value
    if math.isnan(value):
        return None
    whole, _, fraction = text.partition(".")
    if not (has_digits and whole.lstrip("+-").isdigit() and not fraction.strip("0")):
        return "not whole"
    return int(whole) if -(2**63) <= int(whole) < 2**63 else "out of range"
