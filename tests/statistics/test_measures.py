"""Measures compared with counts of pairs and with definitions written out over single rows."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from featstore.statistics.measures import (
    Z_95,
    auc,
    auc_standard_error,
    information_value,
    jensen_shannon,
    mean_error,
    mutual_information,
    psi,
    share_of_new,
    wilson,
)

CELLS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=8)


def sides(cells: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [one for one, _ in cells], [other for _, other in cells]


@given(st.integers(0, 500), st.integers(0, 500))
def test_wilson_bounds_are_the_rates_at_z_standard_errors(positive: int, negative: int) -> None:
    rows = positive + negative
    low, high = (float(bound) for bound in wilson(positive, rows))
    assert 0.0 <= low <= high <= 1.0
    if not rows:
        assert (low, high) == (0.0, 1.0)
        return
    rate = positive / rows
    assert low <= rate <= high
    for bound in (low, high):
        if 0.0 < bound < 1.0:
            # The rate found is z standard errors of the bound away from the bound.
            error = math.sqrt(bound * (1 - bound) / rows)
            assert abs(rate - bound) == pytest.approx(Z_95 * error, rel=1e-6)


def test_wilson_holds_the_true_rate_in_95_of_100_draws() -> None:
    """The exact chance: a sum over all outcomes of a binomial distribution."""
    rows, rate = 200, 0.07
    low, high = wilson(np.arange(rows + 1), np.full(rows + 1, rows))
    chance = [math.comb(rows, k) * rate**k * (1 - rate) ** (rows - k) for k in range(rows + 1)]
    assert sum(np.array(chance)[(low <= rate) & (rate <= high)]) == pytest.approx(0.95, abs=0.015)


@given(CELLS)
def test_psi_is_the_sum_over_cells_with_half_a_row_more(cells: list[tuple[int, int]]) -> None:
    before, after = sides(cells)
    found = psi(before, after)
    if not sum(before) or not sum(after):
        assert found is None
        return
    known = [pair for pair in cells if pair != (0, 0)]
    total = 0.0
    for e, a in known:
        e_share = (e + 0.5) / (sum(before) + 0.5 * len(known))
        a_share = (a + 0.5) / (sum(after) + 0.5 * len(known))
        total += (a_share - e_share) * math.log(a_share / e_share)
    assert found == pytest.approx(total, abs=1e-12)
    assert found is not None
    assert found >= 0.0
    assert psi(after, before) == pytest.approx(found, abs=1e-12)
    assert information_value(after, before) == pytest.approx(found, abs=1e-12)


@given(CELLS)
def test_jensen_shannon_is_the_mean_divergence_from_the_mixture(
    cells: list[tuple[int, int]],
) -> None:
    one, other = sides(cells)
    found = jensen_shannon(one, other)
    if not sum(one) or not sum(other):
        assert found is None
        return
    total = 0.0
    for first, second in cells:
        p, q = first / sum(one), second / sum(other)
        middle = (p + q) / 2
        total += sum(share / 2 * math.log2(share / middle) for share in (p, q) if share)
    assert found == pytest.approx(total, abs=1e-9)
    assert found is not None
    assert 0.0 <= found <= 1.0


def test_jensen_shannon_of_equal_shares_is_0_and_of_foreign_cells_1() -> None:
    assert jensen_shannon([1, 3], [10, 30]) == pytest.approx(0.0, abs=1e-12)
    assert jensen_shannon([5, 0], [0, 7]) == 1.0


@given(CELLS)
def test_auc_is_the_share_of_pairs_in_order(cells: list[tuple[int, int]]) -> None:
    up, down = sides(cells)
    found = auc(up, down)
    if not sum(up) or not sum(down):
        assert found is None
        return
    won = 0.0
    for i, num_up in enumerate(up):
        for j, num_down in enumerate(down):
            won += num_up * num_down * (1.0 if i > j else 0.5 if i == j else 0.0)
    assert found == pytest.approx(won / (sum(up) * sum(down)))


@given(CELLS)
def test_the_error_of_an_auc_is_that_of_delong_over_single_rows(
    cells: list[tuple[int, int]],
) -> None:
    up, down = sides(cells)
    positives, negatives = (np.repeat(np.arange(len(n)), n) for n in (up, down))
    found = auc_standard_error(up, down)
    if len(positives) < 2 or len(negatives) < 2:
        assert found is None
        return
    difference = positives[:, None] - negatives[None, :]
    wins = (difference > 0) + 0.5 * (difference == 0)
    assert auc(up, down) == pytest.approx(wins.mean())
    of_up, of_down = wins.mean(1).var(ddof=1), wins.mean(0).var(ddof=1)
    expected = math.sqrt(of_up / len(positives) + of_down / len(negatives))
    assert found == pytest.approx(expected, abs=1e-9)


@given(CELLS)
def test_mutual_information_is_that_of_single_rows(cells: list[tuple[int, int]]) -> None:
    up, down = sides(cells)
    rows = [
        (cell, label)
        for cell, pair in enumerate(cells)
        for label, count in zip((1, 0), pair, strict=True)
        for _ in range(count)
    ]
    found = mutual_information(up, down)
    if not rows:
        assert found is None
        return
    both, of_cell = Counter(rows), Counter(cell for cell, _ in rows)
    of_label = Counter(label for _, label in rows)
    total = sum(
        count / len(rows) * math.log2(count * len(rows) / (of_cell[cell] * of_label[label]))
        for (cell, label), count in both.items()
    )
    assert found == pytest.approx(total, abs=1e-9)
    assert found is not None
    assert found >= 0.0


@given(CELLS)
def test_new_values_are_those_without_rows_before(cells: list[tuple[int, int]]) -> None:
    before, after = sides(cells)
    assume(sum(after))
    new = sum(a for b, a in cells if not b)
    assert share_of_new(before, after) == pytest.approx(new / sum(after))
    assert share_of_new(after, [0] * len(cells)) is None


def test_counts_of_other_cells_and_negative_ones_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same cells, found shapes \(2,\) and \(3,\)"):
        psi([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="at least 0, found negative"):
        auc([1, -1], [1, 1])
    with pytest.raises(ValueError, match="at most as many positive rows as rows"):
        wilson([3], [2])


@pytest.mark.parametrize("run", [1, 100])
def test_the_error_of_a_mean_holds_it_also_where_neighbours_are_alike(run: int) -> None:
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = np.repeat((rng.random(20_000 // run) < 0.3).astype(np.float64), run)
        values[rng.random(len(values)) < 0.1] = np.nan
        error, num = mean_error(values), np.count_nonzero(~np.isnan(values))
        held += abs(float(np.nanmean(values)) - 0.3) <= error
        assert error >= 1.95 * float(np.nanstd(values)) / num**0.5  # that of independent rows
    assert held >= 90


def test_the_error_of_equal_or_unknown_values_follows_the_rule_of_three() -> None:
    assert mean_error(np.ones(300)) == pytest.approx(0.01)
    assert mean_error(np.array([np.nan, np.nan])) == 0.0
