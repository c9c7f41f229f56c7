import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.table.sketches import NUM_POINTS, Distinct, mix, points_of, quantiles_of, top_of


def counted(num_distinct: int, num_parts: int = 1) -> Distinct:
    """Of as many values, each twice, in parts that overlap."""
    hashes = mix(np.arange(1, num_distinct + 1, dtype=np.int64))
    merged = Distinct()
    for part in range(num_parts):
        one = Distinct()
        for batch in np.array_split(np.concatenate([hashes[part::num_parts], hashes[: num_distinct // 2]]), 5):
            one.update(batch)
        merged.merge(one)
    return merged


@pytest.mark.parametrize(
    ("num_distinct", "error"), [(0, 0), (1, 0), (100, 0.02), (10_000, 0.03), (60_000, 0.06), (500_000, 0.12)]
)
def test_distinct_values_are_counted_to_a_few_percent(num_distinct: int, error: float) -> None:
    assert abs(counted(num_distinct).estimate() - num_distinct) <= error * num_distinct


@pytest.mark.parametrize("num_distinct", [3, 5_000, 200_000])
def test_merged_parts_count_what_the_whole_does(num_distinct: int) -> None:
    assert counted(num_distinct, 4).estimate() == counted(num_distinct).estimate()


def test_signs_need_no_mixing_and_small_integers_do() -> None:
    assert len(np.unique(mix(np.arange(100_000, dtype=np.int64)))) == 100_000
    assert mix(np.array([5], np.int64))[0] >= 0


@given(st.lists(st.floats(-1e6, 1e6), max_size=2_000), st.sampled_from([0.0, 0.25, 0.5, 0.99]))
def test_points_keep_the_ranks(numbers: list[float], wanted: float) -> None:
    values = np.array(numbers)
    found = quantiles_of(*points_of(values, np.full(len(values), 3.0)), (wanted,))
    if not numbers:
        assert found is None
        return
    assert found is not None
    low, high = np.searchsorted(np.sort(values), found[0], "left"), np.searchsorted(np.sort(values), found[0], "right")
    slack = 1 + len(values) / NUM_POINTS
    assert low - slack <= wanted * len(values) <= high + slack


def test_points_carry_the_whole_weight() -> None:
    values, weights = points_of(np.arange(10_000.0), np.full(10_000, 2.0))
    assert (len(values), weights.sum()) == (NUM_POINTS, 20_000)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=50))
def test_the_top_are_the_greatest_sums(pairs: list[tuple[int, int]]) -> None:
    totals: dict[int, int] = {}
    for value, count in pairs:
        totals[value] = totals.get(value, 0) + count
    values, counts = top_of(np.array([p[0] for p in pairs], np.int64), np.array([float(p[1]) for p in pairs]), 4)
    expected = sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))[:4]
    assert list(zip(values.tolist(), counts.tolist(), strict=True)) == expected
