"""Which columns can be ids, and the ids that a user asks for in the type of their column."""

import operator
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa


def can_be_ids(column: pa.DataType) -> bool:
    """Whether samples can be found by a column of this type.

    Python has no nanoseconds, so an id that a user writes may not be the one of the column.
    """
    if pa.types.is_timestamp(column):
        return bool(column.unit != "ns")
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
    return any(is_kind(column) for is_kind in kinds)


def ids_of_type(wanted: Iterable[Any], column: pa.DataType) -> pa.Array:
    """The ids as an array of a type that `can_be_ids`, (num_ids,). None becomes null.

    Raises:
        TypeError: One of them is of another type, or would have to be rounded or cut to fit.
    """
    ids = list(wanted)
    try:
        if pa.types.is_integer(column):
            return pa.array([_integer(each) for each in ids], column)
        if pa.types.is_timestamp(column):
            return _timestamps(ids, column)
        return pa.array(ids, column)
    # ArrowTypeError is a TypeError, ArrowInvalid and a text that is not UTF-8 are ValueErrors.
    except (TypeError, ValueError, OverflowError, pa.ArrowNotImplementedError) as error:
        raise TypeError(f"by_id(): expected ids of type {column}: {error}") from None


def _integer(value: Any) -> int | None:
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return None
    if isinstance(value, bool):
        raise TypeError(f"found {value}")
    # Arrow cuts what is after the point of a float.
    return operator.index(value)


def _timestamps(ids: Sequence[Any], column: pa.DataType) -> pa.Array:
    if wrong := [each for each in ids if isinstance(each, int | float)]:
        raise TypeError(f"found {wrong[0]!r}")
    if all(each is None or isinstance(each, datetime) for each in ids):
        # Arrow cuts a datetime to whole seconds, but refuses to cast it.
        return pa.array(ids, pa.timestamp("us", column.tz)).cast(column)
    return pa.array(ids, column)
