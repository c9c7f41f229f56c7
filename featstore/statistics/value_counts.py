"""Exact counts of values, as sorted arrays. Pure.

A batch is counted by sorting it: numpy sorts the values of a batch at a few nanoseconds each, and a
hash table of a library takes several times as long (decision 80).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ValueCounts:
    """How often each value occurs, and sums of weights by value.

    Attributes:
        values: The distinct values, ascending, (num_values,). Integers, or floats without NaN.
        counts: How often each occurs, int64 (num_values,).
        sums: The sum of each weight over the occurrences, float64 (num_weights, num_values).
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]
    sums: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def num_bytes(self) -> int:
        """The bytes of the arrays."""
        return self.values.nbytes + self.counts.nbytes + self.sums.nbytes

    def __getitem__(self, part: slice) -> "ValueCounts":
        return ValueCounts(
            values=self.values[part], counts=self.counts[part], sums=self.sums[:, part]
        )


def count_values(values: NDArray[Any], weights: Sequence[NDArray[np.float64]] = ()) -> ValueCounts:
    """Counts values.

    Args:
        values: The values, (num,), in any order.
        weights: For each sum, the weights of the values, float64 (num,).
    """
    # Sorting alone is faster than sorting with the order.
    order = np.argsort(values) if weights else None
    ordered = np.sort(values) if order is None else values[order]
    first = are_first(ordered).nonzero()[0]
    sums = [np.add.reduceat(weight[order], first) if len(first) else weight for weight in weights]
    return ValueCounts(
        values=ordered[first],
        counts=_distances(first, len(ordered)),
        sums=np.array(sums).reshape(len(weights), len(first)),
    )


def merge_counts(parts: Sequence[ValueCounts]) -> ValueCounts:
    """The counts of the values of all parts, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = are_first(ordered).nonzero()[0]
    counts = np.concatenate([part.counts for part in parts])[order]
    sums = np.concatenate([part.sums for part in parts], axis=1)[:, order]
    return ValueCounts(
        values=ordered[first],
        counts=np.add.reduceat(counts, first) if len(first) else counts,
        sums=np.add.reduceat(sums, first, axis=1) if len(first) else sums,
    )


def most_frequent(counts: ValueCounts, num: int) -> ValueCounts:
    """The most frequent values in descending order of their counts, and equally frequent ones in
    ascending order of the values.
    """
    order = np.lexsort((counts.values, -counts.counts))[:num]
    return ValueCounts(
        values=counts.values[order], counts=counts.counts[order], sums=counts.sums[:, order]
    )


def are_first(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the ordered values are the first of their kind, bool (num_values,)."""
    found = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=found[1:])
    return found


def _distances(first: NDArray[np.intp], end: int) -> NDArray[np.int64]:
    """How far each position is from the next one, the last from `end`. In a third of the time that
    `np.diff` takes for few.
    """
    found = np.empty(len(first), np.int64)
    np.subtract(first[1:], first[:-1], out=found[:-1])
    found[-1:] = end - first[-1:]
    return found
