"""Converts Arrow arrays to numpy views of their buffers, and back, without copies.

`Array.to_numpy` is not used: it imports pandas, and it converts integers with nulls to float64. A
view is read-only and covers exactly the array's slice. Its values are undefined where the array is
null.
"""

import contextlib
import functools
from collections import Counter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Nulls: TypeAlias = Mask | pa.Buffer | None
"""True where an array is null, or its validity bitmap from the first row on; None for no nulls."""

_BOOLEAN = pa.bool_().id
# By the number of the type, whose hash costs more than the view that is made.
_DTYPES: dict[int, np.dtype[Any]] = {
    pa.int32().id: np.dtype(np.int32),
    pa.int64().id: np.dtype(np.int64),
    pa.uint64().id: np.dtype(np.uint64),
    pa.float32().id: np.dtype(np.float32),
    pa.float64().id: np.dtype(np.float64),
    pa.timestamp("us").id: np.dtype(np.int64),
}


def values_of(array: pa.Array) -> NDArray[Any]:
    """The values of a fixed-width array, `(len(array),)`; timestamps as int64.

    Booleans are unpacked to a new array; all other types are a view.
    """
    type_id = array.type.id
    if type_id == _BOOLEAN:
        return _bits(array.buffers()[1], array.offset, len(array))
    return _numbers(array.buffers()[1], _DTYPES[type_id], array.offset, len(array))


def has_view(array: pa.Array) -> bool:
    """Whether `values_of` is a view of all that the array holds: numbers or times without nulls."""
    return array.type.id in _DTYPES and not array.null_count


def nulls_of(array: pa.Array) -> Mask | None:
    """True where the array is null, or None where it has no nulls."""
    if array.null_count == 0:
        return None
    if pa.types.is_null(array.type):
        return np.ones(len(array), dtype=np.bool_)
    return ~_bits(array.buffers()[0], array.offset, len(array))


def validity_of(array: pa.Array) -> pa.Buffer | None:
    """The same as a bitmap that `array_of`, `struct_of` and `list_of` take as `nulls`.

    It costs nothing, where a mask is unpacked from a bitmap and packed again.
    """
    if array.null_count == 0:
        return None
    bits = array.buffers()[0]
    # A slice may begin within a byte, and a null array has no bitmap.
    return _validity(nulls_of(array)) if bits is None or array.offset else bits


def array_of(
    values: NDArray[Any], nulls: Nulls = None, arrow_type: pa.DataType | None = None
) -> pa.Array:
    """A fixed-width Arrow array over a numpy array's memory, which it keeps alive.

    Args:
        values: `(num_values,)`; it must not be written to afterwards.
        nulls: True where the array is null, `(num_values,)`, or its validity bitmap; None for no
            nulls.
        arrow_type: The Arrow type; by default the one of the numpy type.

    Returns:
        An array of `num_values` values. Its buffers are not copied if `values` is contiguous.
    """
    arrow_type = pa.from_numpy_dtype(values.dtype) if arrow_type is None else arrow_type
    return pa.Array.from_buffers(
        arrow_type, len(values), [_validity(nulls), pa.py_buffer(np.ascontiguousarray(values))]
    )


