"""Columns of a file in the types of the table, and as numpy arrays: views if a column has no nulls;
otherwise nulls become missing marks.

What other writers put into a file may be of another type of the same kind, see `column_types`: it
is converted value by value. Scalars become values (num_rows,), fixed widths values (num_rows,
width), lists `Ragged`. Ids are int64 throughout. They never pass through floating point, which
would keep only 53 bits of them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.schema import Slot, SlotKind, stored_name
from featstore.native import kernels
from featstore.native.column_types import is_list, is_same
from featstore.ops.arrays import microseconds, nulls_of, values_of
from featstore.ops.lists import offsets_from, ranges_of

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists: row i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: (num_values,).
        offsets: (num_rows + 1,), of any integer width. The first may be above 0, as in views of
            Arrow's buffers.
    """

    values: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


Values = Array | Ragged


@dataclass(frozen=True, slots=True)
class SharedLists:
    """Lists that are ranges of values, which rows share. Gathered, they are `Ragged`, unless
    batches share them, too.

    Attributes:
        values: (num_values,).
        ranges: int64 (num_rows, 2): where each list begins and ends in `values`. Of ages (num_rows,
            4), also the time of the row, and the unit, both in microseconds: `values` are int64
            times then, and each becomes (time of the row - value) / unit as float32. Of lists that
            batches share (num_rows, 3), also the number of the first value among all that were
            read, by which equal values are found.
    """

    values: Array
    ranges: Array

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values once they are gathered."""
        return self.values.dtype if self.ranges.shape[1] < 4 else np.dtype(np.float32)

    @property
    def is_shared(self) -> bool:
        """Whether batches share them, too."""
        return bool(self.ranges.shape[1] == 3)

    @property
    def lengths(self) -> Array:
        """int64 (num_rows,)."""
        lengths: Array = self.ranges[:, 1] - self.ranges[:, 0]
        return lengths


BatchValues = Values | SharedLists


def rows_left(deleted: Array | None, first: int, end: int) -> Array:
    """Which rows of a file, from the first to the end, are not deleted: bool (end - first,).

    Args:
        deleted: The deleted rows of the file, ascending: int64 (num_deleted,); None: none.
        first: The first row.
        end: The row after the last.
    """
    left = np.ones(end - first, bool)
    if deleted is not None:
        begin, stop = np.searchsorted(deleted, [first, end])
        left[deleted[begin:stop] - first] = False
    return left


def chosen_rows(chosen: Array) -> Array:
    """Rows that are chosen as numpy indexes arrays, int64 numbers of rows or bool for each row, as
    their numbers.
    """
    return np.flatnonzero(chosen) if chosen.dtype == bool else chosen


def num_chosen(chosen: Array) -> int:
    """How many rows are chosen, as of `chosen_rows`."""
    return int(np.count_nonzero(chosen)) if chosen.dtype == bool else len(chosen)


def slot_values(column: pa.ChunkedArray, slot: Slot) -> Values:
    """The column as int64 ids or float32 values in the slot's shape, without nulls: views of the
    column where possible.

    A null scalar becomes the missing mark, a null list becomes a list of one mark, an empty list
    stays empty, and null elements of a list are dropped. A float64 that float32 cannot hold is
    treated as null, as extraction treats it.

    Args:
        column: The column as read. Marks may be written into its memory, beneath its nulls, where
            values are undefined.
        slot: What it should be.

    Raises:
        ValueError: Values do not fit the slot; also as pyarrow's ArrowInvalid.
    """
    array = one_array(column)
    if slot.is_list:
        return _ragged(array, slot)
    return _numbers(array, slot) if slot.width is None else _fixed_width(array, slot, slot.width)


def missing_values(slot: Slot, num_rows: int) -> Values:
    """A column of missing values, or of the table's default, for a file without the slot."""
    width = slot.width or 1
    marks = np.full(num_rows * width, slot.absent, dtype=_dtype(slot))
    if slot.is_list:
        return Ragged(marks, np.arange(num_rows + 1, dtype=np.int64))
    return marks.reshape(num_rows, width) if slot.shape else marks


def scalar_floats(column: pa.ChunkedArray) -> tuple[Array, Array | None]:
    """A numeric column as float32.

    Returns:
        The values, (num_rows,), with NaN for null, and for what float32 cannot hold; and whether
        each row has a value, bool (num_rows,), or None if all rows have one.
    """
    array = as_float32(one_array(column))
    values = values_of(array.fill_null(np.nan) if array.null_count else array)
    valid = ~np.isnan(values)
    return values, None if valid.all() else valid


