"""How the values of all slots are distributed, a row for each slot."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.schema import SlotKind
from featstore.base.table_result import number_text, share_text
from featstore.explore.plots.frame import (
    COLOUR,
    MARKED,
    MOST_ROWS,
    Axes,
    Figure,
    number_drawn,
    row_figure,
    short_text,
    write_values,
)
from featstore.spec.value_names import ValueNames

_LIGHT = 0.45  # every second top value, so that one can be told from the next
_MOST_CHARACTERS = 16  # of a value's text
_LEAST_BOX = 0.008  # of the width: half of the values may be equal


def plot_distributions(table: pa.Table, names: ValueNames) -> "Figure":
    """The shares of the top values of each id slot, one after the other, and a box of the quantiles
    of each float slot.

    Args:
        table: `Profile.table`, whose order the rows have.
        names: What ids mean.
    """
    rows = table.select(["slot", "kind", "num_values", "top", "quantiles"]).to_pylist()
    shown = rows[:MOST_ROWS]
    title = f"Values of {number_drawn(rows, 'slots')}"
    figure, [axes] = row_figure([row["slot"] for row in shown], title)
    _shares(axes, [row["top"] or () for row in shown])
    _boxes(axes, [row["quantiles"] for row in shown])
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel(
        "blue: shares of the top values of ids (right: the first)\n"
        "orange: middle half and median of floats, from 1 % to 99 % of them (right)"
    )
    write_values(axes, [_text(row, names) for row in shown])
    return figure


def scaled(quantiles: Sequence[float]) -> list[float] | None:
    """Quantiles as shares of the way from the first to the last; None if these are equal, or not
    both finite.
    """
    low, high = quantiles[0], quantiles[-1]
    if not np.isfinite(high - low) or low == high:
        return None
    return [(quantile - low) / (high - low) for quantile in quantiles]


def _shares(axes: "Axes", tops: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    places, ends = np.arange(len(tops)), np.zeros(len(tops))
    for i in range(max(map(len, tops), default=0)):
        widths = np.array([top[i]["share"] if i < len(top) else 0.0 for top in tops])
        axes.barh(places, widths, left=ends, color=COLOUR, alpha=_LIGHT if i % 2 else 1.0)
        ends += widths


def _boxes(axes: "Axes", quantiles: Sequence[Sequence[float] | None]) -> None:
    found = ((i, scaled(of_slot)) for i, of_slot in enumerate(quantiles) if of_slot)
    boxes = [(i, of_slot) for i, of_slot in found if of_slot is not None]
    places = [i for i, _ in boxes]
    lows = np.array([of_slot[1] for _, of_slot in boxes])
    highs = np.array([of_slot[-2] for _, of_slot in boxes])
    widths = np.maximum(highs - lows, _LEAST_BOX)
    axes.barh(places, widths, left=np.minimum(lows, 1.0 - widths), color=MARKED)
    axes.plot([of_slot[2] for _, of_slot in boxes], places, "k|", markersize=8.0)


def _text(row: Mapping[str, Any], names: ValueNames) -> str:
    if not row["num_values"]:
        return "no values"
    if row["kind"] == SlotKind.FLOAT:
        low, *_, high = map(number_text, row["quantiles"])
        return low if low == high else f"{low} to {high}"
    first = row["top"][0]
    text = short_text(names.text(row["slot"], first["value"]), _MOST_CHARACTERS)
    return f"{text} {share_text(first['share'], first['share_error'])}"
