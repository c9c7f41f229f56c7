"""Plots show the figures of the profile."""

import io

import pyarrow as pa
import pytest

from featstore.errors import SelectionError
from featstore.explore.plots import plot_coverage, plot_label_rate
from featstore.explore.profile import Profile
from featstore.explore.row_profile import profile_rows
from featstore.schema import Slot, SlotKind


@pytest.fixture
def two_slots() -> Profile:
    table = pa.table(
        {
            "item": [5, 5, 5, 8, None],
            "price": [1.0, None, None, None, None],
            "click": [1, 0, 0, 1, 1],
        }
    )
    slots = [Slot(name="item", kind=SlotKind.ID), Slot(name="price", kind=SlotKind.FLOAT)]
    return profile_rows(table.to_batches(), slots, ["click"])


def test_coverage_has_a_bar_for_each_slot_in_order(two_slots: Profile) -> None:
    axes = plot_coverage(two_slots).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.8, 0.2]  # type: ignore[attr-defined]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["item", "price"]


def test_label_rate_has_a_bar_for_each_top_value_and_a_line_for_all_rows(
    two_slots: Profile,
) -> None:
    figure = plot_label_rate(two_slots, "item")
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([1 / 3, 1.0])  # type: ignore[attr-defined]
    assert axes.lines[-1].get_ydata()[0] == pytest.approx(0.6)  # type: ignore[index]
    figure.savefig(io.BytesIO(), format="png")


def test_a_slot_without_top_values_is_refused(two_slots: Profile) -> None:
    with pytest.raises(SelectionError, match="slot 'price' has no top values to plot"):
        plot_label_rate(two_slots, "price")


def test_an_unknown_label_answers_with_the_known_ones(two_slots: Profile) -> None:
    with pytest.raises(
        SelectionError,
        match=r"no label 'clik' in the profile; it has \['click'\]; did you mean 'click'",
    ):
        plot_label_rate(two_slots, "item", "clik")