def truncate(ragged: Ragged, max_len: int) -> Ragged:
    """The first `max_len` elements of each list."""
    lengths = np.diff(ragged.offsets)
    if not len(lengths) or int(lengths.max()) <= max_len:
        return ragged
    kept = np.minimum(lengths, max_len)
    values = ranges_of(ragged.values, ragged.offsets[:-1], kept)
    return Ragged(values, offsets_from(kept))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column as one array, copied only if there are several."""
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
    )


def _dtype(slot: Slot) -> type[np.int64] | type[np.float32]:
    return np.int64 if slot.kind is SlotKind.ID else np.float32


def _numbers(array: pa.Array, slot: Slot) -> Array:
    """int64 or float32 values, with missing marks for nulls."""
    array = _typed(array, slot)
    values = values_of(array)
    if not array.null_count:
        return values
    if not values.flags.writeable:
        return values_of(array.fill_null(slot.missing))
    kernels.fill_nulls(values, array.buffers()[0], array.offset, missing_mark(slot))
    return values


def _typed(array: pa.Array, slot: Slot) -> pa.Array:
    """As int64 or float32. ArrowInvalid if an unsigned id is above 2^63 - 1."""
    if slot.kind is SlotKind.FLOAT:
        return as_float32(array)
    return array if array.type == pa.int64() else array.cast(pa.int64())


def as_float32(array: pa.Array) -> pa.Array:
    """Numbers as float32. A finite float64 beyond its range becomes null; infinities stay."""
    if array.type == pa.float32():
        return array
    floats = array.cast(pa.float32(), safe=False)
    if array.type != pa.float64() or not pc.any(is_infinite := pc.is_inf(floats)).as_py():
        return floats
    return pc.if_else(
        pc.and_(is_infinite, pc.is_finite(array)), pa.scalar(None, pa.float32()), floats
    )


def missing_mark(slot: Slot) -> bytes:
    """The slot's missing mark as the bytes of one value."""
    return _dtype(slot)(slot.missing).tobytes()


def _ragged(array: pa.Array, slot: Slot) -> Ragged:
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    # The offsets of a sliced array are those of the slice, but index into the values of the whole.
    offsets, elements = values_of(array.offsets), _typed(array.values, slot)
    if not len(array):
        return Ragged(np.empty(0, _dtype(slot)), np.zeros(1, np.int64))
    if not array.null_count and not elements.null_count:
        return Ragged(values_of(elements), offsets)
    new_offsets = np.empty(len(array) + 1, np.int64)
    new_values = np.empty(int(offsets[-1] - offsets[0]) + array.null_count, _dtype(slot))
    num_values = kernels.lists_without_nulls(
        *(offsets, offsets.itemsize, *_bits(array)),
        *(values_of(elements), *_bits(elements)),
        *(missing_mark(slot), new_offsets, new_values),
    )
    return Ragged(new_values[:num_values], new_offsets)


def _bits(array: pa.Array) -> tuple[pa.Buffer | bytes, int]:
    """The validity bitmap (empty: nothing is null), and the array's first bit in it."""
    return (array.buffers()[0] if array.null_count else b""), array.offset


def _fixed_width(array: pa.Array, slot: Slot, width: int) -> Array:
    if not pa.types.is_fixed_size_list(array.type):
        array = _equal_lists(array, width)
    elements = array.values.slice(array.offset * width, len(array) * width)
    values = _numbers(elements, slot).reshape(len(array), width)
    if (nulls := nulls_of(array)) is not None:
        values = np.where(nulls[:, None], _dtype(slot)(slot.missing), values)
    return values


def _equal_lists(array: pa.Array, width: int) -> pa.Array:
    """Lists as fixed-size lists. ValueError if one that is not null has not `width` elements."""
    lengths = array.value_lengths().fill_null(width)
    if len(lengths) and pc.any(pc.not_equal(lengths, width)).as_py():
        raise ValueError(f"a list of another length than {width}")
    return array.cast(pa.list_(array.type.value_type, width))


def as_type(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """The column in another type of its kind, also of inner values, whether or not that declares
    them required.

    A float64 that float32 cannot hold becomes null, digits of a time below a microsecond are cut
    towards the past, and members that a struct lacks are null.

    Raises:
        ArrowInvalid: A value does not fit the type.
    """
    if is_same(column.type, type_):
        return column
    return pa.chunked_array([converted(chunk, type_) for chunk in column.chunks], type_)


def converted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """As `as_type`, of an array."""
    found = array.type
    if is_same(found, type_):
        return array
    if pa.types.is_null(found):
        return pa.nulls(len(array), type_)
    if type_ == pa.float32():
        return as_float32(array)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(type_):
        return _instants(array, type_)
    if is_list(type_):
        return _lists(array, type_)
    if pa.types.is_map(type_):
        entries = [converted(array.keys, type_.key_type), converted(array.items, type_.item_type)]
        fields = [type_.key_field, type_.item_field]
        return _over(array, pa.StructArray.from_arrays(entries, fields=fields), type_)
    return _structs(array, type_) if pa.types.is_struct(type_) else array.cast(type_)


def _instants(array: pa.Array, type_: pa.TimestampType) -> pa.Array:
    """Times of another unit, with or without a zone: what has none counts as UTC."""
    if array.type.unit == "ns" and type_.unit == "us":
        array = microseconds(array)
    return array.view(pa.timestamp(array.type.unit, type_.tz)).cast(type_)


def _lists(array: pa.Array, type_: pa.DataType) -> pa.Array:
    element = array.type.value_field
    if pa.types.is_fixed_size_list(type_):
        array = array.cast(pa.list_(element, type_.list_size))
    else:
        array = array.cast(
            pa.large_list(element) if pa.types.is_large_list(type_) else pa.list_(element)
        )
    return _over(array, converted(array.values, type_.value_type), type_)


def _over(array: pa.Array, values: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same rows over other inner values."""
    own_buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(type_) else 2]
    return pa.Array.from_buffers(
        type_, len(array), own_buffers, array.null_count, array.offset, [values]
    )


def _structs(array: pa.Array, type_: pa.StructType) -> pa.Array:
    own = {field.name for field in array.type}
    members = [
        converted(array.field(stored_name(field)), field.type)
        if stored_name(field) in own
        else pa.nulls(len(array), field.type)
        for field in type_
    ]
    nulls = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(type_), mask=nulls)
