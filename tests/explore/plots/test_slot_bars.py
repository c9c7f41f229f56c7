"""Pictures with a bar for each slot."""

from typing import Any

import pyarrow as pa
import pytest

from featstore.base.schema import Slot, SlotKind
from featstore.explore import comparison, label_profile, reading_costs
from featstore.explore.comparison import Comparison, ProfiledRows
from featstore.explore.label_profile import LabelProfile
from featstore.explore.plots.frame import MOST_ROWS
from featstore.explore.profile import Profile
from featstore.explore.profiling import profile_rows
from featstore.explore.reading_costs import ReadingCosts
from tests.explore.plots.rendered import (
    assert_bar_ends_at,
    render,
    same_colour,
    table_of,
)


def label_profile_of(areas: dict[str, float | None], error: float | None = None) -> LabelProfile:
    rows = [
        {"slot": slot, "auc": area, "auc_standard_error": error} for slot, area in areas.items()
    ]
    return LabelProfile(
        label="click",
        num_rows=10,
        num_known=10,
        num_positive=5,
        table=table_of(label_profile.SCHEMA, rows),
        cells=table_of(label_profile.CELLS, []),
        partitions=table_of(label_profile.PARTITIONS, []),
    )


def comparison_of(rows: list[dict[str, Any]]) -> Comparison:
    side = ProfiledRows(num_rows=10, label_rates={}, source="rows")
    return Comparison(before=side, after=side, table=table_of(comparison.SCHEMA, rows))


def test_slots_are_ranked_by_their_areas_and_bars_end_there() -> None:
    areas = {"weak": 0.55, "unknown_one": None, "strong": 0.9, "worse": 0.45}
    figure = label_profile_of(areas).plot_auc()
    picture, [axes] = render(figure), figure.axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["strong", "weak", "worse", "unknown_one"]
    assert_bar_ends_at(picture, axes, 0.9, 0)
    assert_bar_ends_at(picture, axes, 0.55, 1)
    # The bar of an area below 0.5 goes to the left.
    assert same_colour(picture.colour(axes, 0.45, 2, dx=3), "C0")
    assert same_colour(picture.colour(axes, 0.45, 2, dx=-3), "white")
    assert {"0.900", "0.550", "0.450", "-"} <= set(picture.texts)
    assert "What 4 slots say of click, each alone" in picture.texts


def test_areas_near_a_half_are_not_drawn_as_if_they_were_large() -> None:
    figure = label_profile_of({"one": 0.513, "two": 0.506}).plot_auc()
    picture, [axes] = render(figure), figure.axes
    assert axes.get_xlim() == (0.5, 0.6)
    assert_bar_ends_at(picture, axes, 0.513, 0)


def test_a_line_is_an_interval_of_95_percent() -> None:
    figure = label_profile_of({"one": 0.7}, error=0.05).plot_auc()
    picture, [axes] = render(figure), figure.axes
    assert "0.700 ±0.098" in picture.texts
    for end, away in ((0.7 - 1.96 * 0.05, 3), (0.7 + 1.96 * 0.05, -3)):
        assert same_colour(picture.colour(axes, end, 0, dx=away), "black")
        assert not same_colour(picture.colour(axes, end, 0, dx=-away), "black")


@pytest.mark.parametrize("num_slots", [0, 1, 200])
def test_any_number_of_slots_is_readable(num_slots: int) -> None:
    names = [f"user_category_of_clicks_{i}" for i in range(num_slots)]
    areas: dict[str, float | None] = {name: 0.5 + i / 1000 for i, name in enumerate(names)}
    assert set(names) <= set(render(label_profile_of(areas).plot_auc()).texts)


def test_the_first_thousand_of_more_slots_are_drawn() -> None:
    profile = label_profile_of({f"slot_{i}": 0.5 + i / 10_000 for i in range(1001)})
    [axes] = profile.plot_auc().axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert (len(names), names[0], names[-1]) == (1000, "slot_1000", "slot_1")


def test_slots_are_ranked_by_their_change_with_what_chance_may_have_made() -> None:
    rows: list[dict[str, Any]] = [
        {"slot": "calm", "psi": 0.02, "psi_error": 0.015},
        {"slot": "gone", "psi": None},
        {"slot": "moved", "psi": 0.4, "psi_error": 0.15, "psi_method": "at least"},
    ]
    figure = comparison_of(rows).plot_drift()
    picture, [axes] = render(figure), figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["moved", "calm", "gone"]
    assert_bar_ends_at(picture, axes, 0.4, 0)
    assert_bar_ends_at(picture, axes, 0.02, 1)
    assert {"≥ 0.400", "0.020", "unknown"} <= set(picture.texts)
    assert same_colour(picture.colour(axes, 0.15, 0), "C1")


