import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind
from featstore.reading.tables import marks_to_nulls, nan_to_null, nulls_to_marks

ID, FLOAT = SlotKind.ID, SlotKind.FLOAT
USER, COST = Slot(name="x", kind=ID, number=1), Slot(name="x", kind=FLOAT, number=2)
TAGS = Slot(name="x", kind=ID, shape=(None,), number=3)
PLACE = Slot(name="x", kind=FLOAT, shape=(2,), number=4)
PRICES = Slot(name="x", kind=FLOAT, shape=(None,), number=5)
IDS, FLOATS = st.integers(1, 2**63 - 1), st.floats(width=32, allow_nan=False)
VALUES: dict[Slot, Any] = {
    USER: IDS,
    COST: FLOATS,
    TAGS: st.lists(IDS, max_size=3),
    PRICES: st.lists(FLOATS, max_size=3),
    PLACE: st.lists(FLOATS, min_size=2, max_size=2),
}


@pytest.mark.parametrize("slot", VALUES, ids=lambda slot: f"{slot.kind} {slot.shape_text}")
@given(data=st.data())
def test_nulls_become_marks_that_are_read_as_nulls_again(slot: Slot, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[slot], max_size=20))
    start = data.draw(st.integers(0, 3))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, slot.arrow_type(nullable=True)).slice(start)], names=["x"]
    )
    marked = nulls_to_marks(batch, [slot])
    assert marked.column("x").type == slot.arrow_type()
    assert marked.column("x").null_count == 0
    assert (
        marks_to_nulls(pa.Table.from_batches([marked]), [slot])["x"].to_pylist() == values[start:]
    )


@pytest.mark.parametrize(
    ("slot", "array", "expected"),
    [
        (USER, pa.array([3, None], pa.int32()), [3, 0]),
        (USER, pa.array([True, None]), [1, 0]),
        (
            TAGS,
            pa.array([[1, None, 2], [None], None, []], pa.large_list(pa.int16())),
            [[1, 2], [], [0], []],
        ),
        (COST, pa.array([1.5, math.inf, -math.inf], pa.float64()), [1.5, math.inf, -math.inf]),
        (
            PRICES,
            pa.array([[1.5, 1e300], [1e300], [math.inf], []], pa.list_(pa.float64())),
            [[1.5], [], [math.inf], []],
        ),
    ],
)
def test_foreign_types_are_stored_as_slots_are(
    slot: Slot, array: pa.Array, expected: list[Any]
) -> None:
    batch = pa.RecordBatch.from_arrays([array, array], names=["x", "other"])
    marked = nulls_to_marks(batch, [slot])
    assert marked.column("x").to_pylist() == expected
    assert marked.column("other").equals(array)


@pytest.mark.parametrize(
    ("slot", "values", "expected"),
    [
        (
            TAGS,
            [[0], None, [1], [], [0, 0], [None], [None, 0]],
            [None, None, [1], [], [0, 0], [None], [None, 0]],
        ),
        (PRICES, [[math.nan], None, [1.5], []], [None, None, [1.5], []]),
        (PLACE, [[math.nan, math.nan], None, [1.5, 2.5]], [None, None, [1.5, 2.5]]),
        (USER, [0, None, 3], [None, None, 3]),
    ],
)
def test_marks_are_null_beside_nulls_and_in_slices_too(
    slot: Slot, values: list[Any], expected: list[Any]
) -> None:
    array = pa.array(
        [[9] * (slot.width or 1) if slot.shape else 9, *values], slot.arrow_type(nullable=True)
    ).slice(1)
    assert marks_to_nulls(pa.table({"x": array}), [slot])["x"].to_pylist() == expected


def test_nan_is_null_in_columns_of_floats_alone() -> None:
    column = pa.chunked_array([[1.0, math.nan], [None]], pa.float64())
    assert nan_to_null(column).to_pylist() == [1.0, None, None]
    for other in (
        pa.chunked_array([[1.0, None]]),
        pa.chunked_array([["nan"]]),
        pa.chunked_array([], pa.float32()),
    ):
        assert nan_to_null(other) is other
