"""Which table the next batch comes from: a pure function of the weights and of how many batches
each table has given (docs/contracts.md, golden in tests).

A table with a share `s` of the weights is to have given `s * n` of the first `n` batches, so its
batch `j` is due at `n = j / s`. Batch `n` comes from the table whose next batch is due first, among
those that have given less than `s * n`. Then no table is ever a whole batch ahead of its share or
behind it: Balinski and Young, "The Quota Method of Apportionment", American Mathematical Monthly 82
(1975).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm


@dataclass(frozen=True)
class Turns:
    """How many batches each table has given. Immutable, so threads may share it.

    Attributes:
        weights: The tables' weights. A table of weight 0 has no turn; one is above 0 at least.
        num_batches: How many batches each has given.
    """

    weights: tuple[float, ...]
    num_batches: tuple[int, ...]

    @classmethod
    def begin(cls, weights: Sequence[float]) -> "Turns":
        """Before the first batch."""
        return cls(tuple(weights), (0,) * len(weights))

    def next_table(self) -> int:
        """The table of the next batch."""
        weights, given = _whole(self.weights), self.num_batches
        total, n = sum(weights), sum(given) + 1
        may_give = [i for i, weight in enumerate(weights) if given[i] * total < weight * n]
        return min(may_give, key=lambda i: Fraction(given[i] + 1, weights[i]))

    def after(self, table: int) -> "Turns":
        """The turns once the table has given another batch."""
        counts = tuple(count + (i == table) for i, count in enumerate(self.num_batches))
        return Turns(self.weights, counts)

    def without(self, table: int) -> "Turns":
        """The turns of the other tables, counted anew."""
        return Turns.begin([0 if i == table else w for i, w in enumerate(self.weights)])


@lru_cache
def _whole(weights: tuple[float, ...]) -> tuple[int, ...]:
    """The weights, as they are written in decimals, times the number that makes them whole."""
    exact = [Fraction(str(weight)) for weight in weights]
    factor = lcm(*(each.denominator for each in exact))
    return tuple(int(each * factor) for each in exact)
