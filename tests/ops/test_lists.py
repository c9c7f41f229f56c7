from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops import lists
from featstore.ops.arrays import list_of, nulls_of, offsets_of, struct_of

rows = st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=5), max_size=8)


def is_flat(array: pa.ListArray) -> bool:
    offsets = offsets_of(array)
    return bool(
        offsets[0] == 0 and offsets[-1] == len(array.values) and array.values.null_count == 0
    )


def flat(values: list[Any]) -> pa.ListArray:
    return lists.flat(pa.array(values, pa.list_(pa.int64())))


def known(values: list[Any]) -> list[Any]:
    return [
        None if row is None else [value for value in row if value is not None] for row in values
    ]


@given(rows, st.integers(0, 8), st.integers(0, 8))
def test_flat_lists_hold_the_rows_of_any_slice_without_null_elements(
    values: list[Any], start: int, length: int
) -> None:
    array = lists.flat(pa.array(values, pa.list_(pa.int64())).slice(start, length))
    array.validate(full=True)
    assert is_flat(array)
    assert array.to_pylist() == known(values)[start : start + length]


@given(rows, st.integers(1, 6), st.sampled_from(["head", "tail"]))
def test_cut_keeps_the_first_or_the_last_elements(
    values: list[Any], max_len: int, truncate: str
) -> None:
    array = lists.truncate_lists(flat(values), max_len=max_len, truncate=truncate)
    expected = [
        row and (row[:max_len] if truncate == "head" else row[-max_len:]) for row in known(values)
    ]
    assert is_flat(array)
    assert array.to_pylist() == expected


@given(rows, st.integers(1, 6), st.sampled_from(["head", "tail"]))
def test_lists_of_structs_are_cut_like_lists_of_their_fields(
    values: list[Any], max_len: int, truncate: str
) -> None:
    array = flat(values)
    structs = list_of(offsets_of(array), struct_of([array.values] * 2), nulls_of(array))
    found = lists.truncate_lists(structs, max_len=max_len, truncate=truncate)
    found.validate(full=True)
    expected = lists.truncate_lists(array, max_len=max_len, truncate=truncate).to_pylist()
    assert found.to_pylist() == [
        row and [{"0": value, "1": value} for value in row] for row in expected
    ]


@given(rows, st.lists(st.integers(0, 9), max_size=3))
def test_fill_null_replaces_missing_lists_only(values: list[Any], default: list[int]) -> None:
    array = lists.fill_null(flat(values), pa.scalar(default, pa.list_(pa.int64())))
    assert is_flat(array)
    assert array.to_pylist() == [default if row is None else row for row in known(values)]


@given(rows)
def test_mark_missing_leaves_no_null_and_tells_missing_from_empty(values: list[Any]) -> None:
    required = pa.list_(pa.field("element", pa.int64(), nullable=False))
    array = lists.mark_missing(flat(values), 0, required)
    array.validate(full=True)
    assert array.type == required
    assert array.null_count == 0
    assert array.to_pylist() == [[0] if row is None else row for row in known(values)]


@pytest.mark.parametrize("default", ["x", 1])
def test_fill_null_replaces_missing_values(default: object) -> None:
    array = pa.array([None, default])
    assert lists.fill_null(array, pa.scalar(default)).to_pylist() == [default, default]
