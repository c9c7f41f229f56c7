"""How the values of one slot are distributed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from featstore.base.errors import SelectionError
from featstore.base.schema import SlotKind
from featstore.base.table_result import number_text, share_text
from featstore.explore.plots.frame import (
    COLOUR,
    FONT_POINTS,
    MARKED,
    WIDTH_INCHES,
    coverage_text,
    new_figure,
    row_figure,
    short_text,
    write_values,
)
from featstore.spec.value_names import ValueNames
from featstore.statistics.sketches import Floats
from featstore.statistics.summary import SlotSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    low, high = histogram_range(row["quantiles"], values)
    edges = np.linspace(low, high, NUM_BINS + 1)
    shares = bin_shares(values, weights, edges)
    figure = new_figure(WIDTH_INCHES, _HEIGHT_INCHES)
    axes = figure.add_subplot()
    axes.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=COLOUR)
    for quantile in _quartiles(row["quantiles"], low, high):
        axes.axvline(quantile, color=MARKED, linestyle="--")
    axes.tick_params(labelsize=FONT_POINTS)
    axes.xaxis.get_offset_text().set_fontsize(FONT_POINTS)
    axes.set_ylabel("share of values", fontsize=FONT_POINTS)
    axes.set_xlabel(
        f"value, from {number_text(row['min'])} to {number_text(row['max'])} (dashed: quartiles; "
        "the first and the last bar hold what lies beyond)",
        fontsize=FONT_POINTS,
    )
    title = (
        f"{short_text(row['slot'])}: {row['num_values']:,} values, "
        f"mean {number_text(row['mean'])}, coverage {coverage_text(row['coverage'])}"
    )
    figure.suptitle(title, fontsize=FONT_POINTS + 2, parse_math=False)
    return figure


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
    edges: Floats = np.linspace(min(lows), max(highs), NUM_BINS + 1)
    return edges


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


def _quartiles(quantiles: Sequence[float], low: float, high: float) -> list[float]:
    """The inner quantiles, those that the histogram shows."""
    return [quantile for quantile in quantiles[1:-1] if low <= quantile <= high]
