"""List arrays: rows of different lengths over one array of values.

Between operators every list array is in *flat form*: offsets begin at 0 and cover all values, no
element is null, and a null row has no elements. `flat` produces that form; every other function
here preserves it.

The columns of a sequence group describe the same events and must stay aligned: if each was cleaned
alone, a null in one would shift its later elements against those of the others.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.native import kernels
from featstore.ops.arrays import (
    Integers,
    Mask,
    array_of,
    count_true,
    has_view,
    list_of,
    nulls_of,
    offsets_of,
    stored_offsets_of,
    struct_of,
    validity_of,
    values_of,
)


def is_list(arrow_type: pa.DataType) -> bool:
    """Whether rows of this type hold a variable number of values."""
    return bool(pa.types.is_list(arrow_type))


def element_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the elements of a list, else the type itself."""
    return arrow_type.value_type if is_list(arrow_type) else arrow_type


def is_list_or_text(arrow_type: pa.DataType) -> bool:
    """Whether values of this type have a length."""
    return is_list(arrow_type) or bool(pa.types.is_string(arrow_type))


def as_list(array: pa.Array) -> pa.ListArray:
    """A list array of any of Arrow's layouts, such as of large or fixed-size lists, as a list."""
    return array if is_list(array.type) else array.cast(pa.list_(array.type.value_type))


def zero_based(array: pa.Array) -> tuple[Integers, pa.Array]:
    """The offsets of a list array shifted to begin at 0, and the values that they cover.

    A slice of a larger array still refers to the values of the whole array.
    """
    offsets = offsets_of(array)
    return offsets - offsets[0], array.values.slice(offsets[0], offsets[-1] - offsets[0])


def flat(array: pa.ListArray, counts: Counter[str] | None = None) -> pa.ListArray:
    """Converts any list array to flat form; null elements are dropped.

    Args:
        array: The list array.
        counts: Receives `null elements`, those of rows that are not null themselves.
    """
    (offsets, values), nulls = zero_based(array), nulls_of(array)
    if nulls is not None and np.diff(offsets)[nulls].any():
        lengths = np.where(nulls, 0, np.diff(offsets))
        values = elements_at(values, offsets[:-1], lengths)
        offsets = offsets_from(lengths)
    missing = nulls_of(values)
    if missing is not None:
        if counts is not None:
            count_true(missing, counts, "null elements")
        offsets = offsets_from(~missing)[offsets]
        values = values.drop_null()
    return list_of(offsets, values, nulls)


def truncate_lists(array: pa.ListArray, *, max_len: int | None, truncate: str) -> pa.ListArray:
    """Truncates each row of a flat list.

    Args:
        array: A flat list.
        max_len: The most elements that a row keeps; None keeps all.
        truncate: `head` keeps the first elements, `tail` the last.
    """
    offsets, elements = zero_based(array)
    lengths = np.diff(offsets)
    if max_len is None or not (lengths > max_len).any():
        return array
    kept = np.minimum(lengths, max_len)
    starts = offsets[:-1] + (lengths - kept if truncate == "tail" else 0)
    return list_of(offsets_from(kept), elements_at(elements, starts, kept), validity_of(array))


def drop_elements(array: pa.ListArray, dropped: Mask) -> pa.ListArray:
    """Drops the elements of a flat list where `dropped`, `(num_values,)`, is True."""
    values = _filtered(array.values, array_of_bits(~dropped))
    return list_of(offsets_from(~dropped)[offsets_of(array)], values, validity_of(array))


def _filtered(values: pa.Array, is_kept: pa.BooleanArray) -> pa.Array:
    """The elements of a flat list, none of which is null, at which a mask is true."""
    if not pa.types.is_struct(values.type):
        return values.filter(is_kept)
    # Of structs Arrow takes row by row, which costs several times as much as filtering each field.
    fields = [values.field(i).filter(is_kept) for i in range(values.type.num_fields)]
    return pa.StructArray.from_arrays(fields, fields=list(values.type))


def fill_null(array: pa.Array, value: pa.Scalar) -> pa.Array:
    """Replaces the null rows of an array by `value`; flat lists stay flat."""
    return pc.coalesce(array, value)


