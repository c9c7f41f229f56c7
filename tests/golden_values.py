"""The values of golden vectors, which JSON cannot write as they are."""

import datetime
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
