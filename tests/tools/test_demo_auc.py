"""The AUC compared with its definition, pair by pair."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.tools.demo_train import auc


def auc_of_pairs(labels: list[int], scores: list[float]) -> float:
    rows = list(zip(labels, scores, strict=True))
    pairs = [(p, n) for (a, p), (b, n) in itertools.product(rows, rows) if a == 1 and b == 0]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from([-1.5, 0.0, 0.25, 3.0])),
        min_size=2,
        max_size=40,
    )
)
def test_auc_is_the_share_of_pairs_in_order_with_ties_at_half(
    rows: list[tuple[int, float]],
) -> None:
    labels, scores = [label for label, _ in rows], [score for _, score in rows]
    if len(set(labels)) == 1:
        assert math.isnan(auc(labels, scores))
    else:
        assert auc(labels, scores) == pytest.approx(auc_of_pairs(labels, scores))


def test_a_perfect_order_has_auc_one_and_its_reverse_zero() -> None:
    assert auc([0, 0, 1, 1], [1, 2, 3, 4]) == 1.0
    assert auc([1, 1, 0, 0], [1, 2, 3, 4]) == 0.0
