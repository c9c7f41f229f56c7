"""The picture of a profile's coverage."""

import pyarrow as pa
import pytest

from featstore.base.schema import Slot, SlotKind
from featstore.explore.profile import Profile
from featstore.explore.row_profile import profile_rows
from tests.explore.plots.rendered import assert_bar_ends_at, render


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
