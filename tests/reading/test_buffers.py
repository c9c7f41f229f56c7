from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind
from featstore.extraction.units.extractor import Extractor
from featstore.reading.buffers import (
    Ragged,
    as_type,
    missing_values,
    scalar_floats,
    slot_values,
    truncate,
)
from featstore.spec.parse import load_spec

ID = Slot(name="x", kind=SlotKind.ID)
FLOAT = Slot(name="x", kind=SlotKind.FLOAT)
LIST = Slot(name="x", kind=SlotKind.ID, shape=(None,))
PAIR = Slot(name="x", kind=SlotKind.ID, shape=(2,))
FLOAT_LIST = Slot(name="x", kind=SlotKind.FLOAT, shape=(None,))
FLOAT_PAIR = Slot(name="x", kind=SlotKind.FLOAT, shape=(2,))
FLOAT32_MAX = float(np.finfo(np.float32).max)
# Around the values from which a float64 rounds to an infinity of float32, and far beyond them.
WIDE = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [sign * FLOAT32_MAX * by for sign in (1, -1) for by in (1, 1 + 2**-25, 1 + 2**-24, 2, 1e200)]
)

EDGES = [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1, -(2**63), 1, 0]
IDS = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1))
SLICES = st.tuples(st.integers(0, 4), st.integers(0, 12))


def values_of(column: pa.ChunkedArray, slot: Slot) -> Any:
    """An array or a `Ragged`, as the slot's shape says."""
    return slot_values(column, slot)


def lists(ragged: Ragged) -> list[list[int]]:
    bounds = zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)
    return [ragged.values[begin:end].tolist() for begin, end in bounds]


@given(st.lists(st.none() | IDS, max_size=12), SLICES)
def test_ids_around_2_to_the_53_and_63_arrive_whole_beside_nulls(
    values: list[Any], cut: Any
) -> None:
    array = pa.array(values, pa.int64()).slice(*cut)
    found = values_of(pa.chunked_array([array]), ID)
    assert found.dtype == np.int64
    assert found.tolist() == [0 if value is None else value for value in array.to_pylist()]


@given(
    st.lists(st.none() | st.lists(st.none() | IDS, max_size=4), max_size=12), SLICES, st.booleans()
)
def test_lists_arrive_whole_however_they_are_sliced_and_chunked(
    values: list[Any], cut: Any, is_split: bool
) -> None:
    array = pa.array(values, pa.list_(pa.int64())).slice(*cut)
    chunks = [array.slice(0, 2), array.slice(2)] if is_split else [array]
    expected = [
        [0] if row is None else [item for item in row if item is not None]
        for row in array.to_pylist()
    ]
    assert lists(values_of(pa.chunked_array(chunks), LIST)) == expected


@given(st.lists(st.lists(IDS, min_size=1, max_size=3), min_size=1, max_size=6), st.data())
def test_what_offsets_keep_under_a_null_list_is_not_delivered(
    values: list[list[Any]], data: st.DataObject
) -> None:
    full = pa.array(values, pa.list_(pa.int64()))
    nulls = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    array = pa.ListArray.from_arrays(full.offsets, full.values, mask=pa.array(nulls))
    expected = [[0] if is_null else row for row, is_null in zip(values, nulls, strict=True)]
    assert lists(values_of(pa.chunked_array([array]), LIST)) == expected


