"""Counts by sorting compared with `collections.Counter`."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from featstore.statistics.value_counts import (
    count_each,
    count_values,
    merge_counts,
    most_frequent,
)

PAIRS = st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 4)), max_size=40)


@given(PAIRS, st.integers(1, 5))
def test_counts_and_sums_are_those_of_the_single_values(
    pairs: list[tuple[int, int]], num_parts: int
) -> None:
    values = np.array([value for value, _ in pairs], np.int64)
    weights = np.array([float(weight) for _, weight in pairs])
    parts = [
        count_values(
            values[i::num_parts], [weights[i::num_parts], np.ones(len(values[i::num_parts]))]
        )
        for i in range(num_parts)
    ]
    found = merge_counts(parts)
    expected = Counter(values.tolist())
    assert dict(zip(found.values.tolist(), found.counts.tolist(), strict=True)) == expected
    assert found.values.tolist() == sorted(expected)
    assert found.sums[1].tolist() == found.counts.tolist()
    sums = {value: sum(w for v, w in pairs if v == value) for value in expected}
    assert dict(zip(found.values.tolist(), found.sums[0].tolist(), strict=True)) == sums
    assert count_values(values).counts.tolist() == found.counts.tolist()


@given(st.lists(st.lists(st.integers(-3, 9), max_size=4), max_size=12))
def test_columns_of_one_length_and_of_others_are_counted_each_for_itself(
    columns: list[list[int]],
) -> None:
    found = list(count_each(np.array(column, np.int64) for column in columns))
    counted = [dict(zip(of.values.tolist(), of.counts.tolist(), strict=True)) for of in found]
    assert counted == [Counter(column) for column in columns]
    assert [list(counts) for counts in counted] == [sorted(counts) for counts in counted]
    assert [of.sums.shape for of in found] == [(0, len(of)) for of in found]


def test_more_values_than_a_block_are_counted_too() -> None:
    columns = np.arange(300_000).reshape(3, 100_000) // 2
    for column, found in zip(columns, count_each(columns), strict=True):
        assert found.values.tolist() == np.unique(column).tolist()
        assert set(found.counts.tolist()) == {2}


@given(PAIRS, st.integers(1, 4))
def test_the_most_frequent_come_first_and_ties_by_value(
    pairs: list[tuple[int, int]], num: int
) -> None:
    values = [value for value, _ in pairs]
    found = most_frequent(count_values(np.array(values, np.int64)), num)
    expected = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))[:num]
    assert list(zip(found.values.tolist(), found.counts.tolist(), strict=True)) == expected


def test_minus_zero_is_zero() -> None:
    found = count_values(np.array([0.0, -0.0, 1.5], np.float32))
    assert (found.values.tolist(), found.counts.tolist()) == ([0.0, 1.5], [2, 1])
