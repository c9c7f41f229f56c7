"""Numbers of bytes as options state them."""

import re

from featstore.base.errors import ConfigError

_UNITS = (
    {"": 1, "b": 1}
    | {f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}
    | {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}
)
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: int | str, option: str = "bytes") -> int:
    """A number of bytes from a number, or from text such as `200GB` (powers of 1000) or `4 GiB`
    (powers of 1024).

    Args:
        value: The number or text.
        option: The name of the option, for the error.

    Raises:
        ConfigError: The value cannot be read, or is less than 1 byte.
    """
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        num_bytes = value
    elif match and match.group(2).lower() in _UNITS:
        num_bytes = int(float(match.group(1)) * _UNITS[match.group(2).lower()])
    else:
        num_bytes = 0
    if num_bytes < 1:
        raise ConfigError(
            f"{option}: expected a number of bytes above 0, or text such as 200GB or 4GiB, found "
            f"{value!r}"
        )
    return num_bytes