@given(st.lists(st.lists(IDS, max_size=6), max_size=6), st.integers(1, 4))
def test_truncate_keeps_the_first_elements(values: list[list[Any]], max_len: int) -> None:
    ragged = values_of(pa.chunked_array([pa.array(values, pa.list_(pa.int64()))]), LIST)
    assert lists(truncate(ragged, max_len)) == [row[:max_len] for row in values]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        (pa.int8(), [1, None, -1], [1, 0, -1]),
        (pa.int32(), [1, None, 2**31 - 1], [1, 0, 2**31 - 1]),
        (pa.uint32(), [2**32 - 1, None], [2**32 - 1, 0]),
        (pa.uint64(), [2**53 + 1, None], [2**53 + 1, 0]),
        (pa.bool_(), [True, None, False], [1, 0, 0]),
    ],
)
def test_other_integers_become_int64(type_: Any, values: Any, expected: Any) -> None:
    found = values_of(pa.chunked_array([pa.array(values, type_)]), ID)
    assert (found.dtype, found.tolist()) == (np.int64, expected)


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_become_float32_with_nan_for_null(type_: Any) -> None:
    array = pa.array([1.5, None, -2.0], pa.float32()).cast(type_)
    found = values_of(pa.chunked_array([array]), FLOAT)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array([1.5, np.nan, -2.0], np.float32))


def test_an_unsigned_id_above_int64_is_refused_not_wrapped() -> None:
    with pytest.raises(pa.ArrowInvalid, match="9223372036854775808"):
        values_of(pa.chunked_array([pa.array([2**63], pa.uint64())]), ID)


def test_missing_float_lists_are_one_nan_and_empty_ones_stay_empty() -> None:
    slot = Slot(name="x", kind=SlotKind.FLOAT, shape=(None,))
    found = values_of(
        pa.chunked_array([pa.array([None, [], [None], [1.0]], pa.list_(pa.float64()))]), slot
    )
    assert found.offsets.tolist() == [0, 1, 1, 1, 2]
    np.testing.assert_array_equal(found.values, np.array([np.nan, 1.0], np.float32))


@pytest.mark.parametrize(
    "type_", [pa.list_(pa.int32(), 2), pa.list_(pa.int64()), pa.large_list(pa.int64())]
)
def test_fixed_widths_become_a_matrix_from_any_kind_of_list(type_: Any) -> None:
    array = pa.array([[9, 9], [1, 2], None, [3, None]], type_).slice(1)
    assert values_of(pa.chunked_array([array]), PAIR).tolist() == [[1, 2], [0, 0], [3, 0]]


def test_a_list_of_another_length_is_no_fixed_width() -> None:
    with pytest.raises(ValueError, match="another length than 2"):
        values_of(pa.chunked_array([pa.array([[1, 2], [1]])]), PAIR)


def test_fixed_size_lists_can_be_read_as_lists() -> None:
    array = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2))
    assert lists(values_of(pa.chunked_array([array]), LIST)) == [[1, 2], [0], [3]]


@pytest.mark.parametrize("slot", [ID, FLOAT, LIST, PAIR], ids=["id", "float", "list", "fixed"])
def test_a_column_of_nulls_equals_a_column_that_is_not_there(slot: Any) -> None:
    nulls = values_of(pa.chunked_array([pa.nulls(3, slot.arrow_type(nullable=True))]), slot)
    absent = missing_values(slot, 3)
    if isinstance(absent, Ragged):
        assert lists(nulls) == lists(absent) == [[0], [0], [0]]
    else:
        np.testing.assert_array_equal(nulls, absent)


@pytest.mark.parametrize("slot", [ID, FLOAT, LIST, PAIR], ids=["id", "float", "list", "fixed"])
def test_no_rows_are_no_values(slot: Any) -> None:
    found = values_of(pa.chunked_array([], slot.arrow_type()), slot)
    assert len(found) == 0


def test_columns_without_nulls_are_views_of_arrow_memory() -> None:
    array = pa.array([1, 2, 3], pa.int64())
    assert (
        values_of(pa.chunked_array([array]), ID).__array_interface__["data"][0]
        == array.buffers()[1].address
    )


def test_labels_are_float32_and_know_where_they_are_null_or_nan() -> None:
    values, valid = scalar_floats(
        pa.chunked_array([pa.array([1.0, None, float("nan")], pa.float64())])
    )
    assert valid is not None
    assert values.dtype == np.float32
    assert valid.tolist() == [True, False, False]
    assert scalar_floats(pa.chunked_array([pa.array([True, False])]))[1] is None


