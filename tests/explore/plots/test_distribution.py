"""The picture of one slot's values."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import SelectionError
from featstore.base.schema import Slot, SlotKind
from featstore.explore.plots.distribution import histogram_range, plot_distribution
from featstore.explore.profile import Profile
from featstore.explore.profiling import profile_rows
from featstore.spec.value_names import ValueNames, ValueText
from tests.explore.plots.rendered import assert_bar_ends_at, render, same_colour

ITEM, PRICE = Slot(name="item", kind=SlotKind.ID), Slot(name="price", kind=SlotKind.FLOAT)


def profile_of(items: list[int | None], prices: list[float | None] | None = None) -> Profile:
    rows = pa.table(
        {
            "item": pa.array(items, pa.int64()),
            "price": pa.array(prices or [None] * len(items), pa.float32()),
        }
    )
    return profile_rows(rows.to_batches(), [ITEM, PRICE])


def test_bars_of_top_values_are_as_long_as_their_shares() -> None:
    # 1 is there once, 2 twice, and so on to 12.
    profile = profile_of([value for value in range(1, 13) for _ in range(value)])
    figure = profile.plot_distribution("item")
    picture, [axes] = render(figure), figure.axes
    top = profile["item"]["top"]
    for row, value in enumerate(top):
        assert_bar_ends_at(picture, axes, value["share"], row)
    assert_bar_ends_at(picture, axes, 1.0 - sum(value["share"] for value in top), 10, "C1")
    assert "(2 other values)" in picture.texts


def test_texts_stand_for_signs_in_the_slots_own_order() -> None:
    names = ValueNames(
        by_slot={
            "item": {7: ValueText(text="$second$", rank=1), 9: ValueText(text="first", rank=0)}
        }
    )
    row = profile_of([7, 7, 7, 9, 4020640123456789])["item"]
    figure = plot_distribution(row, (np.zeros(0), np.zeros(0)), names)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        "first",
        "$second$",
        "402064…",
    ]
    assert {"20.0%", "60.0%"} <= set(render(figure).texts)


def test_errors_of_estimates_are_drawn_and_written() -> None:
    row = profile_of([7, 7, 7, 9])["item"]
    row["top"] = [value | {"share_error": 0.1} for value in row["top"]]
    row |= {"distinct": 5, "distinct_error": 0.02}
    figure = plot_distribution(row, (np.zeros(0), np.zeros(0)), ValueNames())
    picture, [axes] = render(figure), figure.axes
    assert "75.0% ±10.0%" in picture.texts
    assert "(about 3 other values)" in picture.texts
    assert same_colour(picture.colour(axes, 0.84, 0), "black")
    assert same_colour(picture.colour(axes, 0.87, 0), "white")


def test_a_histogram_has_the_shares_of_the_values_and_lines_at_the_quartiles() -> None:
    prices = [*np.linspace(0.0, 1.0, 3000).tolist(), *[10.0] * 1000]
    profile = profile_of([1] * 4000, list(prices))
    figure = profile.plot_distribution("price")
    picture, [axes] = render(figure), figure.axes
    heights = [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]
    assert sum(heights) == pytest.approx(1.0)
    assert heights[-1] == pytest.approx(0.25, abs=0.001)
    quartiles = profile["price"]["quantiles"][1:4]
    assert [line.get_xdata()[0] for line in axes.lines] == quartiles  # type: ignore[index]
    for quartile in quartiles:
        column = [picture.colour(axes, quartile, 0.5, dy=dy) for dy in range(40)]
        assert any(same_colour(colour, "C1") for colour in column)
    assert same_colour(picture.colour(axes, 9.9, 0.2), "C0")
    assert same_colour(picture.colour(axes, 5.0, 0.2), "white")


@pytest.mark.parametrize(
    "prices", [[3.0] * 5, [float("inf"), 1.0, 2.0, 3.0, 4.0], [float("inf")] * 5, [3.4e38, -3.4e38]]
)
def test_equal_infinite_and_huge_values_have_a_histogram(prices: list[float]) -> None:
    figure = profile_of([1] * len(prices), list(prices)).plot_distribution("price")
    render(figure)
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == pytest.approx(1.0)  # type: ignore[attr-defined]


@given(
    st.lists(st.floats(allow_nan=False, width=32), min_size=1),
    st.integers(min_value=0, max_value=4),
)
def test_a_range_is_finite_and_not_empty(values: list[float], at: int) -> None:
    ordered = sorted(values)
    low, high = histogram_range([ordered[0], ordered[-1]], np.array(values))
    assert np.isfinite([low, high]).all()
    assert low < high


@pytest.mark.parametrize("slot", ["item", "price"])
def test_a_slot_without_values_is_refused(slot: str) -> None:
    message = rf"slot '{slot}' has no values to plot: .* found a coverage of 0.0%"
    with pytest.raises(SelectionError, match=message):
        profile_of([None, None]).plot_distribution(slot)


def test_an_unknown_slot_answers_with_the_nearest() -> None:
    with pytest.raises(SelectionError, match=r"no slot 'itm' in the profile; did you mean 'item'"):
        profile_of([1]).plot_distribution("itm")
