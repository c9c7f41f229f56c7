"""How the values of one slot are distributed before and after, in one picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from featstore.base.errors import SelectionError
from featstore.base.schema import SlotKind
from featstore.base.table_result import share_text
from featstore.explore.plots.distribution import bin_shares, common_edges
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
from featstore.statistics.slot_change import ValueShares, value_shares
from featstore.statistics.summary import SlotSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT_INCHES = 3.6


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
    return _bars(slot, before, after, value_shares(before, after, num_top), names)


def _bars(
    slot: str,
    before: SlotSummary,
    after: SlotSummary,
    shares: Sequence[ValueShares],
    names: ValueNames,
) -> "Figure":
    by_value = {one.value: one for one in shares}
    shown = [by_value[value] for value in names.in_order(slot, by_value)]
    texts = [names.text(slot, one.value) for one in shown]
    figure, [axes] = row_figure(texts, _title(slot, before, after))
    places = range(len(shown))
    axes.barh([i - 0.2 for i in places], [one.after or 0.0 for one in shown], 0.4, color=COLOUR)
    axes.barh([i + 0.2 for i in places], [one.before or 0.0 for one in shown], 0.4, color=MARKED)
    axes.set_xlim(0.0, None)
    axes.set_xlabel("share of values (blue: after, orange: before)")
    write_values(axes, [change_text(one) for one in shown])
    return figure


def _histograms(slot: str, before: SlotSummary, after: SlotSummary) -> "Figure":
    edges = common_edges([side for side in (before, after) if side.quantiles])
    figure = new_figure(WIDTH_INCHES, _HEIGHT_INCHES)
    axes = figure.add_subplot()
    if after.quantiles:
        axes.stairs(bin_shares(*after.points, edges), edges, fill=True, color=COLOUR)
    if before.quantiles:
        axes.stairs(bin_shares(*before.points, edges), edges, color=MARKED, linewidth=1.5)
    axes.set_ylim(0.0, None)
    axes.tick_params(labelsize=FONT_POINTS)
    axes.set_ylabel("share of values", fontsize=FONT_POINTS)
    axes.set_xlabel(
        "value (blue: after, orange line: before; the first and the last bar hold what lies "
        "beyond)",
        fontsize=FONT_POINTS,
    )
    figure.suptitle(_title(slot, before, after), fontsize=FONT_POINTS + 2, parse_math=False)
    return figure


def _title(slot: str, before: SlotSummary, after: SlotSummary) -> str:
    numbers = " → ".join(f"{side.num_values:,}" for side in (before, after))
    coverages = " → ".join(coverage_text(side.coverage) for side in (before, after))
    return f"{short_text(slot)}: {numbers} values, coverage {coverages}"


def change_text(found: ValueShares) -> str:
    """The shares of an id before and after. `rare` is one that is too rare to be listed, or absent;
    `none` one that is surely absent.
    """
    before = side_text(found.before, found.before_error)
    return f"{before} → {side_text(found.after, found.after_error)}"


def side_text(share: float | None, error: float) -> str:
    """The share of an id on one side."""
    return "rare" if share is None else "none" if share == 0.0 else share_text(share, error)
