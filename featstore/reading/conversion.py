"""Columns of files in the types of the table, value by value: what other writers put into a file
may be of another type of the same kind, see `parquet.column_types`.
"""

import pyarrow as pa
import pyarrow.compute as pc

from featstore.native.column_types import is_list
from featstore.ops.arrays import microseconds
from featstore.reading.buffers import as_float32


def as_type(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """The column in another type of its kind, also of inner values, whether or not that declares
    them required.

    A float64 that float32 cannot hold becomes null, digits of a time below a microsecond are cut
    towards the past, and members that a struct lacks are null.

    Raises:
        ArrowInvalid: A value does not fit the type.
    """
    if column.type == type_:
        return column
    return pa.chunked_array([converted(chunk, type_) for chunk in column.chunks], type_)


def converted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """As `as_type`, of an array."""
    found = array.type
    if found == type_:
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
        converted(array.field(field.name), field.type)
        if field.name in own
        else pa.nulls(len(array), field.type)
        for field in type_
    ]
    nulls = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(type_), mask=nulls)
