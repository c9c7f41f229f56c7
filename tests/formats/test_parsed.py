"""Halving until each item is parsed or alone."""

from hypothesis import given
from hypothesis import strategies as st

from featstore.formats.parsed import halves


@given(st.lists(st.booleans(), max_size=50))
def test_all_items_come_once_in_order_and_only_bad_ones_alone(is_good: list[bool]) -> None:
    found = list(
        halves(
            0,
            len(is_good),
            lambda first, end: list(range(first, end)) if all(is_good[first:end]) else None,
        )
    )
    items = [item for first, part in found for item in ([first] if part is None else part)]
    assert items == list(range(len(is_good)))
    assert [first for first, part in found if part is None] == [
        i for i, good in enumerate(is_good) if not good
    ]
