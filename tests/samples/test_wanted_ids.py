"""Ids are taken as they are, or refused: never rounded, cut or wrapped to those of other samples."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from featstore.samples.lookups import can_be_ids, ids_of_type

SECONDS, MICROS = pa.timestamp("s"), pa.timestamp("us")
DAY = datetime(2026, 11, 1, 8, 30)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.int8(), True),
        (pa.uint64(), True),
        (pa.string(), True),
        (pa.large_string(), True),
        (SECONDS, True),
        (pa.timestamp("us", "UTC"), True),
        (pa.timestamp("ns"), False),
        (pa.float64(), False),
        (pa.bool_(), False),
        (pa.date32(), False),
    ],
)
def test_integers_texts_and_timestamps_can_be_ids(column: pa.DataType, expected: bool) -> None:
    assert can_be_ids(column) is expected


@pytest.mark.parametrize(
    ("wanted", "column", "expected"),
    [
        ([1, np.int8(2), np.uint64(3), torch.tensor(4), None], pa.int64(), [1, 2, 3, 4, None]),
        (pa.array([5, None]), pa.int64(), [5, None]),
        (pa.chunked_array([["a"], ["b"]]), pa.string(), ["a", "b"]),
        (np.array([7, 8]), pa.int32(), [7, 8]),
        (torch.tensor([7, 8]), pa.int32(), [7, 8]),
        ([2**64 - 1], pa.uint64(), [2**64 - 1]),
        (["a", np.str_("b"), None], pa.large_string(), ["a", "b", None]),
        ([DAY, None], SECONDS, [DAY, None]),
        (pa.array([DAY], SECONDS), SECONDS, [DAY]),
        ([np.datetime64(DAY, "us")], MICROS, [DAY]),
        ([DAY.replace(tzinfo=UTC)], pa.timestamp("ms", "UTC"), [DAY.replace(tzinfo=UTC)]),
        ([], SECONDS, []),
    ],
)
def test_ids_are_what_they_were(wanted: Any, column: pa.DataType, expected: list[Any]) -> None:
    array = ids_of_type(wanted, column)
    assert (array.type, array.to_pylist()) == (column, expected)


@pytest.mark.parametrize(
    ("wanted", "column"),
    [
        (7.9, pa.int64()),
        (7.0, pa.int64()),
        (np.float32(7.5), pa.int64()),
        (Decimal("7.5"), pa.int64()),
        (True, pa.int64()),
        (np.bool_(True), pa.int64()),
        ("7", pa.int64()),
        (2**70, pa.int64()),
        (300, pa.int8()),
        (-1, pa.uint64()),
        (7, pa.string()),
        (b"\xff", pa.string()),
        ("\ud800", pa.large_string()),
        (7, MICROS),
        (7.5, MICROS),
        ("2026-11-01", MICROS),
        (date(2026, 11, 1), MICROS),
        (DAY.replace(microsecond=5), SECONDS),
        (np.datetime64("2026-11-01T00:00:00.123456789"), MICROS),
    ],
)
def test_an_id_that_does_not_fit_its_column_is_a_type_error(
    wanted: Any, column: pa.DataType
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"by_id(): expected ids of type {column}: ")):
        ids_of_type([None, wanted], column)


@given(st.one_of(st.integers(-(2**65), 2**65), st.floats(), st.booleans(), st.none(), st.text()))
def test_whatever_is_accepted_as_an_integer_is_the_same_integer(value: Any) -> None:
    try:
        [found] = ids_of_type([value], pa.int64()).to_pylist()
    except TypeError:
        assert (
            not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63
        )
    else:
        assert found == value
