"""In how many rows each slot is not missing."""

from typing import TYPE_CHECKING

import pyarrow as pa

from featstore.explore.plots.frame import (
    COLOUR,
    MARKED,
    coverage_text,
    drawn,
    number_drawn,
    row_figure,
    write_values,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_coverage(table: pa.Table, num_rows: int) -> "Figure":
    """A bar for the coverage of each slot, in the order of `Profile.table`."""
    rows = table.select(["slot", "coverage"]).to_pylist()
    shown = drawn(rows)
    title = f"Coverage of {number_drawn(rows, 'slots')} over {num_rows:,} rows"
    figure, [axes] = row_figure([row["slot"] for row in shown], title)
    coverage = [row["coverage"] for row in shown]
    colours = [COLOUR if share == 1.0 else MARKED for share in coverage]
    axes.barh(range(len(shown)), coverage, color=colours)
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of rows that are not missing (orange: not all)")
    write_values(axes, list(map(coverage_text, coverage)))
    return figure
