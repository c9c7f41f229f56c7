"""All that a report says, as JSON types. Pure: from results to what the page's script draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featstore.base.schema import SlotKind
from featstore.base.table_result import number_text, rows_by_slot
from featstore.explore.comparison import Comparison, ProfiledRows, slot_key
from featstore.explore.label_profile import LabelProfile
from featstore.explore.partition_profiles import PartitionProfiles
from featstore.explore.plots.frame import short_text
from featstore.explore.profile import Profile
from featstore.explore.reading_costs import ReadingCosts
from featstore.explore.report.charts import (
    Chart,
    by_partition,
    columns,
    histogram,
    label_rates,
    top_values,
)
from featstore.explore.report.slot_columns import SlotColumn, SlotFigures, facts, slot_columns

_MOST_NAMED = 20  # of the slots that only the rows of before have
_MOST_SPARKS = 40  # bars of the small picture in a row of the table


@dataclass(frozen=True, kw_only=True)
class ReportFigures:
    """The results that a report shows.

    Attributes:
        about: What the report is about: names and texts, without secrets.
        profile: The slots.
        costs: Their sizes.
        before: The profile with which they are compared, or None.
        label: The slots against a label, or None.
        partitions: Their coverage and drift by partition, or None.
    """

    about: Sequence[tuple[str, str]]
    profile: Profile
    costs: ReadingCosts
    before: Profile | None = None
    label: LabelProfile | None = None
    partitions: PartitionProfiles | None = None


def contents(found: ReportFigures) -> dict[str, Any]:
    """What the page shows, as JSON types."""
    comparison = None if found.before is None else found.before.compare(found.profile)
    wanted = slot_columns(compared=comparison is not None, labelled=found.label is not None)
    titles = [column.title for column in wanted]
    return {
        "about": [*found.about, *_about_rows(found, comparison)],
        "columns": [column.as_dict() for column in wanted],
        # The column by which slots are sorted at first; None for the order of the table.
        "order": next((titles.index(name) for name in ("drift", "AUC") if name in titles), None),
        "partitions": list(map(short_text, _partition_names(found))),
        "charts": _overview(found),
        "slots": _slots(found, comparison, wanted),
    }


def _about_rows(found: ReportFigures, comparison: Comparison | None) -> list[tuple[str, str]]:
    rows = _side(found.profile)
    if comparison is None:
        return rows
    gone = [row["slot"] for row in comparison.table.to_pylist() if row["coverage_after"] is None]
    names = ", ".join(map(short_text, gone[:_MOST_NAMED]))
    more = f" and {len(gone) - _MOST_NAMED:,} more" if len(gone) > _MOST_NAMED else ""
    rows += [(f"before: {name}", text) for name, text in _side(comparison.before)]
    return [*rows, ("slots only before", names + more)] if gone else rows


def _side(side: ProfiledRows) -> list[tuple[str, str]]:
    """The rows of a profile, or of one side of a comparison, each figure whole."""
    rates = [
        (f"mean of {short_text(name)}", number_text(rate))
        for name, rate in side.label_rates.items()
    ]
    return [("rows", f"{side.num_rows:,}"), *rates, ("figures", side.source)]


def _partition_names(found: ReportFigures) -> Sequence[str]:
    return () if found.partitions is None else found.partitions.partitions


def _overview(found: ReportFigures) -> list[Chart]:
    """Charts of the whole table: its rows and its label by partition."""
    names = _partition_names(found)
    if found.partitions is None or not names:
        return []
    table = found.partitions.table
    num_rows = dict(zip(table["partition"].to_pylist(), table["num_rows"].to_pylist(), strict=True))
    charts = [columns("Rows by partition", [num_rows.get(name) for name in names], names)]
    if found.label is not None:
        rates = {row["partition"]: row["rate"] for row in found.label.partitions.to_pylist()}
        title = f"Rate of {short_text(found.label.label)} by partition"
        shown = [rates.get(name) for name in names]
        if sum(rate is not None for rate in shown) > 1:
            charts.append(columns(title, shown, names, unit="share"))
    return charts


def _slots(
    found: ReportFigures, comparison: Comparison | None, wanted: Sequence[SlotColumn]
) -> list[dict[str, Any]]:
    costs = {row["slot"]: row for row in found.costs.table.to_pylist()}
    changes = {} if comparison is None else _by_name(comparison.table.to_pylist())
    labels = {} if found.label is None else _by_name(found.label.table.to_pylist())
    names = found.profile.names if comparison is None else comparison.names
    summaries = () if found.before is None else found.before.summaries.values()
    before = {slot_key(summary.slot): summary for summary in summaries}
    others = _other_charts(found)
    slots = []
    for row in found.profile.table.to_pylist():
        figures = SlotFigures(
            profile=row,
            costs=costs[row["slot"]],
            change=changes.get(row["slot"], {}),
            label=labels.get(row["slot"], {}),
            names=found.profile.names,
        )
        summary = found.profile.summaries[row["slot"]]
        older = before.get(slot_key(summary.slot))
        is_float = row["kind"] == SlotKind.FLOAT
        values = histogram(summary, older) if is_float else top_values(summary, names, older)
        slots.append(
            {
                "cells": [column.cell(figures) for column in wanted],
                "facts": facts(figures),
                "sparks": _sparks(values),
                "charts": [*([] if values is None else [values]), *others[row["slot"]]],
            }
        )
    return slots


def _by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Rows by slot. Of two with one name, which comparisons may have, the first one counts: the
    other one is a slot that is only in the rows of before.
    """
    return {row["slot"]: row for row in reversed(rows)}


def _other_charts(found: ReportFigures) -> dict[str, list[Chart]]:
    """The charts of each slot beside that of its values: the rates of a label, and partitions."""
    charts: dict[str, list[Chart]] = {name: [] for name in found.profile.slots}
    label, partitions = found.label, _partition_names(found)
    if label is not None and label.rate is not None:
        cells = rows_by_slot(label.cells)
        for slot, of_slot in charts.items():
            item = {"slot": slot, "cells": cells[slot]}
            of_slot.append(label_rates(label.label, item, label.names, label.rate))
    if found.partitions is not None and partitions:
        rows = rows_by_slot(found.partitions.table)
        for slot, of_slot in charts.items():
            of_slot += by_partition(rows[slot], partitions)
    return charts


def _sparks(chart: Chart | None) -> list[int]:
    """The heights of the small picture in a row of the table, in percent of the highest."""
    if chart is None:
        return []
    bars = chart["values"] if chart["kind"] == "columns" else [r["value"] for r in chart["rows"]]
    most = max((bar or 0.0 for bar in bars), default=0.0)
    return [round(100 * (bar or 0.0) / most) for bar in bars[:_MOST_SPARKS]] if most else []
