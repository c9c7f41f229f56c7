"""Lengths of time that users write as text."""

import re

from featstore.base.errors import ConfigError

DURATION_TEXT = r"([1-9][0-9]*) ?(s|m|h|d|w)"
_UNITS_US = {
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}


def parse_duration(value: object, option: str = "duration") -> int:
    """Microseconds of a text such as `90d`: seconds, minutes, hours, days (of 24 hours) or weeks.

    Args:
        value: The text.
        option: The name of the option, for the error.

    Raises:
        ConfigError: The value cannot be read, or exceeds int64.
    """
    match = re.fullmatch(DURATION_TEXT, value) if isinstance(value, str) else None
    duration_us = int(match.group(1)) * _UNITS_US[match.group(2)] if match else 0
    if not 0 < duration_us < 2**63:
        raise ConfigError(
            f"{option}: expected a time above 0, such as 30s, 15m, 12h, 90d or 2w, found {value!r}"
        )
    return duration_us


def duration_text(duration_us: int) -> str:
    """The text of a number of microseconds that `parse_duration` returned, in the largest unit."""
    unit = next(unit for unit, us in reversed(_UNITS_US.items()) if duration_us % us == 0)
    return f"{duration_us // _UNITS_US[unit]}{unit}"
