from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import BudgetError
from featstore.staging.budget import (
    choose_evictions,
    excess,
    format_bytes,
    require_fits,
)
from featstore.staging.options import Staging


def test_formatted_bytes_keep_the_exact_count() -> None:
    assert (format_bytes(999), format_bytes(1_500_000_000)) == (
        "999 bytes",
        "1.5 GB (1500000000 bytes)",
    )


def test_a_budget_smaller_than_the_largest_file_names_file_size_and_budget() -> None:
    with pytest.raises(
        BudgetError,
        match=r"budget_bytes is 999 bytes, but file b has 1 kB \(1000 bytes\); raise the budget, "
        r"or use .*ranges",
    ):
        require_fits([("a", 10), ("b", 1000), ("c", 30)], 999)
    require_fits([("a", 10), ("b", 1000)], 1000)
    require_fits([], 1)


def test_a_budget_must_hold_the_files_that_are_open_at_once() -> None:
    with pytest.raises(BudgetError, match="the 2 files that are open at once need 70 bytes"):
        require_fits([("a", 10), ("b", 40), ("c", 30)], 69, num_open=2)
    require_fits([("a", 10), ("b", 40), ("c", 30)], 70, num_open=2)


FILES = st.lists(st.integers(0, 100), max_size=12).map(
    lambda sizes: {str(i): size for i, size in enumerate(sizes)}
)


@given(files=FILES, excess_bytes=st.integers(-10, 600))
def test_evictions_are_the_first_files_and_no_more_than_needed(
    files: Any, excess_bytes: int
) -> None:
    chosen, sizes = choose_evictions(files, files.__getitem__, excess_bytes), list(files.values())
    if chosen is None:
        assert sum(sizes) < excess_bytes
        return
    assert list(chosen) == list(files)[: len(chosen)]
    assert sum(sizes[: len(chosen)]) >= excess_bytes
    assert not chosen or sum(sizes[: len(chosen) - 1]) < excess_bytes


def test_files_that_need_not_be_evicted_are_not_looked_at() -> None:
    files = map(str, range(4))
    assert choose_evictions(files, lambda _: 10, 15) == ("0", "1")
    assert list(files) == ["2", "3"]


def test_ahead_is_bounded_by_files_and_bytes_but_lets_one_file_through() -> None:
    options = Staging(ahead_bytes=100, ahead_files=2)
    assert options.may_stage(0, 0, 1000)
    assert options.may_stage(1, 60, 40)
    assert not options.may_stage(1, 60, 41)
    assert not options.may_stage(2, 2, 1)


AMOUNTS = st.integers(0, 1000)


@given(
    num_bytes=AMOUNTS,
    used_bytes=AMOUNTS,
    unwritten_bytes=AMOUNTS,
    free_bytes=AMOUNTS,
    budget_bytes=AMOUNTS,
    min_free_bytes=AMOUNTS,
)
def test_an_admitted_reservation_keeps_the_budget_and_the_free_space(
    num_bytes: Any, **amounts: Any
) -> None:
    if excess(num_bytes, **amounts) <= 0:
        assert amounts["used_bytes"] + num_bytes <= amounts["budget_bytes"]
        left_bytes = amounts["free_bytes"] - amounts["unwritten_bytes"] - num_bytes
        assert left_bytes >= amounts["min_free_bytes"] or amounts["min_free_bytes"] == 0
    else:
        assert excess(num_bytes - excess(num_bytes, **amounts), **amounts) == 0


def test_excess_is_what_is_over_the_budget_or_under_the_free_space_whichever_is_more() -> None:
    of = {"used_bytes": 80, "unwritten_bytes": 30, "free_bytes": 100, "budget_bytes": 100}
    assert excess(10, **of, min_free_bytes=0) == -10
    assert excess(30, **of, min_free_bytes=0) == 10
    assert excess(10, **of, min_free_bytes=60) == 0
    assert excess(10, **of, min_free_bytes=75) == 15
