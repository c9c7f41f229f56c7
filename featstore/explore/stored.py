"""Profiles from statistics: those stored with the data, and those that Spark gathered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featstore.explore.profile import (
    LENGTH_QUANTILES,
    NUM_TOP,
    QUANTILES,
    Profile,
    presence,
    result_schema,
)
from featstore.extraction.findings import FILLED, NULLS_DROPPED, TEXT_ERRORS
from featstore.schema import Slot, SlotKind
from featstore.table.statistics.column_statistics import ColumnStatistics, Statistics

_STORED = "from stored statistics: distinct, quantiles and top values are estimates"
_ROWS = "from the rows, on Spark: distinct, quantiles and top values are estimates"


def rows_profile(statistics: Statistics, slots: Sequence[Slot], labels: Sequence[str]) -> Profile:
    """The profile of statistics gathered from a table's rows, in which the counts of extraction are
    unknown and null.
    """
    return replace(stored_profile(statistics, None, slots, labels), source=_ROWS)


def stored_profile(
    statistics: Statistics,
    counts: Mapping[str, int] | None,
    slots: Sequence[Slot],
    labels: Sequence[str],
) -> Profile:
    """The profile of statistics that were stored with the data.

    Label rates of top values are unknown and null. A slot is matched by its number, so that it may
    have been renamed since, or by its name if it has no number. A slot without statistics is
    missing in every row.

    Args:
        statistics: The merged statistics of the partitions.
        counts: The merged counts of extraction; None if they, and those of the slots, are unknown.
        slots: The slots of the profile.
        labels: The labels whose rates are given.
    """
    num_rows = statistics.num_rows
    known = {column.key: column for column in statistics.columns.values() if column.role == "slot"}
    rows = []
    for slot in slots:
        none = ColumnStatistics.of_slot(slot)
        column = known.get(none.key, none)
        extraction = {} if counts is None else _extraction_counts(slot, column, num_rows)
        rows.append(_row(slot, column, num_rows) | extraction)
    rates = {name: statistics.columns.get(name) for name in labels}
    return Profile(
        num_rows=num_rows,
        label_rates={
            name: None if label is None else _mean(label) for name, label in rates.items()
        },
        table=pa.Table.from_pylist(rows, result_schema(labels)),
        source=_STORED,
        counts=counts or {},
    )


def _row(slot: Slot, column: ColumnStatistics, num_rows: int) -> dict[str, Any]:
    has_numbers = column.num_numbers > 0
    has_lists = slot.is_list and column.num_present > 0
    return {
        **presence(slot, column.num_present, num_rows),
        "num_values": column.num_values,
        "distinct": column.distinct.estimate(),
        "mean": _mean(column),
        "min": column.min if has_numbers else None,
        "max": column.max if has_numbers else None,
        "quantiles": column.quantiles(QUANTILES),
        "length_mean": column.length_sum / column.num_present if has_lists else None,
        "length_max": column.length_max if has_lists else None,
        "length_quantiles": column.length_quantiles(LENGTH_QUANTILES),
        "top": _top(column),
    }


def _extraction_counts(slot: Slot, column: ColumnStatistics, num_rows: int) -> dict[str, Any]:
    signs = slot.kind is SlotKind.ID and slot.num_indices is None
    return {
        "default_rate": column.counts.get(FILLED, 0) / num_rows if num_rows else 0.0,
        "num_nulls_dropped": sum(column.counts.get(name, 0) for name in NULLS_DROPPED),
        "num_text_errors": sum(column.counts.get(name, 0) for name in TEXT_ERRORS),
        "num_sign_collisions": len(column.collisions.collided) if signs else None,
        "num_signs_checked": column.num_signs_checked if signs else None,
    }


def _mean(column: ColumnStatistics) -> float | None:
    return column.sum / column.num_numbers if column.num_numbers else None


def _top(column: ColumnStatistics) -> list[dict[str, Any]]:
    pairs = zip(column.top[0].tolist(), column.top[1].tolist(), strict=True)
    whole = max(column.num_values, 1)
    return [
        {
            "value": value,
            "count": round(count),
            # Counts are estimates from a sample, and can exceed the number of values.
            "share": min(1.0, count / whole),
            "label_rates": None,
        }
        for value, count in list(pairs)[:NUM_TOP]
    ]
