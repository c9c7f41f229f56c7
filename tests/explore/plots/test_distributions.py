"""The picture of all slots' values."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.schema import Slot, SlotKind
from featstore.explore.plots.distribution import plot_distributions, scaled
from featstore.explore.profiling import profile_rows
from featstore.spec.value_names import ValueNames, ValueText
from tests.explore.plots.rendered import assert_bar_ends_at, render, same_colour


def test_shares_of_top_values_and_boxes_of_floats_are_drawn_where_the_table_says() -> None:
    rows = pa.table(
        {
            "item": [1] * 60 + [2] * 30 + [*range(100, 110)],
            "price": pa.array(np.arange(100.0) ** 2, pa.float32()),
            "none": pa.array([None] * 100, pa.int64()),
        }
    )
    slots = [
        Slot(name="item", kind=SlotKind.ID),
        Slot(name="price", kind=SlotKind.FLOAT),
        Slot(name="none", kind=SlotKind.ID),
    ]
    profile = profile_rows(rows.to_batches(), slots)
    names = ValueNames(by_slot={"item": {1: ValueText(text="the $first$")}})
    figure = plot_distributions(profile.table, names)
    picture, [axes] = render(figure), figure.axes
    assert "the $first$ 60.0%" in picture.texts
    assert "no values" in picture.texts
    assert same_colour(picture.colour(axes, 0.59, 0), "C0")
    assert not same_colour(picture.colour(axes, 0.61, 0), "C0")
    top = profile["item"]["top"]
    assert_ends = sum(value["share"] for value in top)
    assert same_colour(picture.colour(axes, assert_ends, 0, dx=3), "white")
    low, quarter, middle, three, high = profile["price"]["quantiles"]
    assert_bar_ends_at(picture, axes, (three - low) / (high - low), 1, "C1")
    assert same_colour(picture.colour(axes, (quarter - low) / (high - low), 1, dx=-3), "white")
    assert same_colour(picture.colour(axes, (middle - low) / (high - low), 1), "black")


def test_floats_that_are_mostly_equal_are_marked_where_they_are() -> None:
    columns = {
        "zeros": [0.0] * 95 + [9.0] * 5,
        "nines": [0.0] * 5 + [9.0] * 95,
        "constant": [7.0] * 100,
    }
    slots = [Slot(name=name, kind=SlotKind.FLOAT) for name in columns]
    rows = pa.table({name: pa.array(values, pa.float32()) for name, values in columns.items()})
    figure = profile_rows(rows.to_batches(), slots).plot_distributions()
    picture, [axes] = render(figure), figure.axes
    assert same_colour(picture.colour(axes, 0.0, 0, dx=3), "C1")
    assert same_colour(picture.colour(axes, 1.0, 1, dx=-3), "C1")
    assert {"0 to 9", "7"} <= set(picture.texts)


def test_two_hundred_slots_are_readable() -> None:
    random = np.random.default_rng(0)
    columns = {f"user_category_of_clicks_{i}": random.integers(0, 5 + i, 50) for i in range(200)}
    slots = [Slot(name=name, kind=SlotKind.ID) for name in columns]
    profile = profile_rows(pa.table(columns).to_batches(), slots)
    assert {slot.name for slot in slots} <= set(render(profile.plot_distributions()).texts)


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=2).map(sorted))
def test_scaled_quantiles_go_from_none_to_all(quantiles: list[float]) -> None:
    found = scaled(quantiles)
    if found is not None:
        assert found[0] == 0.0
        assert found[-1] == 1.0
        assert found == sorted(found)


@pytest.mark.parametrize("quantiles", [[1.0, 1.0], [1.0, float("inf")], [-float("inf"), 1.0]])
def test_equal_and_infinite_quantiles_have_no_box(quantiles: list[float]) -> None:
    assert scaled(quantiles) is None
