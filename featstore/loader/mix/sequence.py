"""Which table the next batch comes from: a pure function of seed, epoch and position.

The points `start + n * 2^64 / golden ratio`, modulo 2^64, fill any interval evenly: among the first
n of them as many are in each interval as its length says, give or take a few. Each table has an
interval as long as its share of the weights (docs/contracts.md, golden in tests).
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np

_STEP, _MODULUS = 0x9E3779B97F4A7C15, 1 << 64  # 2^64 / golden ratio, as an odd number


class TableSequence:
    """The tables of the batches of one epoch.

    Args:
        weights: The tables' weights, above 0.
        seed: The loader's seed.
        epoch: The epoch.
    """

    def __init__(self, weights: Sequence[float], seed: int, epoch: int) -> None:
        self._weights = weights
        words = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
        self._start = int(words[0])
        self._left_out: Collection[int] = ()
        self._tables, self._ends = self._intervals(())

    def table(self, position: int, left_out: Collection[int] = ()) -> int:
        """The table of the batch at a position.

        Args:
            position: How many batches come before it.
            left_out: Tables that give no batches; not all of them.
        """
        if left_out != self._left_out:
            self._left_out = frozenset(left_out)
            self._tables, self._ends = self._intervals(self._left_out)
        point = (self._start + position * _STEP) % _MODULUS
        return self._tables[bisect_right(self._ends, point)]

    def _intervals(self, left_out: Collection[int]) -> tuple[list[int], list[int]]:
        """The tables, and where the interval of each ends, except that of the last."""
        tables = [i for i in range(len(self._weights)) if i not in left_out]
        sums = list(accumulate(Fraction(self._weights[i]) for i in tables))
        return tables, [int(each * _MODULUS / sums[-1]) for each in sums[:-1]]
