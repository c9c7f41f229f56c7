"""Operators on timestamps: hour, day_of_week and is_weekend in a time zone, and time_since; and the
texts of durations.
"""

import datetime
import re
import zoneinfo
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.ops.arrays import (
    Integers,
    Mask,
    array_of,
    count_true,
    either,
    list_of,
    nulls_of,
    offsets_of,
    values_of,
)
from featstore.ops.lists import drop_elements, element_type, is_list
from featstore.ops.signature import in_order, result_for

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# 2038-01-01: Arrow's time zone tables end here.
_END_OF_TABLES_US = 2_145_916_800_000_000
# These names mean the host's own zone, so results would differ between hosts.
_HOST_ZONES = ("localtime", "posixrules", "local")
_QUARTER_US = 900_000_000
# The Gregorian calendar repeats after 400 years, with its days of the week, and so do the rules of
# zones. Python's calendar ends with the year 9999, so from 2800 on the rule is that of the same
# quarter in 2400 to 2799.
_FIRST_REPEATED, _QUARTERS_REPEATED = 157_054 * 96, 146_097 * 96
HOURS = in_order(*(f"{hour:02}:00" for hour in range(24)))
# By their English names, whatever the host's language.
DAYS = in_order("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WEEKEND = in_order("weekday", "weekend")
UNITS = {
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_LETTERS = {unit[0]: unit_us for unit, unit_us in UNITS.items()}
DURATION_TEXT = rf"([1-9][0-9]*) ?([{''.join(_LETTERS)}])"


def parse_duration(value: object) -> int:
    """Microseconds of a text such as `90d`: seconds, minutes, hours, days or weeks.

    Raises:
        ValueError: The value is no such text, or exceeds int64.
    """
    match = re.fullmatch(DURATION_TEXT, value) if isinstance(value, str) else None
    duration_us = int(match.group(1)) * _LETTERS[match.group(2)] if match else 0
    if not 0 < duration_us < 2**63:
        raise ValueError(value)
    return duration_us


def duration_text(duration_us: int) -> str:
    """The text of a number of microseconds that `parse_duration` returned, in the largest unit
    up to days.
    """
    unit = next(unit for unit in "dhms" if duration_us % _LETTERS[unit] == 0)
    return f"{duration_us // _LETTERS[unit]}{unit}"


def time_zone(value: object) -> str:
    """The name of a time zone of the IANA database."""
    if not isinstance(value, str) or value.casefold() in _HOST_ZONES:
        raise ValueError(value)
    try:
        _local(pa.array([0], pa.timestamp("us", tz="UTC")), value)
        return zoneinfo.ZoneInfo(value).key
    except (zoneinfo.ZoneInfoNotFoundError, pa.ArrowInvalid, OSError) as error:
        raise ValueError(value) from error


time_type = result_for(pa.types.is_timestamp, "timestamp", pa.int64())
weekend_type = result_for(pa.types.is_timestamp, "timestamp", pa.bool_())


def hour(array: pa.Array, *, tz: str, counts: Counter[str]) -> pa.Array:
    """The hour of the day, 0-23, in the time zone."""
    return pc.hour(_local(array, tz))


def day_of_week(array: pa.Array, *, tz: str, counts: Counter[str]) -> pa.Array:
    """The day of the week in the time zone: Monday is 0, Sunday 6."""
    return pc.day_of_week(_local(array, tz))


def _local(array: pa.Array, tz: str) -> pa.Array:
    """Local wall-clock times in the zone, as timestamps without a zone."""
    if tz == "UTC":
        return array.view(pa.timestamp("us"))
    local = pc.local_timestamp(array.cast(pa.timestamp("us", tz=tz)))
    instants = values_of(array)
    nulls = nulls_of(array)
    late = (
        instants >= _END_OF_TABLES_US if nulls is None else (instants >= _END_OF_TABLES_US) & ~nulls
    )
    return _by_rule(instants, nulls, local, np.flatnonzero(late), tz) if late.any() else local


def _by_rule(
    instants: Integers, nulls: Mask | None, local: pa.Array, late: Integers, tz: str
) -> pa.Array:
    """Replaces the local times of late rows, which Arrow's zone tables do not cover.

    Python's `zoneinfo` applies the zone's rule beyond the tables. Offsets change only at full
    quarters of an hour, so each quarter that occurs is looked up once.
    """
    quarters, which = np.unique(instants[late] // _QUARTER_US, return_inverse=True)
    zone = zoneinfo.ZoneInfo(tz)
    beyond = np.maximum(quarters - _FIRST_REPEATED, 0)
    quarters -= beyond // _QUARTERS_REPEATED * _QUARTERS_REPEATED
    alike = [_EPOCH + datetime.timedelta(minutes=15 * quarter) for quarter in quarters.tolist()]
    shifts = np.array([at.astimezone(zone).utcoffset() for at in alike], "timedelta64[us]")
    shown = values_of(local).copy()
    shown[late] = instants[late] + shifts.astype(np.int64)[which]
    return array_of(shown, nulls, local.type)


def is_weekend(array: pa.Array, *, tz: str, counts: Counter[str]) -> pa.Array:
    """Whether the day of the week in the time zone is Saturday or Sunday."""
    return pc.greater_equal(day_of_week(array, tz=tz, counts=counts), 5)


def since_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    now, past = types
    if not pa.types.is_timestamp(now) or not pa.types.is_timestamp(element_type(past)):
        raise TypeError("a timestamp, then a timestamp or list<timestamp>")
    return pa.list_(pa.float64()) if is_list(past) else pa.float64()


def time_since(now: pa.Array, past: pa.Array, *, unit: str, counts: Counter[str]) -> pa.Array:
    """(now - past) / unit, with its fraction; negative where `past` is later.

    A list of times gives a list. Missing where either is missing. Differences that exceed int64
    microseconds become null, or are dropped from a list, and are counted as `overflow`.
    """
    if not is_list(past.type):
        nulls = either(nulls_of(now), nulls_of(past))
        elapsed, overflows = _elapsed(values_of(now), values_of(past), nulls, counts)
        return array_of(
            elapsed / UNITS[unit], either(nulls, overflows if overflows.any() else None)
        )
    rows = np.repeat(np.arange(len(past)), np.diff(offsets_of(past)))
    unknown = nulls_of(now)
    missing = None if unknown is None else unknown[rows]
    elapsed, overflows = _elapsed(values_of(now)[rows], values_of(past.values), missing, counts)
    lists = list_of(
        offsets_of(past), array_of(elapsed / UNITS[unit]), either(nulls_of(past), unknown)
    )
    return drop_elements(lists, overflows if missing is None else overflows | missing)


def _elapsed(
    now: Integers, past: Integers, nulls: Mask | None, counts: Counter[str]
) -> tuple[Integers, Mask]:
    """Microseconds from past to now, and where int64 overflowed."""
    elapsed = now - past
    # A difference overflowed if the operands' signs differ and its sign is not that of `now`.
    overflows: Mask = ((now ^ past) & (now ^ elapsed)) < 0
    if nulls is not None:
        overflows &= ~nulls
    count_true(overflows, counts, "overflow")
    return elapsed, overflows
