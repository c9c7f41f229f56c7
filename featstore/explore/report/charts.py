"""What the charts of a report draw, as JSON types. The page's script knows two kinds of charts.

`rows` has a bar for each row, with texts beside it, and `columns` a bar for each bin or partition.
Numbers are rounded to four digits, which is more than a bar of a page can show; counts are exact.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from featstore.base.table_result import number_text, share_text
from featstore.explore.plots.distribution import (
    bin_shares,
    change_text,
    common_edges,
    side_text,
)
from featstore.explore.plots.frame import short_text
from featstore.explore.plots.label_rates import cell_text, cells_in_order
from featstore.explore.profile import NUM_TOP
from featstore.spec.value_names import ValueNames
from featstore.statistics.drift import value_shares
from featstore.statistics.summary import SlotSummary

Chart = dict[str, Any]

MOST_CHARACTERS = 64  # of a value
_MOST_VALUES = 20  # of the rates of a label, beside all others
_LARGE_PSI = 0.25  # where the scale ends, unless a slot's own drift is larger


def rounded(value: float | None) -> float | None:
    """A number for JSON; None, also for what JSON does not have."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else None


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
    note = f"lines: intervals of 95 %; dashed: {share_text(rate)}, the rate of all rows{left_out}"
    return _rows(f"Rate of {short_text(label)}", note, rows) | {"baseline": rounded(rate)}


def by_partition(rows: Sequence[Mapping[str, Any]], partitions: Sequence[str]) -> list[Chart]:
    """The coverage of a slot in each partition, and its drift from one to the next.

    Args:
        rows: The slot's rows of `PartitionProfiles.table`.
        partitions: All partitions, in their order.
    """
    of = {row["partition"]: row for row in rows}
    coverage = [of[name]["coverage"] if name in of else None for name in partitions]
    psi = [of[name]["psi"] if name in of else None for name in partitions]
    charts = [columns("Coverage by partition", coverage, partitions, unit="share", most=1.0)]
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
) -> Chart:
    """A bar for each partition.

    Args:
        title: The title.
        values: A figure for each partition; None where there is none.
        partitions: Their names. The page has them once, for all charts.
        unit: `share` or `number`.
        most: The end of the scale; None for the largest value.
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
        "most": rounded(most),
    }


def _rows(
    title: str, note: str, rows: Sequence[Mapping[str, Any]], *, compared: bool = False
) -> Chart:
    return {"kind": "rows", "title": title, "note": note, "rows": rows, "compared": compared}
