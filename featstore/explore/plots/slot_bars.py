"""A bar for each slot: its coverage, what reading it costs, how much it has changed, and what it
alone says of a label. And the label's rate by the values or bins of a slot, and by partition, with
Wilson intervals.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError, SelectionError
from featstore.base.table_result import ERRORS_95, auc_text, least_text, number_text
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
from featstore.spec.value_names import ValueNames
from featstore.statistics.drift import DEPENDENT

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
    least = min(coverage, default=0.0)
    # From 0 bars of 99.0 and 99.9 % would look equal.
    begin = 1.0 - 1.25 * (1.0 - least) if 0.5 < least < 1.0 else 0.0
    axes.set_xlim(max(begin, 0.0), 1.0)
    cut = f"; from {number_text(begin, 3)}, not 0" if begin > 0.0 else ""
    axes.set_xlabel(f"share of rows that are not missing (orange: not all{cut})")
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
    """A bar from 0.5 to the AUC of each slot alone with its error of 95 %, the largest first.

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
    for i, row in enumerate(shown):
        if row["auc_standard_error"] is not None:
            error = ERRORS_95 * row["auc_standard_error"]
            axes.plot(
                [row["auc"] - error, row["auc"] + error], [i, i], color="black", linewidth=3.0
            )
    axes.axvline(0.5, color="black", linewidth=0.8)
    low, high = axes.get_xlim()
    axes.set_xlim(low if min(lengths, default=0.0) < 0.0 else 0.5, max(high, _LEAST_AUC))
    axes.set_xlabel("AUC of the slot alone, out of sample (0.5: says nothing; black: 95 %)")
    texts = [auc_text(row["auc"], row["auc_standard_error"]) for row in shown]
    write_values(axes, texts)
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
        f"population stability index (orange: what chance may have made{at_end}{beyond})\n"
        f"{DEPENDENT}"
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
    write_values(axes, ["unknown" if value is None else number_text(value, 3) for value in values])


MOST_VALUES = 40
_MOST_ORDERED = 50  # values of a slot with an order, where all are shown


def plot_rates(
    label: str, slot: str, cells: Sequence[Mapping[str, Any]], names: ValueNames, base: float | None
) -> "Figure":
    """The rate of a label in each cell of a slot.

    Args:
        label: The label.
        slot: The slot.
        cells: The slot's rows of `LabelProfile.cells`. Of ids the most frequent 40 are drawn, in
            the slot's own order if it has one.
        names: What ids mean.
        base: The rate of all rows.

    Raises:
        SelectionError: The slot has no cells.
    """
    if not cells:
        raise SelectionError(
            f"slot {slot!r} has no cells to plot: expected rows with a known label, found none"
        )
    shown, hidden = cells_in_order(slot, cells, names, MOST_VALUES)
    title = f"{short_text(label)} by {short_text(slot)}"
    if hidden:
        values = [cell for cell in cells if cell["cell"] == "value"]
        title += f": {number_drawn(values, 'values counted', MOST_VALUES)}"
    figure, [axes] = row_figure([cell_text(slot, cell, names) for cell in shown], title)
    _intervals(axes, shown)
    if base is not None:
        axes.axvline(base, color=MARKED, linestyle="--")
    of_all = f"; dashed: all rows, {base:.3f}" if base is not None else ""
    axes.set_xlabel(_axis_text(label, f"share of values{of_all}"), parse_math=False)
    total = sum(cell["num_values"] for cell in cells)
    shares = [coverage_text(cell["num_values"] / total) for cell in shown]
    rates = map(_rate_text, shown)
    write_values(axes, [f"{rate} ({share})" for rate, share in zip(rates, shares, strict=True)])
    return figure


def plot_partition_rates(label: str, partitions: pa.Table) -> "Figure":
    """The rate of a label in each partition, the oldest at the top.

    Args:
        label: The label.
        partitions: As of `LabelProfile`.

    Raises:
        InputError: There are no partitions.
    """
    rows = partitions.to_pylist()
    if not rows:
        raise InputError(
            "expected a table with partitions, found one without; plot_rates needs none"
        )
    shown = rows[:MOST_ROWS]
    title = f"{short_text(label)} in {number_drawn(rows, 'partitions')}"
    figure, [axes] = row_figure([row["partition"] for row in shown], title)
    _intervals(axes, shown)
    axes.set_xlabel(_axis_text(label, "rows with a label"), parse_math=False)
    write_values(axes, [f"{_rate_text(row)} ({row['num_known']:,})" for row in shown])
    return figure


def cells_in_order(
    slot: str, cells: Sequence[Mapping[str, Any]], names: ValueNames, most: int
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The cells to show: the most frequent ids in the slot's own order, if it has one, then all
    other cells; and the cells of the other ids. Of a slot with an order, or whose ids are all
    numbers, such as hours that were hashed, all of at most 50 are shown, in that order.

    Args:
        slot: The slot.
        cells: Its rows of `LabelProfile.cells`.
        names: What ids mean.
        most: How many ids to show of other slots.
    """
    values = {cell["value"]: cell for cell in cells if cell["cell"] == "value"}
    others = [cell for cell in cells if cell["cell"] != "value"]
    shows_all = len(values) <= max(most, _MOST_ORDERED)
    shows_all = shows_all and not any(cell["cell"] == "other" for cell in others)
    order = names.own_order(slot, list(values)) if shows_all else None
    if order is None:
        order = names.in_order(slot, list(values)[:most])
    hidden = [values[sign] for sign in list(values)[len(order) :]]
    return [*(values[sign] for sign in order), *others], hidden


def cell_text(slot: str, cell: Mapping[str, Any], names: ValueNames) -> str:
    """What a row of `LabelProfile.cells` is about: a value, a bin, others, or rows without any."""
    if cell["cell"] == "value":
        return names.text(slot, cell["value"])
    if cell["cell"] == "bin":
        low, high = number_text(cell["low"]), number_text(cell["high"])
        return low if low == high else f"{low} to {high}"
    return "(all other values)" if cell["cell"] == "other" else f"({cell['cell']})"


def _intervals(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    """A dot for each rate, on a line for its interval. An unknown rate has neither."""
    for i, row in enumerate(rows):
        if row["rate"] is not None:
            axes.plot([row["rate_low"], row["rate_high"]], [i, i], color=COLOUR, linewidth=1.5)
            axes.plot([row["rate"]], [i], color=COLOUR, marker="o", markersize=4.0)
    axes.grid(axis="y", alpha=0.3)


def _axis_text(label: str, what: str) -> str:
    return f"mean of {short_text(label)}, intervals of 95 % (right: mean, {what})"


def _rate_text(row: Mapping[str, Any]) -> str:
    return "unknown" if row["rate"] is None else f"{row['rate']:.3f}"
