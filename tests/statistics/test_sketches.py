import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.statistics.sketches import (
    NUM_CHECKED,
    NUM_POINTS,
    Collisions,
    Distinct,
    Top,
    mix,
    points_of,
    quantiles_of,
)
from featstore.statistics.value_counts import count_values


def counted(num_distinct: int, num_parts: int = 1) -> Distinct:
    """A sketch of so many values, each added twice, in overlapping parts."""
    hashes = mix(np.arange(1, num_distinct + 1, dtype=np.int64))
    merged = Distinct()
    for part in range(num_parts):
        one = Distinct()
        for batch in np.array_split(
            np.concatenate([hashes[part::num_parts], hashes[: num_distinct // 2]]), 5
        ):
            one.update(batch)
        merged.merge(one)
    return merged


@pytest.mark.parametrize(
    ("num_distinct", "error"),
    [(0, 0), (1, 0), (100, 0.02), (10_000, 0.03), (60_000, 0.06), (500_000, 0.12)],
)
def test_distinct_values_are_counted_to_a_few_percent(num_distinct: int, error: float) -> None:
    assert abs(counted(num_distinct).estimate() - num_distinct) <= error * num_distinct


@pytest.mark.parametrize("num_distinct", [3, 5_000, 200_000])
def test_merged_parts_count_what_the_whole_does(num_distinct: int) -> None:
    assert counted(num_distinct, 4).estimate() == counted(num_distinct).estimate()


def test_small_integers_need_hashing_and_signs_do_not() -> None:
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
    low, high = (
        np.searchsorted(np.sort(values), found[0], "left"),
        np.searchsorted(np.sort(values), found[0], "right"),
    )
    slack = 1 + len(values) / NUM_POINTS
    assert low - slack <= wanted * len(values) <= high + slack


def test_points_carry_the_whole_weight() -> None:
    values, weights = points_of(np.arange(10_000.0), np.full(10_000, 2.0))
    assert (len(values), weights.sum()) == (NUM_POINTS, 20_000)


def test_equally_frequent_values_are_listed_in_ascending_order() -> None:
    ids = np.array([9, 4, 9, 4, 7, 1, 1, 7, 5], np.int64)
    top = Top.of_counts(count_values(ids))
    assert (top.values.tolist(), top.counts.tolist()) == (
        [1, 4, 7, 9, 5],
        [2.0, 2.0, 2.0, 2.0, 1.0],
    )
    assert top.merge(Top()).values.tolist() == [1, 4, 7, 9, 5]


@given(st.lists(st.integers(0, 1 << 32), min_size=1, max_size=8), st.booleans())
def test_counts_of_merged_top_values_are_within_what_they_may_miss(
    seeds: list[int], in_turn: bool
) -> None:
    """Merged one after the other or in pairs, over values of which the files list a part."""
    draws = [np.random.default_rng(seed).zipf(1.2, 2_000) % 500 + 1 for seed in seeds]
    tops = [Top.of_counts(count_values(draw.astype(np.int64))) for draw in draws]
    while len(tops) > 1:
        first = tops.pop(0).merge(tops.pop(0))
        tops = [first, *tops] if in_turn else [*tops, first]
    truth = np.bincount(np.concatenate(draws), minlength=502)
    [top] = tops
    missed = truth[top.values] - top.counts
    assert missed.min() >= 0.0
    assert missed.max() <= top.missed
    unlisted = np.delete(truth, top.values)
    assert unlisted.max() <= top.unlisted


def test_the_error_of_a_distinct_count_holds_in_95_of_100_sketches() -> None:
    draw = np.random.default_rng(11)
    for num_distinct in (40, 3_000, 50_000, 150_000):
        held = 0
        for _ in range(100):
            sketch = Distinct()
            sketch.update(draw.integers(0, 1 << 63, num_distinct))
            found = sketch.estimate()
            held += abs(found - num_distinct) <= sketch.error() * found + 1
        assert held >= 90, num_distinct


def pairs(*given: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([sign for sign, _ in given], np.int64), np.array(
        [witness for _, witness in given], np.int64
    )


def test_a_sign_with_two_witnesses_is_a_collision_however_often_it_comes() -> None:
    found = Collisions()
    assert found.update(*pairs((5, 1), (5, 1), (7, 2), (5, 3), (5, 1), (9, 4))) == 3
    assert found.collided.tolist() == [5]
    assert found.update(*pairs((7, 2), (9, 5))) == 2
    assert found.collided.tolist() == [5, 9]
    # Each sign keeps the witness that came first.
    assert found.witnesses.tolist() == [1, 2, 4]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), max_size=60), st.integers(1, 4))
def test_merged_parts_find_the_collisions_of_the_whole(
    given_pairs: list[tuple[int, int]], num_parts: int
) -> None:
    witnesses: dict[int, set[int]] = {}
    for sign, witness in given_pairs:
        witnesses.setdefault(sign, set()).add(witness)
    merged = Collisions()
    for part in range(num_parts):
        one = Collisions()
        one.update(*pairs(*given_pairs[part::num_parts]))
        merged.merge(one)
    assert merged.collided.tolist() == sorted(
        sign for sign, found in witnesses.items() if len(found) > 1
    )
    assert merged.signs.tolist() == sorted(witnesses)


def test_between_parts_the_smallest_signs_are_compared_and_memory_is_bounded() -> None:
    merged = Collisions()
    for part in range(3):
        one = Collisions()
        one.update(np.arange(1, 2_000, dtype=np.int64), np.full(1_999, part, np.int64))
        merged.merge(one)
    assert (len(merged.signs), len(merged.witnesses)) == (NUM_CHECKED, NUM_CHECKED)
    assert merged.collided.tolist() == list(range(1, NUM_CHECKED + 1))
