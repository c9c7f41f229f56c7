"""The standard error of the AUC compared with how much the AUC of drawn rows varies."""

from typing import Any

import numpy as np
import pytest

from featstore.statistics import label_curves
from featstore.statistics.label_curves import HalfCurves, ListRows
from featstore.statistics.measures import auc_standard_error

NUM_DRAWS = 300


def drawn(draw: np.random.Generator, rates: Any, num_rows: int) -> np.ndarray:
    """The sums of equally frequent values with these rates, over random rows."""
    rows = draw.multinomial(num_rows, np.full(len(rates), 1 / len(rates)))
    positive = draw.binomial(rows, rates)
    first = draw.binomial(rows, 0.5)
    return np.array([rows, first, positive, draw.hypergeometric(positive, rows - positive, first)])


def area(sums: np.ndarray) -> tuple[float, float]:
    curves = HalfCurves(sums[2].sum() / sums[0].sum())
    curves.add(sums.astype(np.float64))
    found = curves.area()
    assert found["auc"] is not None
    assert found["auc_standard_error"] is not None
    return found["auc"], found["auc_standard_error"]


@pytest.mark.parametrize("num_values", [2, 10, 200])
@pytest.mark.parametrize("signal", [0.0, 0.02, 0.05, 0.2, 0.8])
def test_the_error_is_how_much_the_area_of_drawn_rows_varies(
    signal: float, num_values: int
) -> None:
    """Where a slot says nothing, little, or much: where the halves order values alike, the areas
    are independent; where they do not, both are wrong in the same way.
    """
    draw = np.random.default_rng(3)
    rates = 0.25 * (1 + signal * draw.permutation(np.linspace(-1, 1, num_values)))
    found = np.array([area(drawn(draw, rates, 20_000)) for _ in range(NUM_DRAWS)])
    spread = found[:, 0].std(ddof=1)
    # Three standard errors of the spread are 12 %. That two values are in order may be chance, so
    # that less is made of it: there the error is up to 1.2 times the spread.
    ratio = np.sqrt(np.mean(found[:, 1] ** 2)) / spread
    assert 0.85 < ratio < (1.33 if num_values == 2 else 1.13)
    beyond = np.mean(np.abs(found[:, 0] - found[:, 0].mean()) > 1.96 * found[:, 1])
    assert beyond < 0.12


def test_the_error_of_a_clear_order_is_that_of_all_rows() -> None:
    draw = np.random.default_rng(4)
    sums = drawn(draw, np.linspace(0.05, 0.6, 8), 100_000)
    of_all = auc_standard_error(sums[2], sums[0] - sums[2])
    assert area(sums)[1] == pytest.approx(of_all, rel=0.03)


def test_list_rows_are_random_whole_rows_of_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_curves, "_LEAST_VALUES", 50)
    lists, draw = ListRows(np.int64, budget_bytes=0), np.random.default_rng(5)
    for _ in range(20):
        keys = np.repeat(draw.integers(0, 1 << 62, 30), 3)
        lists.add(np.arange(90), 0, keys, np.zeros(90), np.ones(90))
    assert 25 < len(lists.rows) <= 50
    _, lengths = np.unique(lists.rows["key"], return_counts=True)
    assert set(lengths) == {3}
    lists.add(np.arange(200), 0, np.zeros(200, np.int64), np.zeros(200), np.ones(200))
    assert len(lists.rows) == 200  # one row is kept whole