def microseconds(array: pa.Array) -> pa.Array:
    """Timestamps or dates as timestamps in microseconds; digits below are cut towards the past.

    Arrow's cast cuts towards 1970, so that a time before it becomes a later one.
    """
    zone = array.type.tz if pa.types.is_timestamp(array.type) else None
    if array.type != pa.timestamp("ns", zone):
        return array.cast(pa.timestamp("us", zone), safe=False)
    nanoseconds = values_of(array.view(pa.int64()))
    return array_of(nanoseconds // 1_000, validity_of(array), pa.timestamp("us", zone))


def cast_text(text: pa.Array | pa.Scalar, wanted: pa.DataType) -> Any:
    """A text, or an array of texts, cast to another type; None where one is not written as such.

    Timestamps without a zone are in that of the type.
    """
    is_instant = pa.types.is_timestamp(wanted) and wanted.tz is not None
    for types in ([wanted], [pa.timestamp(wanted.unit), wanted]) if is_instant else ([wanted],):
        with contextlib.suppress(pa.ArrowInvalid):
            return functools.reduce(lambda value, arrow_type: value.cast(arrow_type), types, text)
    return None


def struct_of(
    fields: list[pa.Array], nulls: Nulls = None, arrow_type: pa.DataType | None = None
) -> pa.StructArray:
    """A struct of equally long arrays, its fields named by position; null where `nulls` is True.

    Its type may be given, which costs as much to make as the array.
    """
    if arrow_type is None:
        arrow_type = pa.struct([pa.field(str(i), array.type) for i, array in enumerate(fields)])
    return pa.Array.from_buffers(arrow_type, len(fields[0]), [_validity(nulls)], children=fields)


def list_of(
    offsets: NDArray[Any],
    values: pa.Array,
    nulls: Nulls = None,
    arrow_type: pa.DataType | None = None,
) -> pa.ListArray:
    """A list array over `values`.

    Args:
        offsets: Integers `(num_rows + 1,)`, which must fit in int32.
        values: The elements of all rows; for a map type, structs of key and value.
        nulls: True where a row is null, `(num_rows,)`, or its validity bitmap; None for no nulls.
        arrow_type: The type of the result; by default a list of the values' type.

    Returns:
        An array of `num_rows` rows.
    """
    arrow_type = pa.list_(values.type) if arrow_type is None else arrow_type
    buffer = pa.py_buffer(np.ascontiguousarray(offsets, dtype=np.int32))
    return pa.Array.from_buffers(
        arrow_type, len(offsets) - 1, [_validity(nulls), buffer], children=[values]
    )


def offsets_of(array: pa.Array) -> Integers:
    """The offsets of a list, string or binary array: int64 `(len(array) + 1,)`.

    The first is above 0 where the array is a slice of a longer one.
    """
    return stored_offsets_of(array).astype(np.int64)


def stored_offsets_of(array: pa.Array) -> NDArray[np.int32]:
    """The same offsets as int32, a view of the array's buffer."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype=np.int32)
    return _numbers(buffer, np.dtype(np.int32), array.offset, len(array) + 1)


def bytes_of(array: pa.Array) -> NDArray[np.uint8]:
    """The data buffer of a string or binary array, whole: offsets are positions in it."""
    buffer = array.buffers()[2]
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def either(left: Mask | None, right: Mask | None) -> Mask | None:
    """True where either mask is True; None stands for a mask without True."""
    if left is None or right is None:
        return right if left is None else left
    return left | right


def count_true(mask: Mask, counts: Counter[str], what: str) -> bool:
    """Adds the number of True to `counts[what]`. Returns whether there is any."""
    num_found = int(np.count_nonzero(mask))
    if num_found:
        counts[what] += num_found
    return num_found > 0


def with_counted(nulls: Mask | None, bad: Mask, counts: Counter[str], what: str) -> Mask | None:
    """The nulls and the bad values; those that are not null already are counted."""
    if nulls is not None and bad.any():
        bad = bad & ~nulls
    return either(nulls, bad) if count_true(bad, counts, what) else nulls


def _numbers(
    buffer: pa.Buffer | None, dtype: np.dtype[Any], offset: int, length: int
) -> NDArray[Any]:
    if buffer is None or length == 0:
        return np.zeros(length, dtype)
    return np.frombuffer(buffer, dtype, count=length, offset=offset * dtype.itemsize)


def _bits(buffer: pa.Buffer | None, offset: int, length: int) -> Mask:
    if buffer is None:
        return np.zeros(length, np.bool_)
    # A slice may begin within a byte: unpack from that byte on and skip the leading bits.
    first, skipped = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[first : (offset + length + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[skipped : skipped + length].view(np.bool_)


def _validity(nulls: Nulls) -> pa.Buffer | None:
    if nulls is None or isinstance(nulls, pa.Buffer):
        return nulls
    # Arrow's validity bitmap has a set bit for a value, the lowest bit first.
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))
