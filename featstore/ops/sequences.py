"""Sequence groups: list columns that describe the same events and must stay aligned.

If each column were cleaned alone, a null in one would shift its later elements against those of the
others.
"""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.arrays import (
    Mask,
    array_of,
    count_true,
    list_of,
    nulls_of,
    offsets_of,
    struct_of,
    values_of,
)
from featstore.ops.lists import drop_elements, offsets_from, positions_of, truncate_lists


def aligned_type(types: list[pa.DataType]) -> pa.DataType:
    """The type of aligned lists: one list of structs, a field for each column in order."""
    return pa.list_(
        pa.struct([pa.field(str(i), arrow_type.value_type) for i, arrow_type in enumerate(types)])
    )


def align(
    *lists: pa.ListArray,
    max_len: int | None,
    truncate: str,
    empty_as_null: bool,
    counts: Counter[str],
) -> pa.ListArray:
    """Combines the columns into one flat list of structs, with complete events only.

    An event is dropped where a column has a null, NaN, infinity or a number beyond float32. A row
    is missing where its lists differ in length or only some of them are missing.

    Args:
        *lists: The columns, of any list form.
        max_len: The most events that a row keeps; None keeps all.
        truncate: `head` keeps the first events, `tail` the last.
        empty_as_null: Whether an event with an empty text is dropped too.
        counts: Receives `incomplete elements` and `lengths differ`.
    """
    nulls, differ = _missing_rows(lists)
    count_true(differ, counts, "lengths differ")
    lengths = np.where(nulls, 0, np.diff(offsets_of(lists[0])))
    columns = [
        array.values.take(array_of(positions_of(offsets_of(array)[:-1], lengths)))
        for array in lists
    ]
    dropped = np.zeros(int(lengths.sum()), np.bool_)
    for column in columns:
        dropped |= _incomplete(column, empty_as_null)
    count_true(dropped, counts, "incomplete elements")
    events = list_of(offsets_from(lengths), struct_of(columns), nulls if nulls.any() else None)
    return truncate_lists(drop_elements(events, dropped), max_len=max_len, truncate=truncate)


def column_of(events: pa.ListArray, *, position: int) -> pa.ListArray:
    """One column of aligned lists, without -0.0."""
    values = events.values.field(position)
    if pa.types.is_floating(values.type):
        values = array_of(values_of(values) + 0.0)
    return list_of(offsets_of(events), values, nulls_of(events))


def _missing_rows(lists: tuple[pa.ListArray, ...]) -> tuple[Mask, Mask]:
    """The rows that are missing, and those among them whose lists differ in length."""
    missing = [values_of(pc.is_null(array)) for array in lists]
    lengths = [
        np.where(null, -1, np.diff(offsets_of(array)))
        for array, null in zip(lists, missing, strict=True)
    ]
    differ = np.any([length != lengths[0] for length in lengths], axis=0)
    return differ | missing[0], differ


def _incomplete(column: pa.Array, empty_as_null: bool) -> Mask:
    nulls: Mask = values_of(pc.is_null(column))
    if pa.types.is_floating(column.type):
        with np.errstate(over="ignore", invalid="ignore"):
            nulls = nulls | ~np.isfinite(values_of(column).astype(np.float32))
    elif empty_as_null and pa.types.is_string(column.type):
        nulls = nulls | values_of(pc.fill_null(pc.equal(pc.binary_length(column), 0), True))
    return nulls
