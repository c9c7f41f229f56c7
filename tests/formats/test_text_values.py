"""Texts and the types that they are written as."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.formats.text_values import TIMESTAMP, infer_text_type, parse_texts


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
