"""The picture of one slot's values before and after."""

from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import SelectionError
from featstore.base.schema import Slot, SlotKind
from featstore.explore.profile import Profile
from featstore.explore.profiling import profile_rows
from tests.explore.plots.rendered import assert_bar_ends_at, render, same_colour

ITEM = Slot(name="item", kind=SlotKind.ID, number=1)
PRICE = Slot(name="price", kind=SlotKind.FLOAT, number=2)


def profile_of(columns: dict[str, list[Any]], *slots: Slot) -> Profile:
    types: dict[str, pa.DataType] = {"item": pa.int64(), "price": pa.float32()}
    rows = pa.table({name: pa.array(rows, types[name]) for name, rows in columns.items()})
    return profile_rows(rows.to_batches(), slots)


def test_each_id_of_either_side_has_a_bar_for_both() -> None:
    before = profile_of({"item": [5, 5, 5, 7]}, ITEM)
    after = profile_of({"item": [5, 5, 9, 9]}, ITEM)
    figure = before.compare(after).plot_distribution("item")
    picture, [axes] = render(figure), figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["5", "9", "7"]
    assert {"75.0% → 50.0%", "none → 50.0%", "25.0% → none"} <= set(picture.texts)
    for row, (now, old) in enumerate([(0.5, 0.75), (0.5, 0.0), (0.0, 0.25)]):
        if now:
            assert_bar_ends_at(picture, axes, now, row + 0.2, "C0")
        if old:
            assert_bar_ends_at(picture, axes, old, row - 0.2, "C1")


def test_histograms_of_both_sides_share_their_bins() -> None:
    before = profile_of({"price": [float(i) for i in range(100)]}, PRICE)
    after = profile_of({"price": [float(i + 100) for i in range(100)]}, PRICE)
    figure = before.compare(after).plot_distribution("price")
    picture, [axes] = render(figure), figure.axes
    heights = axes.get_ylim()[1]
    assert axes.get_xlim()[0] < 1.0 < 198.0 < axes.get_xlim()[1]
    assert same_colour(picture.colour(axes, 150.0, heights * 0.2), "C0")
    assert same_colour(picture.colour(axes, 50.0, heights * 0.2), "white")


def test_a_side_without_values_is_drawn_as_nothing() -> None:
    some, none = (profile_of({"price": prices}, PRICE) for prices in ([1.0, 2.0], [None, None]))
    render(some.compare(none).plot_distribution("price"))
    render(none.compare(some).plot_distribution("price"))
    message = "slot 'price' has no values to plot: expected some on one side, found none before"
    with pytest.raises(SelectionError, match=message):
        none.compare(none).plot_distribution("price")


def test_a_slot_of_one_side_and_an_unknown_one_are_refused() -> None:
    before = profile_of({"item": [5]}, ITEM)
    after = profile_of({"price": [5.0]}, PRICE)
    found = before.compare(after)
    with pytest.raises(SelectionError, match="'price': expected it on both sides, found none befo"):
        found.plot_distribution("price")
    with pytest.raises(SelectionError, match="'item': expected it on both sides, found none after"):
        found.plot_distribution("item")
    with pytest.raises(SelectionError, match="no slot 'prise' in the comparison; did you mean 'pr"):
        found.plot_distribution("prise")
