"""How much a slot alone says of a label of 0 and 1: its AUC out of sample, with a standard error.

The rows are split into halves. A value's score in one half is the label's rate for it in the other.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featstore.statistics.measures import (
    auc,
    auc_placements,
    auc_standard_error,
    mean_of_halves_variance,
)
from featstore.statistics.sketches import Floats, Integers
from featstore.statistics.value_counts import count_values, merge_counts

# A value's rate is drawn to that of all rows as if it had been seen in this many more of them.
PRIOR_ROWS = 20.0
# Of the rows that tell how alike the values of a list are: of one slot, and the least of many.
_MOST_VALUES, _LEAST_VALUES = 1 << 16, 1 << 12


class HalfCurves:
    """The ROC curves of both halves of the rows, with scores by the rates in the other half.

    Args:
        rate: The rate of all rows.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        none = count_values(np.zeros(0), [np.zeros(0), np.zeros(0)])
        # By half: the scores, and the positive and negative rows of each.
        self._halves = [none, none]
        self._products = np.zeros((2, 2))  # sums of the products of the scores of both halves

    def add(self, sums: Floats) -> list[Floats]:
        """Adds values.

        Args:
            sums: Of each value the rows, those in the first half, the positive ones, and the
                positive ones in the first half, float64 (4, num_values).

        Returns:
            The scores of the values in the first half, and in the second, float64 (num_values,).
        """
        rows, first, positive, first_positive = sums
        halves = ((first, first_positive), (rows - first, positive - first_positive))
        scores = [(up + PRIOR_ROWS * self._rate) / (num + PRIOR_ROWS) for num, up in halves[::-1]]
        for i, (num, up) in enumerate(halves):
            # Values of equal counts have equal scores, so there are far fewer scores than values.
            found = count_values(scores[i], [up, num - up])
            self._halves[i] = merge_counts([self._halves[i], found])
        off = np.stack(scores) - self._rate
        self._products += off * rows @ off.T
        return scores

    def area(self, lists: "ListRows | None" = None) -> dict[str, float | None]:
        """The mean area of the curves and its standard error; None if no half has both positive and
        negative rows, or too few of them.

        Args:
            lists: Rows of a list slot, whose values depend on each other.
        """
        areas = [area for half in self._halves if (area := auc(*half.sums)) is not None]
        errors = [e for half in self._halves if (e := auc_standard_error(*half.sums)) is not None]
        area = sum(areas) / len(areas) if areas else None
        if area is None or not errors:
            return {"auc": area, "auc_standard_error": None}
        of_half = sum(error**2 for error in errors) / len(errors)
        if lists is not None:
            of_half *= self._design_effect(lists.rows)
        spread = np.sqrt(self._products[0, 0] * self._products[1, 1])
        alike = float(self._products[0, 1] / spread) if spread else 0.0
        variance = mean_of_halves_variance(of_half, alike, area)
        return {"auc": area, "auc_standard_error": float(np.sqrt(variance))}

    def _design_effect(self, rows: NDArray[Any]) -> float:
        """How many times larger the variance of an area is than that of independent values: the
        influences of the values of a row add up (N. A. Obuchowski, "Nonparametric analysis of
        clustered ROC curve data", Biometrics 53, 1997).
        """
        influence = np.zeros(len(rows))
        for i, half in enumerate(self._halves):
            up, down = half.sums
            if len(half) and up.any() and down.any():
                mine = rows["half"] == i
                places = np.searchsorted(half.values, rows["score"][mine])
                lower, higher = auc_placements(up, down)
                area = np.sum(up * lower) / up.sum()
                influence[mine] = np.where(
                    rows["positive"][mine],
                    (lower[places] - area) / up.sum(),
                    (higher[places] - area) / down.sum(),
                )
        alone = float(np.sum(influence**2))
        _, row_of = np.unique(rows["key"], return_inverse=True)
        return float(np.sum(np.bincount(row_of, influence) ** 2)) / alone if alone else 1.0


class ListRows:
    """Random rows of a list slot with all of their values: those with the smallest keys.

    Args:
        dtype: The type of the values.
        budget_bytes: The memory to take, as far as it is enough for 4,096 values.
    """

    def __init__(self, dtype: type[np.generic], budget_bytes: int) -> None:
        types = [("value", dtype), ("kind", np.int8), ("key", np.int64), ("half", np.int8)]
        self._parts = [np.zeros(0, [*types, ("positive", np.bool_), ("score", np.float64)])]
        self._bound = 1 << 63
        fitting = budget_bytes // (2 * self._parts[0].dtype.itemsize)
        self._most_values = min(max(fitting, _LEAST_VALUES), _MOST_VALUES)

    @property
    def rows(self) -> NDArray[Any]:
        """A row for each value: `value`, `kind` (0, or of rows without a value another number),
        `key` of its row, `half` (0 or 1), `positive`, and `score`, unknown before `find`.
        """
        if len(self._parts) > 1:
            rows = np.concatenate(self._parts)
            # One row stays, however long it is.
            while len(rows) > self._most_values and (keys := rows["key"]).min() < keys.max():
                self._bound = max(int(np.median(keys)), int(keys.min()) + 1)
                rows = rows[keys < self._bound]
            self._parts = [rows]
        return self._parts[0]

    def add(
        self, values: NDArray[Any], kind: int, keys: Integers, halves: Floats, positive: Floats
    ) -> None:
        """Adds values with the key, the half and the label of their rows, (num_values,) each."""
        chosen = keys < self._bound
        new = np.zeros(np.count_nonzero(chosen), self._parts[0].dtype)
        new["value"], new["kind"], new["key"] = values[chosen], kind, keys[chosen]
        new["half"], new["positive"] = halves[chosen], positive[chosen] > 0
        self._parts.append(new)
        if sum(map(len, self._parts)) > 2 * self._most_values:
            self._parts = [self.rows]

    def find(
        self, scores: list[Floats], low: NDArray[Any], high: NDArray[Any], kind: int = 0
    ) -> None:
        """Gives rows their scores.

        Args:
            scores: The scores of some values or bins in each half, (num,) each.
            low, high: The values, or the ends of the bins, ascending.
            kind: The kind of the values.
        """
        if not len(high):
            return
        rows = self.rows
        places = np.minimum(np.searchsorted(high, rows["value"]), len(high) - 1)
        inside = (low[places] <= rows["value"]) & (rows["value"] <= high[places])
        inside &= rows["kind"] == kind
        rows["score"][inside] = np.stack(scores)[rows["half"][inside], places[inside]]
