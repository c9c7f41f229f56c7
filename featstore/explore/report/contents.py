"""All that a report says, and what its charts draw, as JSON types. Pure: from results to what the
page's script draws.

The script knows two kinds of charts: `rows` has a bar for each row, with texts beside it, and
`columns` a bar for each bin or partition. Numbers are rounded to four digits, which is more than a
bar of a page can show; counts are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featstore.base.schema import SlotKind
from featstore.base.table_result import number_text, rows_by_slot, share_text
from featstore.explore.comparison import Comparison, ProfiledRows, slot_key
from featstore.explore.label_profile import LabelProfile
from featstore.explore.partition_profiles import DRIFT, PartitionProfiles
from featstore.explore.plots.distribution import (
    bin_shares,
    change_text,
    common_edges,
    side_text,
)
from featstore.explore.plots.frame import short_text
from featstore.explore.plots.slot_bars import cell_text, cells_in_order
from featstore.explore.profile import NUM_TOP, Profile, history_text
from featstore.explore.profiling import SOURCE
from featstore.explore.reading_costs import ReadingCosts
from featstore.explore.report.slot_columns import (
    SlotColumn,
    SlotFigures,
    facts,
    rounded,
    slot_columns,
)
from featstore.spec.value_names import ValueNames
from featstore.statistics.drift import DEPENDENT, value_shares
from featstore.statistics.summary import SlotSummary

Chart = dict[str, Any]

MOST_CHARACTERS = 64  # of a value
_MOST_VALUES = 20  # of the rates of a label, beside all others
_LARGE_PSI = 0.25  # where the scale ends, unless a slot's own drift is larger
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
    wanted = slot_columns(
        compared=comparison is not None,
        labelled=found.label is not None,
        by_partition=len(_partition_names(found)) > 1,
    )
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
    histories = found.profile.histories.items()
    rows = [
        *_side(found.profile),
        *((f"history {short_text(name)}", history_text(one)) for name, one in histories),
    ]
    if found.label is not None:
        rows.append((f"AUC and rates of {short_text(found.label.label)}", SOURCE))
        rows += [("remark", found.label.remark)] if found.label.remark else []
    if comparison is None:
        return rows
    gone = [row["slot"] for row in comparison.table.to_pylist() if row["coverage_after"] is None]
    names = ", ".join(map(short_text, gone[:_MOST_NAMED]))
    more = f" and {len(gone) - _MOST_NAMED:,} more" if len(gone) > _MOST_NAMED else ""
    of_after = ("figures", found.profile.source)  # stands once if it is that of both sides
    before = [pair for pair in _side(comparison.before) if pair != of_after]
    rows = [*((f"before: {name}", text) for name, text in before), *rows]
    return [*rows, ("slots only before", names + more)] if gone else rows


def _side(side: ProfiledRows) -> list[tuple[str, str]]:
    """The rows of a profile, or of one side of a comparison, each figure whole."""
    rates = [
        (f"mean of {short_text(name)}", number_text(rate, 3))
        for name, rate in side.label_rates.items()
    ]
    return [("rows", f"{side.num_rows:,}"), *rates, ("figures", side.source)]


def _partition_names(found: ReportFigures) -> Sequence[str]:
    return () if found.partitions is None else found.partitions.partitions


def _overview(found: ReportFigures) -> list[Chart]:
    """Charts of the whole table: its rows, its label and its drift by partition."""
    names = _partition_names(found)
    if found.partitions is None or not names:
        return []
    table = found.partitions.table
    num_rows = dict(zip(table["partition"].to_pylist(), table["num_rows"].to_pylist(), strict=True))
    charts = [
        columns("Rows by partition", [num_rows.get(name) for name in names], names, from_zero=False)
    ]
    if found.label is not None:
        rates = {row["partition"]: row["rate"] for row in found.label.partitions.to_pylist()}
        title = f"Rate of {short_text(found.label.label)} by partition"
        shown = [rates.get(name) for name in names]
        if sum(rate is not None for rate in shown) > 1:
            charts.append(columns(title, shown, names, unit="share", from_zero=False))
    if len(names) > 1:
        drifted = found.partitions.most_drifted.to_pylist()
        title = "Largest drift of a slot, beyond chance (PSI)"
        texts = [short_text(f"{row['partition']} {row['slot'] or ''}") for row in drifted]
        drifts = columns(title, [row["drift"] for row in drifted], names)
        charts.append(drifts | {"names": texts, "note": f"{DRIFT}; {DEPENDENT}"})
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
    days = {} if found.partitions is None else found.partitions.largest_drifts()
    slots = []
    for row in found.profile.table.to_pylist():
        figures = SlotFigures(
            profile=row,
            costs=costs[row["slot"]],
            change=changes.get(row["slot"], {}),
            label=labels.get(row["slot"], {}),
            names=found.profile.names,
            day=days.get(row["slot"], {}),
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


def top_values(summary: SlotSummary, names: ValueNames, before: SlotSummary | None) -> Chart | None:
    """The most frequent ids of a slot with their shares, in its own order if it has one. Beside
    rows of before, also the most frequent ids of those.

    Args:
        summary: What is known of the slot.
        names: What ids mean.
        before: The same of the rows of before.

    Returns:
        The chart; None if there are no values.
    """
    nothing = SlotSummary(slot=summary.slot, num_rows=0, num_present=0, num_values=0, distinct=0)
    found = value_shares(nothing if before is None else before, summary, NUM_TOP)
    if not found:
        return None
    compared = before is not None and before.num_values > 0
    shares = {one.value: one for one in found}
    rows = [
        {
            "text": short_text(names.text(summary.slot.name, one.value), MOST_CHARACTERS),
            "figure": change_text(one) if compared else side_text(one.after, one.after_error),
            "value": rounded(one.after),
            "before": rounded(one.before) if compared else None,
        }
        for one in map(shares.__getitem__, names.in_order(summary.slot.name, shares))
    ]
    others = summary.distinct - sum(one.after != 0.0 for one in found)
    about = "about " if summary.distinct_error else ""
    note = f"{about}{others:,} other values" if others > 0 else "there are no others"
    return _rows("Most frequent values, share of all values", note, rows, compared=compared)


def histogram(summary: SlotSummary, before: SlotSummary | None) -> Chart | None:
    """The histogram of a float slot, of which the first and the last bar hold what lies beyond.

    Args:
        summary: What is known of the slot.
        before: The same of the rows of before.

    Returns:
        The chart; None if there are no values.
    """
    sides = [one for one in (summary, before) if one is not None and one.quantiles]
    if not summary.quantiles:
        return None
    edges = common_edges(sides)
    now, *old = [
        [rounded(share) for share in bin_shares(*side.points, edges).tolist()] for side in sides
    ]
    return {
        "kind": "columns",
        "title": "Distribution, share of values",
        "note": "the first and the last bar hold what lies beyond",
        "first": number_text(edges[0]),
        "last": number_text(edges[-1]),
        "names": [f"from {number_text(edge)}" for edge in edges[:-1].tolist()],
        "values": now,
        "before": old[0] if old else None,
        "unit": "share",
        "least": 0.0,
        "most": None,
    }


def label_rates(label: str, slot: Mapping[str, Any], names: ValueNames, rate: float) -> Chart:
    """The label's rate for the values or bins of a slot, with Wilson intervals.

    Args:
        label: The label.
        slot: The slot's item of a `LabelProfile`.
        names: What ids mean.
        rate: The label's rate in all rows.
    """
    shown, hidden = cells_in_order(slot["slot"], slot["cells"], names, _MOST_VALUES)
    rows = [
        {
            "text": short_text(cell_text(slot["slot"], cell, names), MOST_CHARACTERS),
            "figure": f"{share_text(cell['rate'])} of {cell['num_values']:,}",
            "value": rounded(cell["rate"]),
            "low": rounded(cell["rate_low"]),
            "high": rounded(cell["rate_high"]),
        }
        for cell in shown
        if cell["rate"] is not None
    ]
    left_out = f"; {len(hidden)} less frequent values counted are not shown" if hidden else ""
    least = _start([rate, *(cell[f"rate_{end}"] for cell in shown for end in ("low", "high"))])
    scale = f"; the scale begins at {share_text(least)}" if least else ""
    note = f"lines: intervals of 95 %; dashed: {share_text(rate)}, the rate of all rows"
    chart = _rows(f"Rate of {short_text(label)}", f"{note}{scale}{left_out}", rows)
    return chart | {"baseline": rounded(rate), "least": rounded(least)}


def by_partition(rows: Sequence[Mapping[str, Any]], partitions: Sequence[str]) -> list[Chart]:
    """The coverage of a slot in each partition, and its drift from one to the next.

    Args:
        rows: The slot's rows of `PartitionProfiles.table`.
        partitions: All partitions, in their order.
    """
    of = {row["partition"]: row for row in rows}
    coverage = [of[name]["coverage"] if name in of else None for name in partitions]
    psi = [of[name]["psi"] if name in of else None for name in partitions]
    charts = [
        columns(
            "Coverage by partition", coverage, partitions, unit="share", most=1.0, from_zero=False
        )
    ]
    if len(partitions) > 1:
        most = max([_LARGE_PSI, *(value for value in psi if value is not None)])
        least = any(row["psi_method"] == "at least" for row in rows)
        title = f"Drift from the partition before (PSI{', at least' if least else ''})"
        charts.append(columns(title, psi, partitions, most=most))
    return charts


def columns(
    title: str,
    values: Sequence[float | None],
    partitions: Sequence[str],
    *,
    unit: str = "number",
    most: float | None = None,
    from_zero: bool = True,
) -> Chart:
    """A bar for each partition.

    Args:
        title: The title.
        values: A figure for each partition; None where there is none.
        partitions: Their names. The page has them once, for all charts.
        unit: `share` or `number`.
        most: The end of the scale; None for the largest value.
        from_zero: Whether the scale begins at 0 also where that hides how values differ.
    """
    return {
        "kind": "columns",
        "title": title,
        "note": "",
        "first": short_text(partitions[0]),
        "last": short_text(partitions[-1]),
        "names": None,
        "values": [rounded(value) for value in values],
        "before": None,
        "unit": unit,
        "least": 0.0 if from_zero else rounded(_start([*values, most])),
        "most": rounded(most),
    }


def _start(shown: Sequence[float | None]) -> float:
    """Where a scale of these values begins: at 0, unless that hides how they differ."""
    known = [value for value in shown if value is not None]
    least, end = min(known, default=0.0), max(known, default=0.0)
    return least - (end - least) / 4 if end / 2 < least < end else 0.0


def _rows(
    title: str, note: str, rows: Sequence[Mapping[str, Any]], *, compared: bool = False
) -> Chart:
    chart = {"kind": "rows", "title": title, "note": note, "rows": rows}
    return chart | {"compared": compared, "least": 0.0}
