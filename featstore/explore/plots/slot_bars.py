"""A bar for each slot: its coverage, what reading it costs, how much it has changed, and what it
alone says of a label.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from featstore.base.table_result import least_text
from featstore.explore.plots.frame import (
    COLOUR,
    MARKED,
    MOST_ROWS,
    Axes,
    Figure,
    coverage_text,
    number_drawn,
    row_figure,
    short_text,
    write_values,
)

# What is usually held for a small and for a large change. A rule of thumb of credit scoring, which
# does not know how many rows there are: the bar shows beside it what chance may have made.
PSI_LEVELS = (0.1, 0.25)
# Where the axis ends: one slot that has changed completely must not hide all others.
_LEAST_PSI, _MOST_PSI = 0.3, 1.0
_LEAST_AUC = 0.6  # where the axis ends at least: chance is not drawn as if it were much


def plot_coverage(table: pa.Table, num_rows: int) -> "Figure":
    """A bar for the coverage of each slot, in the order of `Profile.table`."""
    rows = table.select(["slot", "coverage"]).to_pylist()
    shown = rows[:MOST_ROWS]
    title = f"Coverage of {number_drawn(rows, 'slots')} over {num_rows:,} rows"
    figure, [axes] = row_figure([row["slot"] for row in shown], title)
    coverage = [row["coverage"] for row in shown]
    colours = [COLOUR if share == 1.0 else MARKED for share in coverage]
    axes.barh(range(len(shown)), coverage, color=colours)
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of rows that are not missing (orange: not all)")
    write_values(axes, list(map(coverage_text, coverage)))
    return figure


def plot_costs(table: pa.Table) -> "Figure":
    """Two bars for each slot, its stored bytes and its decoding time a row. Those that take most
    time come first.

    Args:
        table: `ReadingCosts.table`.
    """
    rows = _ranked(table, "decode_ns_per_row")
    shown = rows[:MOST_ROWS]
    figure, [left, right] = row_figure(
        [row["slot"] for row in shown],
        f"What reading costs: {number_drawn(rows, 'slots')}",
        num_panels=2,
    )
    _bars(left, [row["stored_bytes_per_row"] for row in shown], "stored bytes a row")
    _bars(right, [row["decode_ns_per_row"] for row in shown], "decoding, CPU ns a row")
    return figure


def plot_auc(label: str, table: pa.Table) -> "Figure":
    """A bar from 0.5 to the AUC of each slot alone, the largest first.

    Args:
        label: The label.
        table: `LabelProfile.table`.
    """
    rows = _ranked(table, "auc")
    shown = rows[:MOST_ROWS]
    title = f"What {number_drawn(rows, 'slots')} say of {short_text(label)}, each alone"
    figure, [axes] = row_figure([row["slot"] for row in shown], title)
    lengths = [0.0 if row["auc"] is None else row["auc"] - 0.5 for row in shown]
    axes.barh(range(len(shown)), lengths, left=0.5, color=COLOUR)
    axes.axvline(0.5, color="black", linewidth=0.8)
    low, high = axes.get_xlim()
    axes.set_xlim(low if min(lengths, default=0.0) < 0.0 else 0.5, max(high, _LEAST_AUC))
    axes.set_xlabel("AUC of the slot alone, out of sample (0.5: says nothing)")
    write_values(axes, [_text(row["auc"]) for row in shown])
    return figure


def plot_psi(table: pa.Table) -> "Figure":
    """A bar for the PSI of each slot, the largest first, with the part that chance may have made.

    Args:
        table: `Comparison.table`.
    """
    rows = _ranked(table, "psi")
    shown = rows[:MOST_ROWS]
    figure, [axes] = row_figure(
        [row["slot"] for row in shown], f"What changed in {number_drawn(rows, 'slots')}"
    )
    changes = [row["psi"] or 0.0 for row in shown]
    errors = [row["psi_error"] or 0.0 for row in shown]
    largest = max(changes, default=0.0)
    end = min(max(1.05 * largest, _LEAST_PSI), _MOST_PSI)
    axes.barh(range(len(shown)), changes, color=COLOUR)
    # What would be marked beyond the axis is marked where that ends: no mark would mean no chance.
    axes.plot(
        [min(error, end) for error in errors],
        range(len(shown)),
        color=MARKED,
        marker="|",
        linestyle="",
        markeredgewidth=2.0,
        clip_on=False,
        zorder=3.0,
    )
    for level in PSI_LEVELS:
        axes.axvline(level, color="grey", linestyle=":", linewidth=0.8)
    axes.set_xlim(0.0, end)
    beyond = f"; more than {end:g} is not drawn" if largest > end else ""
    at_end = ", at the end: that or more" if max(errors, default=0.0) > end else ""
    axes.set_xlabel(
        f"population stability index (orange: what chance may have made{at_end}{beyond})"
    )
    # `≥`: only frequent values are compared, and others may have drifted more.
    texts = [
        _text(None) if row["psi"] is None else least_text(row["psi"], row["psi_method"], _text)
        for row in shown
    ]
    write_values(axes, texts)
    return figure


def _ranked(table: pa.Table, column: str) -> list[Mapping[str, Any]]:
    """The rows in descending order of a column; those without a value last."""
    rows: list[Mapping[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: float("inf") if row[column] is None else -row[column])


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _bars(axes: "Axes", values: Sequence[float | None], label: str) -> None:
    axes.barh(range(len(values)), [value or 0.0 for value in values], color=COLOUR)
    axes.set_xlim(0.0, None)
    axes.set_xlabel(label)
    write_values(axes, ["unknown" if value is None else f"{value:.3g}" for value in values])
