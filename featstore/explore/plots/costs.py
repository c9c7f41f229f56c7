"""What reading each slot costs."""

from typing import TYPE_CHECKING

import pyarrow as pa

from featstore.explore.plots.frame import COLOUR, drawn, number_drawn, row_figure, write_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_costs(table: pa.Table) -> "Figure":
    """Two bars for each slot, its stored bytes and its decoding time a row. Those that take most
    time come first.

    Args:
        table: `ReadingCosts.table`.
    """
    rows = sorted(table.to_pylist(), key=lambda row: -(row["decode_ns_per_row"] or 0.0))
    shown = drawn(rows)
    figure, [left, right] = row_figure(
        [row["slot"] for row in shown],
        f"What reading costs: {number_drawn(rows, 'slots')}",
        num_panels=2,
    )
    _bars(left, [row["stored_bytes_per_row"] for row in shown], "stored bytes a row")
    _bars(right, [row["decode_ns_per_row"] for row in shown], "decoding, CPU ns a row")
    return figure


def _bars(axes: "Axes", values: list[float | None], label: str) -> None:
    axes.barh(range(len(values)), [value or 0.0 for value in values], color=COLOUR)
    axes.set_xlim(0.0, None)
    axes.set_xlabel(label)
    write_values(axes, ["unknown" if value is None else f"{value:.3g}" for value in values])
