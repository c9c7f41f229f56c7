"""Profiles from statistics: those stored with the data, and those that Spark gathered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from featstore.base.schema import Slot, SlotKind
from featstore.explore.profile import Profile, result_table
from featstore.extraction.units.findings import FILLED, NULLS_DROPPED, TEXT_ERRORS
from featstore.statistics.column_statistics import ColumnStatistics, Statistics
from featstore.statistics.summary import label_mean, slot_columns, summarize

_METHOD = (
    "exact where no error (±, 95 %) is shown; distinct values by sketches, top values and "
    "quantiles by samples of rows"
)
_STORED = f"from stored statistics: {_METHOD}"
_ROWS = f"from the rows, on Spark: {_METHOD}"


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
    summaries = summarize(statistics, slots)
    columns = slot_columns(statistics, slots)
    extraction = {
        slot.name: _extraction_counts(slot, columns[slot.name], num_rows)
        for slot in slots
        if counts is not None
    }
    return Profile(
        num_rows=num_rows,
        label_rates={name: label_mean(statistics, name) for name in labels},
        table=result_table(summaries.values(), labels, extraction=extraction),
        source=_STORED,
        counts=counts or {},
        summaries=summaries,
    )


def with_counted(stored: Profile, counted: Profile, slots: Sequence[str]) -> Profile:
    """The profile of statistics, and of other slots of the same rows that were counted, as one.

    Args:
        stored: The profile of statistics.
        counted: The profile of the rows. Its label rates count, since groups may hold labels.
        slots: The names of the slots, in order.
    """
    table = pa.concat_tables([stored.table, counted.table])
    places = {name: i for i, name in enumerate(table["slot"].to_pylist())}
    summaries = {**stored.summaries, **counted.summaries}
    return replace(
        stored,
        label_rates=counted.label_rates,
        table=table.take([places[name] for name in slots]).combine_chunks(),
        source=f"{stored.source}; slots of slot groups, and labels, {counted.source}",
        summaries={name: summaries[name] for name in slots},
    )


def _extraction_counts(slot: Slot, column: ColumnStatistics, num_rows: int) -> dict[str, Any]:
    signs = slot.kind is SlotKind.ID and slot.num_indices is None
    return {
        "default_rate": column.counts.get(FILLED, 0) / num_rows if num_rows else 0.0,
        "num_nulls_dropped": sum(column.counts.get(name, 0) for name in NULLS_DROPPED),
        "num_text_errors": sum(column.counts.get(name, 0) for name in TEXT_ERRORS),
        "num_sign_collisions": len(column.collisions.collided) if signs else None,
        "num_signs_checked": column.num_signs_checked if signs else None,
    }
