"""The metrics of a mixture: sums over its tables."""

from collections.abc import Mapping, Sequence
from typing import Any

_OF_TABLE = ("rows", "batches", "epochs", "wait_s", "decode_s")


def summed_stats(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all numbers by name, `worker` as it is, and under `tables` some numbers of each
    table, by its number in the config.

    Args:
        tables: `FeatureLoader.stats()` of each table, at least one.
    """
    total = _sum([{k: v for k, v in each.items() if k != "worker"} for each in tables])
    own = {str(i): {key: each[key] for key in _OF_TABLE} for i, each in enumerate(tables)}
    return {**total, "worker": dict(tables[0]["worker"]), "tables": own}


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of numbers by name, in mappings of mappings."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(key for part in parts for key in part):
        values = [part[name] for part in parts if name in part]
        is_group = isinstance(values[0], Mapping)
        found[name] = _sum(values) if is_group else sum(values)
    return found
