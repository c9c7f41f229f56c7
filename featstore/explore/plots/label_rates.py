"""A label's rate by the values or bins of a slot, and by partition, with Wilson intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError, SelectionError
from featstore.base.table_result import number_text
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
    """What a row of `LabelProfile.cells` is about: a value, a bin, all other values, or missing."""
    if cell["cell"] == "value":
        return names.text(slot, cell["value"])
    if cell["cell"] == "bin":
        low, high = number_text(cell["low"]), number_text(cell["high"])
        return low if low == high else f"{low} to {high}"
    return "(missing)" if cell["cell"] == "missing" else "(all other values)"


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
