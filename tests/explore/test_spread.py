"""Evenly spaced files, and as many as have enough rows."""

from hypothesis import given
from hypothesis import strategies as st

from featstore.base.intervals import MOST_SAMPLED, spread, spread_with_rows


@given(st.integers(0, 100), st.integers(1, 8))
def test_files_are_spread_over_all(num_files: int, most: int) -> None:
    found = spread(range(num_files), most)
    assert len(found) == len(set(found)) == min(num_files, most)
    assert found == sorted(found)
    if found:
        assert found[0] == 0
        assert found[-1] >= num_files - 1 - num_files // len(found)


@given(st.lists(st.integers(0, 9), max_size=100), st.integers(0, 500))
def test_there_are_as_many_as_have_the_rows_or_all(num_rows: list[int], wanted: int) -> None:
    found = spread_with_rows(list(enumerate(num_rows)), lambda item: item[1], wanted)
    assert found == sorted(set(found))
    assert len(found) >= min(MOST_SAMPLED, len(num_rows))
    assert len(found) == len(num_rows) or sum(rows for _, rows in found) >= wanted


def test_no_more_than_needed_are_taken() -> None:
    found = spread_with_rows(range(1_000), lambda item: 100, 1_000)
    assert len(found) == MOST_SAMPLED
