"""The values of golden vectors, which JSON cannot write as they are."""

import datetime
import math
from typing import Any


def value_of(written: Any) -> Any:
    """The value of a raw column: maps are pairs, bytes are written in hex, instants in ISO 8601."""
    if isinstance(written, list):
        return [value_of(item) for item in written]
    if isinstance(written, dict) and "map" in written:
        return [(key, value_of(item)) for key, item in written["map"]]
    if isinstance(written, dict):
        return (
            bytes.fromhex(written["hex"])
            if "hex" in written
            else datetime.datetime.fromisoformat(written["time"])
        )
    return written


def same(found: Any, expected: Any) -> bool:
    """Ids exactly; floats but for the last digits of a float32, in which logarithms and powers of C
    and Java may differ.
    """
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(same, found, expected))
        )
    if isinstance(expected, float):
        return (found != found and expected != expected) or math.isclose(
            found, expected, rel_tol=2e-7
        )
    return type(found) is type(expected) and bool(found == expected)
