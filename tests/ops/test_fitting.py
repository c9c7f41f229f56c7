"""What a first pass gathers: the same constants however rows are cut and merged, and exact ones
where that is promised.
"""

import functools
import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.ops.fitting import MAX_SAMPLE, STATES, Moments, QuantileSample, State, ValueRange

finite = st.floats(allow_nan=False, allow_infinity=False)
halves = st.integers(-20, 20).map(lambda n: n / 2)


def keys_of(values: list[float]) -> np.ndarray:
    return np.arange(len(values), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def fitted_in_parts(op: str, values: list[float], cuts: list[int]) -> State:
    """The state of slices, each in a state of its own, merged in another order."""
    array, keys = np.array(values, np.float64), keys_of(values)
    bounds = [0, *sorted(cut % (len(values) + 1) for cut in cuts), len(values)]
    parts = [STATES[op]().add(array[a:b], keys[a:b]) for a, b in itertools.pairwise(bounds)]
    return functools.reduce(lambda left, right: left.merge(right), reversed(parts))


@pytest.mark.parametrize("op", STATES)
@given(
    values=st.lists(finite, min_size=2, max_size=30), cuts=st.lists(st.integers(0, 99), max_size=5)
)
def test_batches_and_the_order_of_merging_change_nothing(
    op: str, values: list[float], cuts: list[int]
) -> None:
    def fit(state: State) -> object:
        try:
            return state.fit({"num_buckets": 4})
        except ValueError as error:
            return str(error)

    whole = STATES[op]().add(np.array(values), keys_of(values))
    parts = fitted_in_parts(op, values, cuts)
    assert fit(parts) == fit(whole)
    assert parts.num_values == whole.num_values == len(values)


@given(values=st.lists(finite, min_size=1, max_size=20))
def test_sums_are_exact(values: list[float]) -> None:
    state = Moments().add(np.array(values), keys_of(values))
    exact = [Fraction(value) for value in values]
    assert Fraction(state.total, 1 << 1126) == sum(exact)
    assert Fraction(state.squares, 1 << 2252) == sum(value * value for value in exact)


@given(values=st.lists(halves, min_size=2, max_size=20))
def test_mean_and_standard_deviation_are_those_of_the_population(values: list[float]) -> None:
    state = Moments().add(np.array(values), keys_of(values))
    if len(set(values)) == 1:
        with pytest.raises(ValueError, match="expected values that differ, found only"):
            state.fit({})
        return
    found = state.fit({})
    assert found["mean"] == pytest.approx(statistics.fmean(values), rel=1e-15, abs=1e-15)
    assert found["stddev"] == pytest.approx(statistics.pstdev(values), rel=1e-14)


def test_a_standard_deviation_is_found_where_float64_cannot_hold_the_variance() -> None:
    values = np.array([-1e300, 1e300])
    assert Moments().add(values, keys_of([0, 0])).fit({})["stddev"] == 1e300


@given(values=st.lists(finite, min_size=1, max_size=50), num_buckets=st.integers(2, 9))
def test_boundaries_of_few_values_are_exact(values: list[float], num_buckets: int) -> None:
    found = (
        QuantileSample().add(np.array(values), keys_of(values)).fit({"num_buckets": num_buckets})
    )
    ordered = sorted(values)
    assert found == {
        "boundaries": sorted(
            {ordered[i * len(values) // num_buckets] for i in range(1, num_buckets)}
        )
    }


def test_boundaries_of_many_values_are_within_half_a_percent_of_rank() -> None:
    values = np.random.default_rng(1).permutation(600_000).astype(np.float64)
    keys = np.random.default_rng(2).integers(0, 2**63, len(values)).astype(np.uint64)
    state = functools.reduce(
        lambda state, at: state.add(values[at : at + 16_384], keys[at : at + 16_384]),
        range(0, len(values), 16_384),
        QuantileSample(),
    )
    assert len(state.values) == MAX_SAMPLE
    assert state.num_values == len(values)
    found = np.array(state.fit({"num_buckets": 10})["boundaries"])
    assert np.abs(found / len(values) - np.arange(1, 10) / 10).max() < 0.005


@pytest.mark.parametrize("op", STATES)
def test_without_a_value_there_is_nothing_to_fit(op: str) -> None:
    with pytest.raises(ValueError, match="expected a value that is not missing, found none"):
        STATES[op]().add(np.empty(0), np.empty(0, np.uint64)).fit({"num_buckets": 4})


def test_a_range_has_two_ends_within_float64() -> None:
    assert ValueRange().add(np.array([3.0, -1.0]), keys_of([0, 0])).fit({}) == {
        "min": -1.0,
        "max": 3.0,
    }
    with pytest.raises(ValueError, match=r"found only 2\.0"):
        ValueRange().add(np.array([2.0]), keys_of([0])).fit({})
    with pytest.raises(ValueError, match="expected a range within float64"):
        ValueRange().add(np.array([-1.7e308, 1.7e308]), keys_of([0, 0])).fit({})
    assert math.isinf(ValueRange().min)
