"""How values are distributed: those of one slot in some rows, or before and after, and those of all
slots, a row for each slot.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.errors import SelectionError
from featstore.base.schema import SlotKind
from featstore.base.table_result import before_after_text, number_text, share_text
from featstore.explore.plots.frame import (
    COLOUR,
    FONT_POINTS,
    MARKED,
    MOST_ROWS,
    WIDTH_INCHES,
    Axes,
    Figure,
    coverage_text,
    new_figure,
    number_drawn,
    row_figure,
    short_text,
    write_values,
)
from featstore.spec.value_names import ValueNames
from featstore.statistics.drift import ValueShares, value_shares
from featstore.statistics.sketches import Floats
from featstore.statistics.summary import SlotSummary

NUM_BINS = 40  # of a histogram
_HEIGHT_INCHES = 3.6


def plot_distribution(
    row: Mapping[str, Any], points: tuple[Floats, Floats], names: ValueNames
) -> "Figure":
    """The top values of an id slot with their shares, or the histogram of a float slot.

    Args:
        row: The slot's row of `Profile.table`.
        points: A float slot's values and their weights, as of `SlotSummary`.
        names: What ids mean.

    Raises:
        SelectionError: The slot has no values.
    """
    if not row["num_values"]:
        raise SelectionError(
            f"slot {row['slot']!r} has no values to plot: expected some, found a coverage of "
            f"{share_text(row['coverage'])}; choose other rows or another slot"
        )
    is_float = row["kind"] == SlotKind.FLOAT
    return _histogram(row, *points) if is_float else _top(row, names)


def _top(row: Mapping[str, Any], names: ValueNames) -> "Figure":
    counted = {value["value"]: value for value in row["top"]}
    top = [counted[sign] for sign in names.in_order(row["slot"], counted)]
    texts = [names.text(row["slot"], value["value"]) for value in top]
    shares = [value["share"] for value in top]
    errors = [value["share_error"] for value in top]
    num_others = row["distinct"] - len(top)
    if num_others > 0:
        shares.append(max(0.0, 1.0 - sum(shares)))
        errors.append(0.0)
        about = "about " if row["distinct_error"] else ""
        texts.append(f"({about}{num_others:,} other values)")
    title = (
        f"{short_text(row['slot'])}: {row['num_values']:,} values, "
        f"coverage {coverage_text(row['coverage'])}"
    )
    figure, [axes] = row_figure(texts, title)
    colours = [COLOUR] * len(top) + [MARKED] * (len(shares) - len(top))
    axes.barh(range(len(shares)), shares, color=colours)
    if any(errors):
        axes.errorbar(shares, range(len(shares)), xerr=errors, fmt="none", color="black")
    axes.set_xlim(0.0, None)
    axes.set_xlabel("share of values" + (" (lines: errors of 95 %)" if any(errors) else ""))
    pairs = zip(shares, errors, strict=True)
    written = [share_text(share, error) for share, error in pairs]
    if len(shares) > len(top) and any(errors):
        written[-1] = f"about {written[-1]}"
    write_values(axes, written)
    return figure


def _histogram(row: Mapping[str, Any], values: Floats, weights: Floats) -> "Figure":
    edges = np.linspace(*histogram_range(row["quantiles"], values), NUM_BINS + 1)
    shares = bin_shares(values, weights, edges)
    figure, axes = _histogram_figure(
        f"{short_text(row['slot'])}: {row['num_values']:,} values, "
        f"mean {number_text(row['mean'])}, coverage {coverage_text(row['coverage'])}",
        f"value, from {number_text(row['min'])} to {number_text(row['max'])} (dashed: quartiles; "
        "the first and the last bar hold what lies beyond)",
    )
    axes.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=COLOUR)
    for quantile in row["quantiles"][1:-1]:
        if edges[0] <= quantile <= edges[-1]:
            axes.axvline(quantile, color=MARKED, linestyle="--")
    return figure


def _histogram_figure(title: str, axis_text: str) -> tuple["Figure", "Axes"]:
    figure = new_figure(WIDTH_INCHES, _HEIGHT_INCHES)
    figure.suptitle(title, fontsize=FONT_POINTS + 2, parse_math=False)
    axes = figure.add_subplot()
    axes.tick_params(labelsize=FONT_POINTS)
    axes.xaxis.get_offset_text().set_fontsize(FONT_POINTS)
    axes.set_xlabel(axis_text, fontsize=FONT_POINTS)
    axes.set_ylabel("share of values", fontsize=FONT_POINTS)
    return figure, axes


def bin_shares(values: Floats, weights: Floats, edges: Floats) -> Floats:
    """The share of the values in each bin of a histogram, float64 (num_edges - 1,). The first and
    the last bin hold what lies beyond.

    Args:
        values: The values, of which there is at least one.
        weights: Their weights.
        edges: Where bins begin, and the last one ends, ascending.
    """
    inside = np.clip(values, edges[0], edges[-1])
    counts, _ = np.histogram(inside, bins=edges, weights=weights)
    shares: Floats = counts / weights.sum()
    return shares


def common_edges(sides: Sequence[SlotSummary]) -> Floats:
    """The edges of the bins of a histogram of several sides, each of which has values."""
    ranges = [histogram_range(side.quantiles or (), side.points[0]) for side in sides]
    lows, highs = zip(*ranges, strict=True)
    return np.linspace(min(lows), max(highs), NUM_BINS + 1)


def histogram_range(quantiles: Sequence[float], values: Floats) -> tuple[float, float]:
    """The range of a histogram: from the first to the last quantile, so that few extreme values do
    not push all others into one bar. Always finite, and not empty.
    """
    finite = values[np.isfinite(values)]
    least, most = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    low, high = np.clip([quantiles[0], quantiles[-1]], least, most).tolist()
    if low == high:
        low, high = least, most
    if low == high:
        margin = max(0.5, abs(low) * 1e-3)
        low, high = low - margin, high + margin
    return low, high


def plot_two_sides(
    slot: str, before: SlotSummary, after: SlotSummary, names: ValueNames, num_top: int
) -> "Figure":
    """The most frequent ids of both sides with their shares, or both histograms of a float slot.

    Args:
        slot: The slot's name.
        before: What is known of it before.
        after: What is known of it after.
        names: What ids mean.
        num_top: How many ids of each side.

    Raises:
        SelectionError: Neither side has values.
    """
    if not before.num_values and not after.num_values:
        raise SelectionError(
            f"slot {slot!r} has no values to plot: expected some on one side, found none before "
            "and none after; choose other rows or another slot"
        )
    if after.slot.kind is SlotKind.FLOAT:
        return _histograms(slot, before, after)
    by_value = {one.value: one for one in value_shares(before, after, num_top)}
    shown = [by_value[value] for value in names.in_order(slot, by_value)]
    texts = [names.text(slot, one.value) for one in shown]
    figure, [axes] = row_figure(texts, _two_sides_title(slot, before, after))
    places = range(len(shown))
    axes.barh([i - 0.2 for i in places], [one.before or 0.0 for one in shown], 0.4, color=MARKED)
    axes.barh([i + 0.2 for i in places], [one.after or 0.0 for one in shown], 0.4, color=COLOUR)
    axes.set_xlim(0.0, None)
    axes.set_xlabel("share of values (orange: before, blue below it: after)")
    write_values(axes, [change_text(one) for one in shown])
    return figure


def _histograms(slot: str, before: SlotSummary, after: SlotSummary) -> "Figure":
    edges = common_edges([side for side in (before, after) if side.quantiles])
    figure, axes = _histogram_figure(
        _two_sides_title(slot, before, after),
        "value (orange line: before, blue: after; the first and the last bar hold what lies "
        "beyond)",
    )
    if after.quantiles:
        axes.stairs(bin_shares(*after.points, edges), edges, fill=True, color=COLOUR)
    if before.quantiles:
        axes.stairs(bin_shares(*before.points, edges), edges, color=MARKED, linewidth=1.5)
    axes.set_ylim(0.0, None)
    return figure


def _two_sides_title(slot: str, before: SlotSummary, after: SlotSummary) -> str:
    numbers = before_after_text(f"{before.num_values:,}", f"{after.num_values:,}")
    coverages = before_after_text(coverage_text(before.coverage), coverage_text(after.coverage))
    return f"{short_text(slot)}: {numbers} values, coverage {coverages}"


def change_text(found: ValueShares) -> str:
    """The shares of an id before and after. `rare` is one that is too rare to be listed, or absent;
    `none` one that is surely absent.
    """
    before = side_text(found.before, found.before_error)
    return before_after_text(before, side_text(found.after, found.after_error))


def side_text(share: float | None, error: float) -> str:
    """The share of an id on one side."""
    return "rare" if share is None else "none" if share == 0.0 else share_text(share, error)


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
