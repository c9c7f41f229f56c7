"""Operators on timestamps: hour and day_of_week, in a time zone."""

import zoneinfo
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def time_zone(value: object) -> str:
    """The name of a time zone of the IANA database."""
    if not isinstance(value, str):
        raise ValueError(value)
    try:
        return zoneinfo.ZoneInfo(value).key
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(value) from error


def time_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if not pa.types.is_timestamp(types[0]):
        raise TypeError("timestamp")
    return pa.int64()


def hour(array: pa.Array, *, tz: str, counts: Counter[str]) -> pa.Array:
    """The hour of the day, 0-23, in the time zone."""
    return pc.hour(_in_zone(array, tz))


def day_of_week(array: pa.Array, *, tz: str, counts: Counter[str]) -> pa.Array:
    """The day of the week in the time zone: Monday is 0, Sunday 6."""
    return pc.day_of_week(_in_zone(array, tz))


def _in_zone(array: pa.Array, tz: str) -> pa.Array:
    return array.cast(pa.timestamp("us", tz=tz))