def mark_missing(array: pa.ListArray, mark: float, arrow_type: pa.DataType) -> pa.ListArray:
    """A flat list of numbers as a column without nulls: a null row becomes `[mark]`.

    Args:
        array: A flat list of numbers.
        mark: The element that stands for a missing list: 0, or NaN.
        arrow_type: The list type of the result, whose elements may be required.
    """
    nulls = nulls_of(array)
    if nulls is None:
        return list_of(stored_offsets_of(array), array.values, arrow_type=arrow_type)
    values = values_of(array.values)
    marked = np.empty(len(values) + array.null_count, values.dtype)
    new_offsets = np.empty(len(array) + 1, np.int64)
    lists = (stored_offsets_of(array), 4, array.buffers()[0], array.offset)
    kernels.lists_without_nulls(
        *lists, values, b"", 0, np.array(mark, values.dtype).tobytes(), new_offsets, marked
    )
    return list_of(new_offsets, array_of(marked), arrow_type=arrow_type)


def elements_at(elements: pa.Array, starts: Integers, lengths: Integers) -> pa.Array:
    """The elements `starts[i] ... starts[i] + lengths[i] - 1` of all rows, concatenated."""
    if pa.types.is_struct(elements.type) and not elements.null_count:
        fields = [elements_at(field, starts, lengths) for field in elements.flatten()]
        return struct_of(fields, arrow_type=elements.type)
    if has_view(elements):
        taken = ranges_of(values_of(elements), starts, lengths)
        return array_of(taken, arrow_type=elements.type)
    return elements.take(array_of(positions_of(starts, lengths)))


def ranges_of(values: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """The same of a numpy array, for starts and lengths of any integer type."""
    taken = np.empty(lengths.sum(), values.dtype)
    first, count = (np.ascontiguousarray(numbers, np.int64) for numbers in (starts, lengths))
    kernels.copy_ranges(values, values.itemsize, first, count, taken)
    return taken


def positions_of(starts: Integers, lengths: Integers) -> Integers:
    """The positions `starts[i] ... starts[i] + lengths[i] - 1` of all rows, concatenated."""
    offsets = offsets_from(lengths)
    positions: Integers = np.arange(offsets[-1])
    positions += np.repeat(starts - offsets[:-1], lengths)
    return positions


def offsets_from(lengths: NDArray[Any]) -> Integers:
    """Offsets `(len(lengths) + 1,)` of rows with these lengths (booleans count as 1 and 0)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def array_of_bits(mask: Mask) -> pa.BooleanArray:
    """A mask as an Arrow array of booleans."""
    return pa.Array.from_buffers(
        pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))]
    )


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
    (first, *_), differ = lengths_of(lists)
    count_true(differ, counts, "lengths differ")
    nulls = differ | (first < 0)
    lengths = np.where(nulls, 0, first)
    columns = [elements_at(array.values, offsets_of(array)[:-1], lengths) for array in lists]
    dropped = np.logical_or.reduce([_incomplete(column, empty_as_null) for column in columns])
    count_true(dropped, counts, "incomplete elements")
    events = list_of(offsets_from(lengths), struct_of(columns), nulls if nulls.any() else None)
    return truncate_lists(drop_elements(events, dropped), max_len=max_len, truncate=truncate)


def column_of(events: pa.ListArray, *, position: int) -> pa.ListArray:
    """One column of aligned lists, without -0.0."""
    values = events.values.field(position)
    if pa.types.is_floating(values.type):
        values = array_of(values_of(values) + 0.0)
    return list_of(offsets_of(events), values, nulls_of(events))


def lengths_of(lists: Sequence[pa.Array]) -> tuple[list[Integers], Mask]:
    """The length of each row of some lists, -1 where it is missing, and the rows that differ."""
    lengths = [
        values_of(pc.fill_null(pc.list_value_length(array), -1).cast(pa.int64())) for array in lists
    ]
    return lengths, np.any([length != lengths[0] for length in lengths], axis=0)


def _incomplete(column: pa.Array, empty_as_null: bool) -> Mask:
    nulls: Mask = values_of(pc.is_null(column))
    if pa.types.is_floating(column.type):
        with np.errstate(over="ignore", invalid="ignore"):
            nulls = nulls | ~np.isfinite(values_of(column).astype(np.float32))
    elif empty_as_null and pa.types.is_string(column.type):
        nulls = nulls | values_of(pc.fill_null(pc.equal(pc.binary_length(column), 0), True))
    return nulls
