"""Whether it is a permutation, and whether all permutations are equally likely."""

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from featstore.base.splitmix import keys
from featstore.samples.permutation import MOST_ROWS, Permutation

_MASK = 2**64 - 1


def by_hand(position: int, num_rows: int, key: str) -> int:
    """The same, of one position, in whole numbers of Python, as docs/contracts.md says it."""
    num_rounds = 24 if num_rows < 65_536 else 10
    digest = hashlib.shake_256(key.encode()).digest(8 * num_rounds)
    round_keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, len(digest), 8)]
    left_base = math.isqrt(num_rows - 1) + 1
    right_base = -(-num_rows // left_base)

    def drawn(half: int, round_key: int, base: int) -> int:
        value = (half + round_key) & _MASK
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
        return ((value ^ value >> 31) >> 32) * base >> 32

    while True:
        left, right = divmod(position, right_base)
        for odd, even in zip(round_keys[::2], round_keys[1::2], strict=True):
            left = (left + drawn(right, odd, left_base)) % left_base
            right = (right + drawn(left, even, right_base)) % right_base
        position = left * right_base + right
        if position < num_rows:
            return position


@given(num_rows=st.integers(1, 3_000), key=st.text(max_size=5))
@example(num_rows=1, key="")
@example(num_rows=65_535, key="a")
@example(num_rows=65_536, key="a")
@example(num_rows=100_003, key="a")
def test_every_row_comes_once(num_rows: int, key: str) -> None:
    rows = Permutation(num_rows=num_rows, key=key).at(np.arange(num_rows))
    assert rows.dtype == np.int64
    assert (np.sort(rows) == np.arange(num_rows)).all()


@given(data=st.data(), num_rows=st.integers(1, MOST_ROWS), key=st.text(max_size=5))
def test_it_is_what_the_contract_says_up_to_2_to_the_40(
    data: st.DataObject, num_rows: int, key: str
) -> None:
    positions = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=5))
    found = Permutation(num_rows=num_rows, key=key).at(np.array(positions, np.int64))
    assert found.tolist() == [by_hand(position, num_rows, key) for position in positions]


def test_of_2_to_the_40_rows_no_two_of_a_million_positions_have_the_same_row() -> None:
    rows = Permutation(num_rows=MOST_ROWS, key="a").at(np.arange(1_000_000) * 1_000_003)
    assert len(np.unique(rows)) == 1_000_000
    assert rows.min() >= 0
    assert rows.max() < MOST_ROWS
    counts = np.bincount(rows >> 30, minlength=1024)  # 1,024 equal parts
    assert chi_squared(counts) < 5


def chi_squared(counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
    """How many standard deviations the statistic is above its mean, if all are equally likely."""
    expected, freedom = counts.mean(), counts.size - 1
    statistic = ((counts - expected) ** 2).sum() / expected
    return float((statistic - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("num_rows", [2, 3, 4, 5, 6])
def test_all_orders_of_few_rows_are_equally_frequent(num_rows: int) -> None:
    positions = np.arange(num_rows)
    found = Counter(
        tuple(Permutation(num_rows=num_rows, key=f"{seed}").at(positions).tolist())
        for seed in range(3_000)
    )
    orders = itertools.permutations(range(num_rows))
    assert chi_squared(np.array([found[order] for order in orders])) < 5


@pytest.mark.parametrize("num_rows", [10, 97, 500])
def test_each_row_is_equally_frequent_at_each_position(num_rows: int) -> None:
    counts = np.zeros((num_rows, num_rows), np.int64)
    positions = np.arange(num_rows)
    for seed in range(2_000):
        counts[positions, Permutation(num_rows=num_rows, key=f"{seed}").at(positions)] += 1
    assert chi_squared(counts) < 5


def test_neighbours_and_seeds_have_nothing_to_do_with_each_other() -> None:
    """Pairs of rows that follow each other, and of rows that two keys have at one position, over
    20 by 20 equal parts of the rows.
    """
    num_rows, parts = 200_000, 20
    first = Permutation(num_rows=num_rows, key="1").at(np.arange(num_rows)) * parts // num_rows
    second = Permutation(num_rows=num_rows, key="2").at(np.arange(num_rows)) * parts // num_rows
    for one, other in ((first[:-1], first[1:]), (first[:-7], first[7:]), (first, second)):
        assert chi_squared(np.bincount(one * parts + other, minlength=parts**2)) < 5


def test_rising_runs_are_as_long_as_chance_makes_them() -> None:
    rows = Permutation(num_rows=100_000, key="1").at(np.arange(100_000))
    rising = rows[1:] > rows[:-1]
    # Two neighbours rise with chance 1/2, and three with 1/6.
    assert abs(rising.mean() - 1 / 2) < 0.01
    assert abs((rising[1:] & rising[:-1]).mean() - 1 / 6) < 0.01


def test_keys_of_other_texts_are_other_keys() -> None:
    assert not set(keys("a 1", 24).tolist()) & set(keys("a 11", 24).tolist())
    assert keys("a", 2).tolist() == keys("a", 24)[:2].tolist()