def extracted(name: Any, declared: Any, values: Any) -> Any:
    """What an extraction stores of raw values."""
    spec = load_spec(
        {
            "spec": 1,
            "inputs": {"v": declared},
            "slots": [{"slot": 1, "name": name, "op": "identity", "of": "v"}],
        }
    )
    type_ = pa.float64() if declared == "double" else pa.list_(pa.float64())
    return Extractor(spec)(pa.record_batch({"v": pa.array(values, type_)})).column(name)


@given(st.lists(st.none() | WIDE | st.just(float("nan"))), SLICES)
def test_a_float64_is_read_as_an_extraction_stores_it(values: list[Any], cut: Any) -> None:
    array = pa.array(values, pa.float64()).slice(*cut)
    expected = np.asarray(extracted("x", "double", array.to_pylist()))
    column = pa.chunked_array([array])
    np.testing.assert_array_equal(values_of(column, FLOAT), expected)
    numbers, valid = scalar_floats(column)
    np.testing.assert_array_equal(numbers, expected)
    assert (np.ones(len(array), bool) if valid is None else valid).tolist() == (
        expected == expected
    ).tolist()
    np.testing.assert_array_equal(
        as_type(column, pa.float32()).fill_null(float("nan")).to_numpy(), expected
    )


@given(st.lists(st.none() | st.lists(st.none() | WIDE, max_size=4), max_size=12), SLICES)
def test_lists_of_float64_are_read_as_an_extraction_stores_them(
    values: list[Any], cut: Any
) -> None:
    array = pa.array(values, pa.list_(pa.float64())).slice(*cut)
    expected = extracted("x", "list<double>", array.to_pylist()).to_pylist()
    found = lists(values_of(pa.chunked_array([array]), FLOAT_LIST))
    assert str([[x + 0.0 for x in row] for row in found]) == str(expected)


@given(st.lists(st.none() | st.tuples(WIDE, WIDE).map(list), max_size=12), SLICES)
def test_fixed_widths_of_float64_have_nan_where_float32_cannot_hold_them(
    values: list[Any], cut: Any
) -> None:
    array = pa.array(values, pa.list_(pa.float64(), 2)).slice(*cut)
    singles = [x for row in array.to_pylist() for x in (row or [None, None])]
    expected = np.asarray(extracted("x", "double", singles)).reshape(-1, 2)
    np.testing.assert_array_equal(values_of(pa.chunked_array([array]), FLOAT_PAIR), expected)


@pytest.mark.parametrize(
    "type_",
    [pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 2)],
    ids=str,
)
@given(
    values=st.lists(st.none() | st.tuples(WIDE, WIDE).map(list), max_size=12),
    cut=SLICES,
    is_split=st.booleans(),
)
def test_lists_are_shown_with_null_where_float32_cannot_hold_an_element(
    type_: Any, values: list[Any], cut: Any, is_split: bool
) -> None:
    array = pa.array(values, type_).slice(*cut)
    column = pa.chunked_array([array.slice(0, 2), array.slice(2)] if is_split else [array])
    found = as_type(column, FLOAT_LIST.arrow_type(nullable=True)).to_pylist()
    singles = extracted(
        "x", "double", [x for row in array.to_pylist() if row is not None for x in row]
    ).to_pylist()
    stored = iter([None if x != x else x for x in singles])
    expected = [None if row is None else [next(stored) for _ in row] for row in array.to_pylist()]
    assert str(
        [None if row is None else [x if x is None else x + 0.0 for x in row] for row in found]
    ) == str(expected)


def test_infinities_of_a_foreign_file_stay_infinities() -> None:
    array = pa.array([float("inf"), -float("inf"), 1e300], pa.float64())
    np.testing.assert_array_equal(
        values_of(pa.chunked_array([array]), FLOAT), np.array([np.inf, -np.inf, np.nan], np.float32)
    )
