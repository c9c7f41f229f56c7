"""A profile from statistics that were stored with the data, without reading any row."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featstore.explore.profile import (
    FOUND_COUNTS,
    LENGTH_QUANTILES,
    NUM_TOP,
    QUANTILES,
    Profile,
    result_schema,
)
from featstore.extraction.findings import FILLED, NULLS_DROPPED, TEXT_ERRORS
from featstore.schema import Slot, SlotKind
from featstore.table.statistics.column_statistics import ColumnStatistics, Statistics

_STORED = "from stored statistics: distinct, quantiles and top values are estimates"
_ROWS = "from the rows, on Spark: distinct, quantiles and top values are estimates"


def rows_profile(statistics: Statistics, slots: Sequence[Slot], labels: Sequence[str]) -> Profile:
    """The profile of rows that were read again: what extraction saw of them is not known."""
    found = stored_profile(statistics, {}, slots, labels)
    table = found.table
    for name in ("default_rate", *FOUND_COUNTS):
        index = table.schema.get_field_index(name)
        table = table.set_column(
            index, table.field(index), pa.nulls(len(table), table.field(index).type)
        )
    return replace(found, table=table, source=_ROWS)


def stored_profile(
    statistics: Statistics, counts: Mapping[str, int], slots: Sequence[Slot], labels: Sequence[str]
) -> Profile:
    """The profile of all rows that the statistics are of. Label rates of top values are not known,
    and null.

    Slots are found by their numbers, whatever they were called then, those without one by their
    names; one that is not found is missing in every row.
    """
    known = {
        _key(column.number, column.column): column
        for column in statistics.columns.values()
        if column.role == "slot"
    }
    rows = [
        _row(slot, known.get(_key(slot.number, slot.name)), statistics.num_rows) for slot in slots
    ]
    rates = {name: statistics.columns.get(name) for name in labels}
    return Profile(
        num_rows=statistics.num_rows,
        label_rates={
            name: None if found is None else _mean(found) for name, found in rates.items()
        },
        table=pa.Table.from_pylist(rows, result_schema(labels)),
        source=_STORED,
        counts=counts,
    )


def _key(number: int | None, name: str) -> tuple[int | None, str]:
    return number, name if number is None else ""


def _row(slot: Slot, found: ColumnStatistics | None, num_rows: int) -> dict[str, Any]:
    found = found or ColumnStatistics(
        column=slot.name, role="slot", number=slot.number, kind=slot.kind, shape=slot.shape_text
    )
    there = found.num_numbers > 0
    lists = slot.is_list and found.num_present > 0
    return {
        "slot": slot.name,
        "number": slot.number,
        "kind": str(slot.kind),
        "shape": slot.shape_text,
        "op": slot.op,
        "num_present": found.num_present,
        "coverage": found.num_present / num_rows if num_rows else 0.0,
        "num_values": found.num_values,
        "distinct": found.distinct.estimate(),
        "mean": _mean(found),
        "min": found.min if there else None,
        "max": found.max if there else None,
        "quantiles": found.quantiles(QUANTILES),
        "length_mean": found.length_sum / found.num_present if lists else None,
        "length_max": found.length_max if lists else None,
        "length_quantiles": found.length_quantiles(LENGTH_QUANTILES),
        "top": _top(found),
        **_on_the_way(slot, found, num_rows),
    }


def _on_the_way(slot: Slot, found: ColumnStatistics, num_rows: int) -> dict[str, Any]:
    """What extraction saw on the way to the slot."""
    signs = slot.kind is SlotKind.ID and slot.num_indices is None
    return {
        "default_rate": found.counts.get(FILLED, 0) / num_rows if num_rows else 0.0,
        "num_nulls_dropped": sum(found.counts.get(what, 0) for what in NULLS_DROPPED),
        "num_text_errors": sum(found.counts.get(what, 0) for what in TEXT_ERRORS),
        "num_sign_collisions": len(found.collisions.collided) if signs else None,
        "num_signs_checked": found.num_signs_checked if signs else None,
    }


def _mean(found: ColumnStatistics) -> float | None:
    return found.sum / found.num_numbers if found.num_numbers else None


def _top(found: ColumnStatistics) -> list[dict[str, Any]]:
    pairs = zip(found.top[0].tolist(), found.top[1].tolist(), strict=True)
    whole = max(found.num_values, 1)
    return [
        {
            "value": value,
            "count": round(count),
            "share": min(1.0, count / whole),
            "label_rates": None,
        }
        for value, count in list(pairs)[:NUM_TOP]
    ]
