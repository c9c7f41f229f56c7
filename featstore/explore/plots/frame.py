"""What all plots share: figures with a row for each name, high enough that every name can be read,
and short texts.

Figures are made without matplotlib's global state (pyplot), and are neither shown nor saved.
matplotlib is imported when the first one is made.
"""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from featstore.base.errors import missing_extra
from featstore.base.libraries import LazyModule

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # the two types stand in annotations alone, here and where results have plots
    Axes, Figure = Any, Any

# Imports matplotlib.
notebook_figure: Any = LazyModule("featstore.explore.plots.notebook_figure")

FONT_POINTS = 8
WIDTH_INCHES = 8.0
MOST_ROWS = 1000  # a picture of more is too high for its pixels, and for a reader
COLOUR, MARKED = "C0", "C1"
_DPI = 100
_ROW_INCHES = 0.17  # 1.5 times the height of the text
_HEAD_INCHES = 1.2
_LOW_ROWS = 40  # a figure of more rows says above them what they are
_MOST_CHARACTERS = 32


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size, in inches.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        make: type[Figure] = notebook_figure.NotebookFigure
    except ModuleNotFoundError as error:
        raise missing_extra("a plot", error) from error
    return make(figsize=(width, height), dpi=_DPI, layout="constrained")


def row_figure(
    names: Sequence[str],
    title: str,
    *,
    num_panels: int = 1,
    width: float = WIDTH_INCHES,
    around: float = 0.0,
) -> tuple["Figure", list["Axes"]]:
    """A figure with a row for each name, from top to bottom, and panels beside each other.

    The rows are at 0, 1, ... of the panels' y axes.

    Args:
        names: The names.
        title: The title.
        num_panels: The number of panels.
        width: The width of the figure, in inches.
        around: The height of what is above and below the panels besides numbers and title.
    """
    num_rows = max(len(names), 1)
    figure = new_figure(width, _HEAD_INCHES + around + _ROW_INCHES * num_rows)
    figure.suptitle(title, fontsize=FONT_POINTS + 2, parse_math=False)
    panels: list[Axes] = list(figure.subplots(1, num_panels, sharey=True, squeeze=False)[0])
    for axes in panels:
        axes.tick_params(labelsize=FONT_POINTS)
        axes.xaxis.label.set_fontsize(FONT_POINTS)
        if len(names) > _LOW_ROWS:
            axes.tick_params(axis="x", top=True, labeltop=True)
            axes.xaxis.set_label_position("top")
    # A name may hold dollar signs, which matplotlib would take for the begin of a formula.
    panels[0].set_yticks(range(len(names)), list(map(short_text, names)), parse_math=False)
    panels[0].set_ylim(num_rows - 0.5, -0.5)
    return figure, panels


def write_values(axes: "Axes", texts: Sequence[str]) -> None:
    """Writes a text for each row, to the right of the panel."""
    for row, text in enumerate(texts):
        axes.text(
            1.01, row, text, transform=axes.get_yaxis_transform(), fontsize=FONT_POINTS, va="center"
        )


def number_drawn(rows: Sequence[Any], what: str, most: int = MOST_ROWS) -> str:
    """How many rows are drawn, as text: `20 slots`, or `the first 1,000 of 4,000 slots`."""
    if len(rows) <= most:
        return f"{len(rows):,} {what}"
    return f"the first {most:,} of {len(rows):,} {what}"


def coverage_text(share: float) -> str:
    """A share of rows or values. It is 0 % or 100 % only if it is exactly none, or all."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return "<0.1%" if share < 0.001 else ">99.9%" if share > 0.999 else f"{share:.1%}"


def short_text(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A text on one line, of at most `most` characters: its middle is left out if it is longer."""
    # Control characters have no glyphs, and marks that turn the direction would turn the others.
    plain = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text)
    line = " ".join(plain.split())
    if len(line) <= most:
        return line
    head = most // 2
    return f"{line[:head]}…{line[len(line) - (most - head - 1) :]}"
