"""A figure of each slot in each partition, as colours."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from featstore.explore.plots.frame import (
    FONT_POINTS,
    WIDTH_INCHES,
    Axes,
    Figure,
    coverage_text,
    row_figure,
    short_text,
)
from featstore.statistics.sketches import Floats

_MOST_WIDTH_INCHES = 16.0
_COLUMN_INCHES = 0.2
_NAME_INCHES = 3.2
_BAR_INCHES = 0.12  # the scale's height, and its distance, in figures of any height
_SCALE_INCHES = 0.7  # with its numbers and its label
_CHARACTER_INCHES = 0.07  # of a name
_MOST_TICKS = 40
_LUMINANCE = np.array([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R BT.601)
_MOST_COLUMNS_WITH_TEXT = 14


@dataclass(frozen=True, kw_only=True)
class ColourScale:
    """How values become colours.

    Attributes:
        low: The value of the first colour.
        high: That of the last one; values above have it, too.
        colours: The name of matplotlib's colour map.
        label: What the values are.
        text: How a value is written.
    """

    low: float
    high: float
    colours: str
    label: str
    text: Callable[[float], str]


# The scales are fixed, so that a colour means the same in all pictures.
SHARES = ColourScale(
    low=0.0,
    high=1.0,
    colours="viridis",
    label="share of rows that are not missing",
    text=coverage_text,
)
PSI = ColourScale(
    low=0.0,
    high=0.25,
    colours="Reds",
    label="population stability index against the partition before (0.1: small, 0.25: large)",
    text="{:.2f}".format,
)


def plot_heat_map(
    slots: Sequence[str],
    partitions: Sequence[str],
    values: Floats,
    scale: ColourScale,
    title: str,
    pale: NDArray[np.bool_] | None = None,
) -> "Figure":
    """Slots from top to bottom, partitions from left to right.

    Args:
        slots: The names of the rows.
        partitions: The names of the columns.
        values: float64 (num_slots, num_partitions); NaN where unknown, which is grey.
        scale: The colours.
        title: The title.
        pale: bool, as `values`: cells that have the colour of `scale.low` whatever their value is.
            None for none.
    """
    if not values.size:
        values = np.full((max(len(slots), 1), max(len(partitions), 1)), np.nan)
    wanted = _NAME_INCHES + _COLUMN_INCHES * len(partitions)
    width = min(max(wanted, WIDTH_INCHES), _MOST_WIDTH_INCHES)
    step = max(math.ceil(len(partitions) / _MOST_TICKS), 1)
    places = range(0, len(partitions), step)
    names = [short_text(partitions[place]) for place in places]
    names_height = _CHARACTER_INCHES * max(map(len, names), default=0)
    # The names are above the cells, too, if these are many.
    around = _SCALE_INCHES + 2 * names_height
    figure, [axes] = row_figure(slots, title, width=width, around=around)
    coloured = values if pale is None else np.where(pale, scale.low, values)
    image = axes.imshow(
        np.ma.masked_invalid(coloured),
        aspect="auto",
        interpolation="nearest",
        cmap=scale.colours,
        vmin=scale.low,
        vmax=scale.high,
    )
    image.set_cmap(image.get_cmap().with_extremes(bad="lightgrey"))
    axes.set_xticks(places, names, rotation=90, parse_math=False)
    if len(partitions) <= _MOST_COLUMNS_WITH_TEXT:
        _write(axes, values, image.to_rgba(coloured), scale)
    height = figure.get_figheight()
    bar = figure.colorbar(
        image,
        ax=axes,
        location="top",
        fraction=_BAR_INCHES / height,
        pad=_BAR_INCHES / height,
        aspect=0.6 * width / _BAR_INCHES,
        shrink=0.6,
    )
    bar.set_label(f"{scale.label}; grey: unknown", fontsize=FONT_POINTS)
    bar.ax.tick_params(labelsize=FONT_POINTS)
    return figure


def _write(axes: "Axes", values: Floats, colours: Floats, scale: ColourScale) -> None:
    """Writes each value into its cell, in a colour that can be read on the cell's, RGBA
    (num_slots, num_partitions, 4).
    """
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            is_dark = float(colours[row, column, :3] @ _LUMINANCE) < 0.5
            text = axes.text(
                column,
                row,
                scale.text(float(value)),
                ha="center",
                va="center",
                fontsize=FONT_POINTS - 1,
                color="white" if is_dark else "black",
            )
            text.set_in_layout(False)  # cells hold it, and thousands of texts take seconds
