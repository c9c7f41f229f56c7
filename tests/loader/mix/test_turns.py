"""Whose turn it is: shares at each batch, the frozen order of turns, tables that are left out."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.loader.mixed_state import Turns

WEIGHTS = st.lists(st.floats(0.001, 1000), min_size=1, max_size=8)


def tables_of(turns: Turns, num_batches: int) -> list[int]:
    found = []
    for _ in range(num_batches):
        found.append(turns.next_table())
        turns = turns.after(found[-1])
    return found


@given(weights=WEIGHTS | st.lists(st.integers(1, 20).map(float), min_size=1, max_size=12))
def test_no_table_is_ever_a_batch_ahead_of_its_share_or_behind_it(weights: list[float]) -> None:
    exact = [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    turns = Turns.begin(weights)
    for n in range(1, 400):
        turns = turns.after(turns.next_table())
        assert sum(turns.num_batches) == n
        for count, share in zip(turns.num_batches, shares, strict=True):
            assert abs(count - share * n) < 1


@given(
    weights=WEIGHTS,
    counts=st.lists(st.integers(0, 1000), min_size=8, max_size=8),
)
def test_from_any_counts_the_shares_are_reached_and_kept(
    weights: list[float], counts: list[int]
) -> None:
    """States of workers that have left tables out, or were merged, are none that turns lead to."""
    turns = Turns(tuple(weights), tuple(counts[: len(weights)]))
    total = sum(turns.num_batches)
    for table in tables_of(turns, 300):
        total += 1
        turns = turns.after(table)
        # Nobody who is ahead of its share gets a turn.
        share = Fraction(str(weights[table])) / sum(Fraction(str(each)) for each in weights)
        assert turns.num_batches[table] < share * total + 1


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([3, 1], "000100010001"),
        ([3, 1, 2], "020102020102"),
        ([0.7, 0.2, 0.1], "000100100200"),
        ([1], "000000000000"),
    ],
    ids=str,
)
def test_the_order_of_turns_is_frozen(weights: list[float], expected: str) -> None:
    assert "".join(map(str, tables_of(Turns.begin(weights), 12))) == expected


def test_decimal_weights_are_taken_as_they_are_written() -> None:
    as_written, whole = Turns.begin([0.1, 0.2, 0.7]), Turns.begin([1, 2, 7])
    assert tables_of(as_written, 100) == tables_of(whole, 100)


def test_a_table_that_is_left_out_leaves_its_share_to_the_others() -> None:
    turns = Turns((5.0, 1.0, 3.0), (50, 10, 30)).without(0)
    assert turns == Turns((0, 1.0, 3.0), (0, 0, 0))
    assert tables_of(turns, 8) == tables_of(Turns.begin([0, 1, 3]), 8)
    assert sorted(tables_of(turns, 8)) == [1, 1, 2, 2, 2, 2, 2, 2]
