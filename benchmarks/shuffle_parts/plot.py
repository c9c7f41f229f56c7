"""The plot of docs/shuffle.md: where rows are delivered, against where they are stored."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shuffle_parts.orders import Rows

_NUM_ROWS, _NUM_COLUMNS = 4_000, 3


def draw(orders: Mapping[str, Rows], path: Path) -> None:
    """One panel for each order, a dot for each of some thousand rows."""
    num_lines = -(-len(orders) // _NUM_COLUMNS)
    figure = Figure(figsize=(9, 3 * num_lines + 0.4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(num_lines, _NUM_COLUMNS, sharex=True, sharey=True, squeeze=False)
    for panel, (name, order) in zip(panels.flat, orders.items(), strict=False):
        delivered = np.linspace(0, len(order) - 1, _NUM_ROWS).astype(np.int64)
        panel.plot(
            delivered / len(order), order[delivered] / len(order), ",", color="black", alpha=0.8
        )
        panel.set_title(name, fontsize=9)
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1)
        panel.set_xticks([0, 0.5, 1])
        panel.set_yticks([0, 0.5, 1])
    for panel in panels.flat[len(orders) :]:
        panel.set_visible(False)
    figure.supxlabel("place at which a row is delivered, as a share of the epoch", fontsize=9)
    figure.supylabel("place at which it is stored", fontsize=9)
    figure.savefig(path, metadata={"Software": None})