def test_what_chance_may_have_made_is_marked_at_the_end_of_the_axis_if_it_is_beyond() -> None:
    figure = comparison_of([{"slot": "rare", "psi": 0.1, "psi_error": 7.0}]).plot_drift()
    picture, [axes] = render(figure), figure.axes
    assert axes.get_xlim() == (0.0, 0.3)
    assert same_colour(picture.colour(axes, 0.3, 0), "C1")
    assert "at the end: that or more" in axes.get_xlabel()


def test_one_slot_that_changed_completely_does_not_hide_the_others() -> None:
    rows = [{"slot": "other", "psi": 9.5}, {"slot": "small", "psi": 0.2}]
    figure = comparison_of(rows).plot_drift()
    picture, [axes] = render(figure), figure.axes
    assert axes.get_xlim() == (0.0, 1.0)
    assert_bar_ends_at(picture, axes, 0.2, 1)
    assert "9.500" in picture.texts
    assert "more than 1 is not drawn" in axes.get_xlabel()


def test_slots_that_take_most_time_come_first_and_bars_are_as_long_as_the_figures() -> None:
    rows = [
        {"slot": "small", "stored_bytes_per_row": 0.5, "decode_ns_per_row": 1.25},
        {"slot": "absent", "stored_bytes_per_row": 0.0, "decode_ns_per_row": None},
        {"slot": "tags", "stored_bytes_per_row": 12.0, "decode_ns_per_row": 40.0},
    ]
    figure = ReadingCosts(
        num_rows=10, num_decoded_rows=10, table=table_of(reading_costs.SCHEMA, rows)
    ).plot_costs()
    picture, [left, right] = render(figure), figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["tags", "small", "absent"]
    for row, (num_bytes, ns) in enumerate([(12.0, 40.0), (0.5, 1.25)]):
        assert_bar_ends_at(picture, left, num_bytes, row)
        assert_bar_ends_at(picture, right, ns, row)
    assert {"12", "40", "0.5", "1.25", "0", "unknown"} <= set(picture.texts)


def test_two_hundred_slots_are_readable() -> None:
    names = [f"user_category_of_clicks_{i}" for i in range(200)]
    rows = [
        {"slot": name, "stored_bytes_per_row": i / 7, "decode_ns_per_row": i * 1.3}
        for i, name in enumerate(names)
    ]
    costs = ReadingCosts(
        num_rows=10, num_decoded_rows=10, table=table_of(reading_costs.SCHEMA, rows)
    )
    assert set(names) <= set(render(costs.plot_costs()).texts)


def test_no_more_slots_are_drawn_than_a_picture_holds() -> None:
    profile = label_profile_of({f"slot_{i}": 0.6 for i in range(MOST_ROWS + 1)})
    assert len(profile.plot_auc().axes[0].get_yticks()) == MOST_ROWS


@pytest.fixture
def three_slots() -> Profile:
    table = pa.table(
        {
            "item": [5, 5, 5, 8, None],
            "price": [1.0, None, None, None, None],
            "user": [1, 2, 3, 4, 5],
        }
    )
    slots = [
        Slot(name="item", kind=SlotKind.ID),
        Slot(name="price", kind=SlotKind.FLOAT),
        Slot(name="user", kind=SlotKind.ID),
    ]
    return profile_rows(table.to_batches(), slots)


def test_a_bar_is_as_long_as_the_share_of_rows_with_a_value(three_slots: Profile) -> None:
    figure = three_slots.plot_coverage()
    picture, [axes] = render(figure), figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["item", "price", "user"]
    shares = three_slots.table["coverage"].to_pylist()
    assert shares == [0.8, 0.2, 1.0]
    for row, share in enumerate(shares[:2]):
        assert_bar_ends_at(picture, axes, share, row, "C1")
    assert {"80.0%", "20.0%", "100%", "Coverage of 3 slots over 5 rows"} <= set(picture.texts)


def test_a_profile_without_rows_has_a_picture() -> None:
    profile = profile_rows([], [Slot(name="item", kind=SlotKind.ID)])
    assert "0%" in render(profile.plot_coverage()).texts


def test_the_axis_of_coverages_begins_where_it_shows_how_they_differ() -> None:
    item = Slot(name="item", kind=SlotKind.ID)

    def axes_of(num_missing: int) -> Any:
        rows = pa.table({"item": [None] * num_missing + [1] * (100 - num_missing)})
        return profile_rows(rows.to_batches(), [item]).plot_coverage().axes[0]

    assert axes_of(4).get_xlim() == pytest.approx((0.95, 1.0))
    assert "from 0.95, not 0" in axes_of(4).get_xlabel()
    for num_missing in (0, 60):
        assert axes_of(num_missing).get_xlim() == (0.0, 1.0)
