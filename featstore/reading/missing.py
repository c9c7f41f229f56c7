"""The marks of missing values (0, `[0]`, NaN, `[NaN]`) of slot columns, shown as null again."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.schema import Slot, SlotKind


def marks_to_nulls(table: pa.Table, slots: Iterable[Slot]) -> pa.Table:
    """The table with missing slot values as null; columns that are no slot, or that hold nulls already, keep them."""
    for slot in slots:
        index = table.schema.get_field_index(slot.name)
        if index >= 0:
            chunks = [_to_null(chunk, slot) for chunk in table.column(index).chunks]
            type_ = slot.arrow_type(nullable=True)
            column = pa.chunked_array([chunk.cast(type_) for chunk in chunks], type_)
            table = table.set_column(index, slot.to_field(nullable=True), column)
    return table


def _to_null(array: pa.Array, slot: Slot) -> pa.Array:
    if slot.is_list:
        return _lists_to_null(array, slot)
    if slot.width is not None:
        flags = _is_mark(array.flatten(), slot).to_numpy(zero_copy_only=False).reshape(-1, slot.width)
        return _with_nulls(array, flags.all(axis=1)) if array.null_count == 0 else array
    return pc.if_else(_is_mark(array, slot), pa.scalar(None, array.type), array)


def _is_mark(values: pa.Array, slot: Slot) -> pa.Array:
    return pc.equal(values, 0) if slot.kind is SlotKind.ID else pc.is_nan(values)


def _lists_to_null(array: pa.Array, slot: Slot) -> pa.Array:
    """A list is missing where it has one element and that element is the mark."""
    if array.null_count:
        return array
    offsets = np.asarray(array.offsets)
    single = np.flatnonzero(np.diff(offsets) == 1)
    marks = _is_mark(array.values.take(pa.array(offsets[single])), slot).to_numpy(zero_copy_only=False)
    missing = np.zeros(len(array), dtype=bool)
    missing[single[marks.astype(bool)]] = True
    return _with_nulls(array, missing) if missing.any() else array


def _with_nulls(array: pa.Array, missing: np.ndarray) -> pa.Array:
    indices = pa.array(np.arange(len(array)), mask=missing)
    return array.take(indices)
