"""Pictures of a label's rate by value, bin and partition."""

from dataclasses import replace

import pyarrow as pa
import pytest

from featstore.base.errors import InputError, SelectionError
from featstore.base.schema import Slot, SlotKind
from featstore.explore.label_profile import LabelProfile, label_rows
from featstore.spec.value_names import ValueNames, ValueText
from tests.explore.plots.rendered import Picture, render, same_colour

SLOTS = (Slot(name="item", kind=SlotKind.ID), Slot(name="price", kind=SlotKind.FLOAT))


def profile_of(num_rows: int = 1000, num_items: int = 3) -> LabelProfile:
    """Item 0 is never clicked by one in three rows, and so on; every fifth row lacks it."""
    rows = pa.table(
        {
            "item": [None if i % 5 == 4 else 10 + i % num_items for i in range(num_rows)],
            "price": pa.array([float(i % 100) for i in range(num_rows)], pa.float32()),
            "click": [int(i % 100 > 60 or i % 7 == 0) for i in range(num_rows)],
            "dt": [f"2026-11-{1 + i % 4:02d}" for i in range(num_rows)],
        }
    )
    return label_rows(rows.to_batches(), SLOTS, "click", ["dt"])


def assert_interval(picture: Picture, axes: object, row: dict[str, float], place: int) -> None:
    """The line of an interval ends where the interval does."""
    for end, outwards in (("rate_low", -1), ("rate_high", 1)):
        assert same_colour(picture.colour(axes, row[end], place, dx=-3 * outwards), "C0")  # type: ignore[arg-type]
        assert not same_colour(picture.colour(axes, row[end], place, dx=5 * outwards), "C0")  # type: ignore[arg-type]
    assert same_colour(picture.colour(axes, row["rate"], place, dy=2), "C0")  # type: ignore[arg-type]


def test_dots_and_lines_are_at_the_rates_and_intervals_of_the_table() -> None:
    profile = profile_of()
    figure = profile.plot_rates("item")
    picture, [axes] = render(figure), figure.axes
    cells = profile["item"]["cells"]
    assert [cell["cell"] for cell in cells] == ["value"] * 3 + ["missing"]
    for place, cell in enumerate(cells):
        assert_interval(picture, axes, cell, place)
        assert f"{cell['rate']:.3f} ({cell['num_values'] / 1000:.1%})" in picture.texts
    assert {"10", "11", "12", "(missing)", "click by item"} <= set(picture.texts)
    assert profile.rate is not None
    dashes = [picture.colour(axes, profile.rate, 0.5, dy=dy) for dy in range(-6, 7)]
    assert any(same_colour(colour, "C1") for colour in dashes)


def test_bins_of_floats_are_drawn_from_the_lowest_on() -> None:
    profile = profile_of()
    figure = profile.plot_rates("price")
    picture, [axes] = render(figure), figure.axes
    texts = [text.get_text() for text in axes.get_yticklabels()]
    assert texts[0] == "0 to 4"
    assert texts[-1] == "95 to 99"
    assert_interval(picture, axes, profile["price"]["cells"][3], 3)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["9", "-1", "10"], ["-1", "9", "10"]),
        (["9", "x", "10"], None),
        (["9", "1e3", "10"], None),
    ],
)
def test_ids_that_are_all_numbers_are_in_the_order_of_the_numbers(
    texts: list[str], expected: list[str] | None
) -> None:
    known = {10 + i: ValueText(text=text) for i, text in enumerate(texts)}
    profile = replace(profile_of(), names=ValueNames(by_slot={"item": known}))
    labels = [text.get_text() for text in profile.plot_rates("item").axes[0].get_yticklabels()]
    values = [cell["value"] for cell in profile["item"]["cells"] if cell["cell"] == "value"]
    assert labels[:-1] == (expected or [known[value].text for value in values])


@pytest.mark.parametrize(("num_items", "in_order"), [(60, True), (90, False)])
def test_up_to_50_numbers_are_in_their_own_order_and_more_in_that_of_their_counts(
    num_items: int, in_order: bool
) -> None:
    profile = profile_of(num_rows=1_000, num_items=num_items)
    known = {10 + i: ValueText(text=str(num_items - i)) for i in range(num_items)}
    profile = replace(profile, names=ValueNames(by_slot={"item": known}))
    labels = [text.get_text() for text in profile.plot_rates("item").axes[0].get_yticklabels()]
    values = [cell["value"] for cell in profile["item"]["cells"] if cell["cell"] == "value"]
    assert (len(values) <= 50) == in_order
    texts = [known[value].text for value in values]
    assert labels[:-1] == (sorted(texts, key=int) if in_order else texts[:40])


def test_texts_stand_for_signs_in_the_slots_own_order() -> None:
    texts = {10: ValueText(text="c", rank=2), 11: ValueText(text="a", rank=0)}
    profile = replace(profile_of(), names=ValueNames(by_slot={"item": texts}))
    figure = profile.plot_rates("item")
    render(figure)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["a", "c", "12", "(missing)"]


def test_the_most_frequent_of_many_values_are_drawn_and_the_title_says_so() -> None:
    profile = profile_of(num_rows=5000, num_items=300)
    figure = profile.plot_rates("item")
    picture = render(figure)
    assert "click by item: the first 40 of 100 values counted" in picture.texts
    assert len(figure.axes[0].get_yticks()) == 42
    assert {"(all other values)", "(missing)"} <= set(picture.texts)


def test_a_share_is_none_only_if_there_are_no_values() -> None:
    rows = pa.table({"item": [1] * 4999 + [2], "click": [0, 1] * 2500})
    profile = label_rows(rows.to_batches(), SLOTS[:1], "click")
    texts = render(profile.plot_rates("item")).texts
    assert {"0.500 (>99.9%)", "1.000 (<0.1%)"} <= set(texts)


def test_rates_of_partitions_are_those_of_the_table() -> None:
    profile = profile_of()
    figure = profile.plot_partitions()
    picture, [axes] = render(figure), figure.axes
    for place, row in enumerate(profile.partitions.to_pylist()):
        assert_interval(picture, axes, row, place)
        assert {row["partition"], f"{row['rate']:.3f} (250)"} <= set(picture.texts)


def test_a_partition_without_known_labels_is_unknown() -> None:
    rows = pa.table({"click": pa.array([1, 0, None], pa.int64()), "dt": ["a", "a", "b"]})
    profile = label_rows(rows.to_batches(), [], "click", ["dt"])
    assert "unknown (0)" in render(profile.plot_partitions()).texts


def test_a_table_without_partitions_is_refused() -> None:
    rows = pa.table({"click": [1, 0]})
    with pytest.raises(InputError, match="expected a table with partitions, found one without"):
        label_rows(rows.to_batches(), [], "click").plot_partitions()


def test_a_profile_without_known_labels_is_refused() -> None:
    with pytest.raises(SelectionError, match="slot 'item' has no cells to plot: expected rows"):
        profile_of(num_rows=0).plot_rates("item")
