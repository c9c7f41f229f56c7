"""Texts and the types that they are written as."""

import datetime
import math

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from featstore.formats.text_values import TIMESTAMP, infer_text_type, is_kept, parse_texts


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", None], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["1e-3", "nan"], pa.float64()),
        (["007"], pa.string()),
        (["+1"], pa.string()),
        (["1", " 2"], pa.string()),
        (["18446744073709551615"], pa.string()),
        (["0.5", "12345678901234567"], pa.string()),
        (["true", "false"], pa.bool_()),
        (["True"], pa.string()),
        (["2024-01-01"], TIMESTAMP),
        (["2024-01-01", "x"], pa.string()),
        ([None], pa.string()),
        ([], pa.string()),
    ],
)
def test_a_type_is_taken_only_if_it_holds_all_texts(
    texts: list[str | None], kind: pa.DataType
) -> None:
    assert infer_text_type(pa.array(texts, pa.string())) == kind


def test_times_without_a_zone_are_utc() -> None:
    texts = ["2024-01-01 00:00:00", "2024-01-01T02:00:00+02:00", " 2024-01-01 ", "no", None]
    values, bad = parse_texts(pa.array(texts), TIMESTAMP)
    midnight = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    assert values.to_pylist() == [midnight] * 3 + [None, None]
    assert bad == [3]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.just("x"), max_size=30))
def test_texts_that_do_not_fit_are_told_by_position(items: list[int | str | None]) -> None:
    texts = pa.array([None if item is None else str(item) for item in items], pa.string())
    values, bad = parse_texts(texts, pa.int64())
    assert values.to_pylist() == [None if item == "x" else item for item in items]
    assert bad == [i for i, item in enumerate(items) if item == "x"]


LOSSY = {  # texts of which a value of the type would lose something
    pa.bool_(): ["1", "TRUE", "t"],
    pa.int64(): ["00501", "+1", " 77", "-0", "0x1F", "1.0"],
    pa.float64(): [
        *("007.5", "+1.5", " 1.5", "9007199254740993", "9007199254740993.0", "1e400", "1e-400"),
        *("123456789012345680000.0", "0.1234567890123456789", "9" * 400),
    ],
    TIMESTAMP: ["2024-01-01 00:00:00.123456789"],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(k, text) for k, texts in LOSSY.items() for text in texts]
)
def test_a_text_that_would_lose_something_is_no_value_of_an_inferred_type(
    kind: pa.DataType, text: str
) -> None:
    good = {pa.bool_(): "true", pa.int64(): "5", pa.float64(): "0.5", TIMESTAMP: "2024-01-01"}[kind]
    texts = pa.array([good, text, None])
    values, bad = parse_texts(texts, kind, is_inferred=True)
    assert (values.is_valid().to_pylist(), bad) == ([True, False, False], [1])
    assert infer_text_type(texts) != kind


@pytest.mark.parametrize(
    "text",
    [
        *("9007199254740992.0", "0.10000000000000000555", "1.000000000000000056e-01", "5e-324"),
        *("0.10000000000000000000", "1e30", "inf", "nan", "0e999", "0.12345678901234567"),
    ],
)
def test_a_number_that_a_double_keeps_is_one(text: str) -> None:
    values, bad = parse_texts(pa.array([text]), pa.float64(), is_inferred=True)
    assert bad == []
    assert repr(values[0].as_py()) == repr(float(text))


@example(5.960464477539063e-08, 16)  # 5.960464477539062, rounded to as many digits, is another
@given(st.floats(), st.integers(16, 40))
def test_every_way_to_write_a_double_in_full_is_kept(value: float, num_digits: int) -> None:
    assert is_kept(repr(value))
    assert is_kept(f"{value:.{num_digits}e}")


def test_given_types_take_what_can_be_read_as_them() -> None:
    values, bad = parse_texts(pa.array(["00501", " 77"]), pa.int64())
    assert (values.to_pylist(), bad) == ([501, 77], [])


@pytest.mark.parametrize(("kind", "text"), [(pa.float64(), "-1e400"), (pa.float32(), "4e38")])
def test_no_type_makes_an_infinity_of_a_number(kind: pa.DataType, text: str) -> None:
    values, bad = parse_texts(pa.array(["0.5", text, "-inf", None]), kind)
    assert (values.to_pylist(), bad) == ([0.5, None, -math.inf, None], [1])
