"""Pictures of a figure by slot and partition."""

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex

from featstore.explore.plots.heat_map import PSI, SHARES, ColourScale, plot_heat_map
from tests.explore.plots.rendered import render, same_colour


def colour_of(scale: ColourScale, value: float) -> str:
    share = (value - scale.low) / (scale.high - scale.low)
    return to_hex(colormaps[scale.colours](min(share, 1.0)))


@pytest.mark.parametrize("scale", [SHARES, PSI])
def test_a_cell_has_the_colour_of_its_value_and_the_value_as_text(scale: ColourScale) -> None:
    values = np.array([[0.0, 0.1, 0.2], [1.0, float("nan"), 0.05]])
    figure = plot_heat_map(["one", "two"], ["a", "b", "c"], values, scale, "title")
    picture, axes = render(figure), figure.axes[0]
    for (row, column), value in np.ndenumerate(values):
        expected = "lightgrey" if np.isnan(value) else colour_of(scale, value)
        assert same_colour(picture.colour(axes, column - 0.4, row), expected)
    assert {scale.text(0.1), scale.text(1.0), scale.text(0.05)} <= set(picture.texts)
    assert "nan" not in picture.texts


@pytest.mark.parametrize("value", [0.0, 0.05, 0.13, 0.2, 0.25])
@pytest.mark.parametrize("scale", [SHARES, PSI])
def test_the_text_of_a_cell_can_be_read_on_its_colour(scale: ColourScale, value: float) -> None:
    value *= scale.high / 0.25
    figure = plot_heat_map(["one"], ["a"], np.array([[value]]), scale, "title")
    picture, axes = render(figure), figure.axes[0]
    background = np.array(picture.colour(axes, 0.4, 0))
    [box] = [
        box
        for text, box in zip(picture.texts, picture.boxes, strict=True)
        if text == scale.text(value) and abs(axes.transData.transform((0, 0))[1] - box[1]) < 20
    ]
    height = picture.pixels.shape[0]
    left, bottom, right, top = box.astype(int)
    ink = picture.pixels[height - top : height - bottom, left:right].reshape(-1, 3)
    assert np.abs(ink - background).mean(axis=1).max() > 0.4


def test_two_hundred_slots_and_ninety_days_are_readable() -> None:
    slots = [f"user_category_of_clicks_{i}" for i in range(200)]
    days = [f"dt=2026-{1 + i // 30:02d}-{1 + i % 30:02d}" for i in range(90)]
    values = np.random.default_rng(0).random((200, 90))
    picture = render(plot_heat_map(slots, days, values, SHARES, "title"))
    assert set(slots) <= set(picture.texts)
    # Every third day has a name, below and above.
    assert [picture.texts.count(day) for day in days[:4]] == [2, 0, 0, 2]


def test_no_partitions_are_an_empty_picture() -> None:
    assert "title" in render(plot_heat_map([], [], np.zeros((0, 0)), PSI, "title")).texts


@pytest.mark.parametrize("num_slots", [1, 40, 41])
@pytest.mark.parametrize("num_partitions", [1, 14, 15, 41])
def test_long_names_of_any_number_of_partitions_leave_room_for_the_cells(
    num_slots: int, num_partitions: int
) -> None:
    days = [f"dt=2026-11-01, hour={i:02d}, country=se" for i in range(num_partitions)]
    slots = [f"user_category_of_clicks_by_hour_{i}" for i in range(num_slots)]
    figure = plot_heat_map(slots, days, np.ones((num_slots, num_partitions)), SHARES, "title")
    picture = render(figure)
    box = figure.axes[0].get_window_extent()
    assert box.height / num_slots >= 15.0
    assert len({text for text in picture.texts if text.startswith("dt=")}) >= num_partitions // 2
