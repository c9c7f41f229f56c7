"""Arrow arrays as numpy views of their buffers, and back, without copies.

`Array.to_numpy` is not used: it imports pandas, and it makes float64 of integers with nulls. A view
is read-only, covers exactly the array's slice, and holds anything where the array is null.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

_DTYPES: dict[pa.DataType, Any] = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint64(): np.uint64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


def values_of(array: pa.Array) -> NDArray[Any]:
    """The values of a fixed-width array: `(len(array),)`; timestamps as int64."""
    if pa.types.is_boolean(array.type):
        return _bits(array.buffers()[1], array.offset, len(array))
    dtype = np.dtype(np.int64 if pa.types.is_timestamp(array.type) else _DTYPES[array.type])
    return _numbers(array.buffers()[1], dtype, array.offset, len(array))


def nulls_of(array: pa.Array) -> Mask | None:
    """True where the array is null, or None where it has no nulls."""
    if array.null_count == 0:
        return None
    if pa.types.is_null(array.type):
        return np.ones(len(array), dtype=np.bool_)
    return ~_bits(array.buffers()[0], array.offset, len(array))


def array_of(
    values: NDArray[Any], nulls: Mask | None = None, arrow_type: pa.DataType | None = None
) -> pa.Array:
    """A fixed-width Arrow array over a numpy array's memory; null where `nulls` is True."""
    arrow_type = pa.from_numpy_dtype(values.dtype) if arrow_type is None else arrow_type
    return pa.Array.from_buffers(
        arrow_type, len(values), [_validity(nulls), pa.py_buffer(np.ascontiguousarray(values))]
    )


def struct_of(fields: list[pa.Array], nulls: Mask | None = None) -> pa.StructArray:
    """A struct of equally long arrays, its fields named by position; null where `nulls` is True."""
    arrow_type = pa.struct([pa.field(str(i), array.type) for i, array in enumerate(fields)])
    return pa.Array.from_buffers(arrow_type, len(fields[0]), [_validity(nulls)], children=fields)


def list_of(
    offsets: NDArray[Any],
    values: pa.Array,
    nulls: Mask | None = None,
    arrow_type: pa.DataType | None = None,
) -> pa.ListArray:
    """A list array of `len(offsets) - 1` rows over `values`."""
    arrow_type = pa.list_(values.type) if arrow_type is None else arrow_type
    buffer = pa.py_buffer(np.ascontiguousarray(offsets, dtype=np.int32))
    return pa.Array.from_buffers(
        arrow_type, len(offsets) - 1, [_validity(nulls), buffer], children=[values]
    )


def offsets_of(array: pa.Array) -> Integers:
    """The offsets of a list, string or binary array's slice, `(len(array) + 1,)`; the first may be
    above 0.
    """
    return stored_offsets_of(array).astype(np.int64)


def stored_offsets_of(array: pa.Array) -> NDArray[np.int32]:
    """The same offsets as int32, a view of the array's buffer."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype=np.int32)
    return _numbers(buffer, np.dtype(np.int32), array.offset, len(array) + 1)


def bytes_of(array: pa.Array) -> NDArray[np.uint8]:
    """All bytes that a string or binary array's offsets point into."""
    buffer = array.buffers()[2]
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def either(left: Mask | None, right: Mask | None) -> Mask | None:
    """The union of two masks of nulls."""
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _numbers(
    buffer: pa.Buffer | None, dtype: np.dtype[Any], offset: int, length: int
) -> NDArray[Any]:
    if buffer is None or length == 0:
        return np.zeros(length, dtype)
    return np.frombuffer(buffer, dtype, count=length, offset=offset * dtype.itemsize)


def _bits(buffer: pa.Buffer | None, offset: int, length: int) -> Mask:
    if buffer is None:
        return np.zeros(length, np.bool_)
    first, skipped = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[first : (offset + length + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[skipped : skipped + length].view(np.bool_)


def _validity(nulls: Mask | None) -> pa.Buffer | None:
    if nulls is None:
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))
