"""Converts constants of a spec to the type of the values that they replace or are compared with."""

import datetime

import pyarrow as pa

from featstore.ops.kinds import finite_number
from featstore.ops.lists import is_list


def literal(value: object) -> object:
    """A constant of any type, before the type that it must have is known.

    Raises:
        ValueError: It is a mapping, null, or a number that is not finite.
    """
    if isinstance(value, list | tuple):
        return tuple(literal(item) for item in value)
    if not isinstance(value, str | int | float | datetime.datetime):
        raise ValueError(value)
    return finite_number(value) if isinstance(value, float) else value


def scalar_of(value: object, arrow_type: pa.DataType) -> pa.Scalar:
    """A constant as an Arrow scalar of a canonical type. Naive timestamps are UTC.

    Raises:
        OverflowError: The value is out of range.
        TypeError: The value is of another type.
        ValueError: The value is not a finite number.
    """
    return pa.scalar(_plain(value, arrow_type), arrow_type)


def _plain(value: object, arrow_type: pa.DataType) -> object:
    if is_list(arrow_type):
        if not isinstance(value, list | tuple):
            raise TypeError(value)
        return [_plain(item, arrow_type.value_type) for item in value]
    if arrow_type == pa.float64():
        return finite_number(value) + 0.0
    if pa.types.is_timestamp(arrow_type) and isinstance(value, datetime.datetime):
        return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    expected = {pa.string(): str, pa.int64(): int, pa.bool_(): bool}.get(arrow_type)
    if (
        expected is None
        or not isinstance(value, expected)
        or (expected is int and isinstance(value, bool))
    ):
        raise TypeError(value)
    return value
