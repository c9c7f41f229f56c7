"""Looks at rendered pictures of plots."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

LEAST_TEXT_PX = 9


class _Recorder(RendererAgg):  # type: ignore[misc]
    """Draws, and notes each text that is really drawn: its size and its box, in pixels."""

    def __init__(self, width: float, height: float, dpi: float) -> None:
        super().__init__(width, height, dpi)
        self.drawn: list[tuple[str, float, Any]] = []

    def draw_text(self, *args: Any, **kwargs: Any) -> None:
        super().draw_text(*args, **kwargs)
        _, x, from_top, line, font, _ = args
        size_px = self.points_to_pixels(font.get_size_in_points())
        text = kwargs.get("mtext")
        if text is not None:
            self.drawn.append((text.get_text(), size_px, text.get_window_extent(self).extents))
            return
        # A text of several lines is drawn line by line, without the object.
        width, height, descent = self.get_text_width_height_descent(line, font, False)
        base = self.height - from_top
        box = (x, base - descent, x + width, base - descent + height)
        self.drawn.append((line, size_px, box))


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as pixels.

    Attributes:
        pixels: float64 (height, width, 3), from 0 to 1, the uppermost row first.
        texts: The texts that were drawn.
        sizes_px: The sizes of their fonts.
        boxes: Their boxes in pixels from the lower left corner: float64 (num_texts, 4), left,
            bottom, right and top.
    """

    pixels: NDArray[np.float64] = field(repr=False)
    texts: Sequence[str]
    sizes_px: Sequence[float] = field(repr=False)
    boxes: NDArray[np.float64] = field(repr=False)

    def colour(self, axes: Axes, x: float, y: float, dx: int = 0, dy: int = 0) -> Any:
        """The colour of the pixel at a point of the data, or so many pixels beside it."""
        across, up = axes.transData.transform((x, y))
        row = self.pixels.shape[0] - 1 - round(up) + dy
        return tuple(self.pixels[row, round(across) + dx])


def render(figure: Figure) -> Picture:
    """Draws a figure, which must be readable: every text is large enough and within the picture,
    and no two texts overlap.
    """
    width, height = figure.get_size_inches() * figure.dpi
    renderer = _Recorder(width, height, figure.dpi)
    figure.draw(renderer)
    texts, sizes_px, boxes = zip(*renderer.drawn, strict=True)
    picture = Picture(
        pixels=np.asarray(renderer.buffer_rgba())[:, :, :3] / 255.0,
        texts=texts,
        sizes_px=sizes_px,
        boxes=np.array(boxes, np.float64),
    )
    _assert_readable(picture)
    return picture


def same_colour(found: Any, expected: str) -> bool:
    """Whether a colour is one of matplotlib's names, but for rounding."""
    return bool(np.allclose(found, to_rgb(expected), atol=0.02))


def assert_bar_ends_at(
    picture: Picture, axes: Axes, value: float, row: float, colour: str = "C0"
) -> None:
    """A horizontal bar is drawn to a value, and not beyond it."""
    assert same_colour(picture.colour(axes, value, row, dx=-3), colour)
    assert same_colour(picture.colour(axes, value, row, dx=3), "white")


def table_of(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A result's table, with null where a row says nothing."""
    return pa.Table.from_pylist(list(rows), schema)


def _assert_readable(picture: Picture) -> None:
    texts = np.array(picture.texts, object)
    left, bottom, right, top = picture.boxes.T
    height, width = picture.pixels.shape[:2]
    assert min(picture.sizes_px) >= LEAST_TEXT_PX
    outside = (left < 0) | (bottom < 0) | (right > width) | (top > height)
    assert not texts[outside].tolist()
    # A pixel less on each side: boxes include the space between letters.
    overlap = (
        (left[:, None] + 1 < right[None] - 1)
        & (left[None] + 1 < right[:, None] - 1)
        & (bottom[:, None] + 1 < top[None] - 1)
        & (bottom[None] + 1 < top[:, None] - 1)
    )
    pairs = np.argwhere(np.triu(overlap, 1))
    assert not texts[pairs].tolist()
    for text, (x0, y0, x1, y1) in zip(picture.texts, picture.boxes, strict=True):
        ink = picture.pixels[int(height - y1) : int(height - y0) + 1, int(x0) : int(x1) + 1]
        assert np.ptp(ink) > 0.3, f"no ink at {text!r}"
