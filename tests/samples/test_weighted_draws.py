from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import ConfigError
from featstore.base.splitmix import CumulativeWeights
from featstore.samples.permutation import WeightedDraws


def drawn(weights: Any, num_draws: int, key: str = "a") -> Any:
    draws = WeightedDraws(weights=CumulativeWeights(weights), key=key)
    return draws.at(np.arange(num_draws))


def test_rows_are_drawn_as_often_as_their_weights_say() -> None:
    weights = np.array([0, 1, 2, 3, 0, 10, 0.5])
    counts = np.bincount(drawn(weights, 200_000), minlength=7)
    assert counts[weights == 0].sum() == 0
    expected = (weights / weights.sum() * 200_000)[weights > 0]
    assert ((counts[weights > 0] - expected) ** 2 / expected).sum() < 25  # 4 degrees of freedom


@given(
    weights=st.lists(st.floats(0, 1e300), min_size=1, max_size=50).filter(any),
    key=st.text(max_size=3),
)
def test_only_rows_with_a_weight_are_drawn(weights: list[float], key: str) -> None:
    rows = drawn(weights, 500, key)
    # A weight that is lost in the sum of those before it is never drawn.
    assert (np.diff(CumulativeWeights(weights).sums, prepend=0)[rows] > 0).all()


@given(
    weights=st.lists(st.integers(0, 3) | st.floats(0, 1e20), min_size=1, max_size=300).filter(any),
    bits=st.lists(st.integers(0, 2**53 - 1), max_size=50),
)
def test_a_search_in_parts_finds_what_a_search_of_all_finds(
    weights: list[float], bits: list[int]
) -> None:
    cumulative = CumulativeWeights(weights)
    numbers = np.array([0, *bits, 2**53 - 1], np.uint64)
    wanted = numbers * 2.0**-53
    expected = np.searchsorted(cumulative.sums, wanted, side="right")
    assert expected.max() < len(weights)
    assert cumulative.rows_of(numbers).tolist() == expected.tolist()


def test_a_draw_does_not_depend_on_those_before_it() -> None:
    draws = WeightedDraws(weights=CumulativeWeights(np.arange(100)), key="a")
    positions = np.array([7, 2, 2**39, 7])
    assert draws.at(positions)[[0, 1]].tolist() == draws.at(np.arange(10))[[7, 2]].tolist()
    assert draws.at(positions)[0] == draws.at(positions)[3]


def test_another_key_draws_other_rows() -> None:
    weights = np.ones(1_000)
    assert (drawn(weights, 1_000, "a") == drawn(weights, 1_000, "b")).mean() < 0.01


def test_more_rows_than_torch_can_draw_from() -> None:
    """`torch.multinomial` takes at most 2^24 weights."""
    weights = np.zeros(2**24 + 2, np.float32)
    weights[[0, -1]] = 1, 3
    counts = np.bincount(drawn(weights, 10_000))
    assert counts[0] + counts[-1] == 10_000
    assert abs(counts[-1] / 10_000 - 0.75) < 0.03


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1], r"weights\[1\]: expected a finite number of at least 0, found -1"),
        ([float("nan")], r"weights\[0\]: .*found nan"),
        ([1, float("inf")], r"weights\[1\]: .*found inf"),
        ([0, 0], "expected a sum above 0"),
        ([], "expected a sum above 0"),
        ([1e308, 1e308], "a float64 can hold"),
        ([[1]], "found 2 dimensions"),
        (["a"], "expected one number for each row"),
    ],
)
def test_what_is_no_weight_is_refused(weights: Any, message: str) -> None:
    with np.errstate(over="ignore"), pytest.raises(ConfigError, match=message):
        CumulativeWeights(weights)
