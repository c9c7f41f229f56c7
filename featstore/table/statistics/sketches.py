"""Summaries of many values in little memory, made of whole arrays at a time, that can be merged in
any order.

Each is a plain numpy array, so that it can be stored as bytes. Sketch libraries for Python take one
value at a time.
"""

import numpy as np
from numpy.typing import NDArray

from featstore._native.loading import KERNELS

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]

NUM_BITS = 1 << 14
"""Of the bitmap that counts few distinct values; it is trusted up to four times as many."""
NUM_SMALLEST = 1024
"""How many of the smallest hashes are kept of many distinct values: the standard error is 1 / sqrt
of it.
"""
NUM_CHECKED = 256
"""How many of the smallest signs are kept, each with its witness, to be compared with those of
other files.
"""
NUM_COLLIDED = 1024
NUM_POINTS = 256
NUM_TOP = 64
_FIRST_BOUND = np.int64((1 << 63) // 64)


def mix(values: Integers) -> Integers:
    """Well-spread 63-bit hashes of integers: SplitMix64's finaliser."""
    found = values.astype(np.uint64)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((found ^ (found >> np.uint64(31))) >> np.uint64(1)).view(np.int64)


class Distinct:
    """Counts distinct 63-bit hashes.

    Few are counted in a bitmap (linear counting, Whang et al. 1990), many by the smallest hashes
    (KMV, Bar-Yossef et al. 2002): of those only values below a bound, at first one in 64, are
    looked at twice.
    """

    def __init__(self, bits: Bits | None = None, smallest: Integers | None = None) -> None:
        self.bits = np.zeros(NUM_BITS, np.bool_) if bits is None else bits
        self.smallest = np.zeros(0, np.int64) if smallest is None else smallest

    def update(self, hashes: Integers) -> None:
        self.bits[hashes & (NUM_BITS - 1)] = True
        found = hashes[hashes < self._bound()]
        if len(found):
            self._keep(found)

    def take(self, values: Integers | NDArray[np.float32]) -> int:
        """Counts a slot's stored values: int64 signs, or float32 by their bits; the number of marks
        (0, NaN) for missing ones, which are not counted. With and without kernels the same."""
        if KERNELS is None:
            signs = values.dtype == np.int64
            missing = values == 0 if signs else np.isnan(values)
            known = values[~missing]
            self.update(
                known.astype(np.int64) if signs else mix(known.view(np.int32).astype(np.int64))
            )
            return int(np.count_nonzero(missing))
        small = np.empty(len(values) + 1, np.int64)
        num_missing, num_small = KERNELS.mark_values(
            values, values.itemsize, self.bits, int(self._bound()), small
        )
        if num_small:
            self._keep(small[:num_small])
        return int(num_missing)

    def merge(self, other: "Distinct") -> None:
        self.bits |= other.bits
        self._keep(other.smallest)

    def estimate(self) -> int:
        """How many distinct hashes there were: exact to about 1.5 % up to 65,536, to about 3 %
        beyond (standard errors).
        """
        num_free = NUM_BITS - int(self.bits.sum())
        few = NUM_BITS * np.log(NUM_BITS / num_free) if num_free else np.inf
        if len(self.smallest) < NUM_SMALLEST and np.isfinite(few):
            return round(few)
        many = (len(self.smallest) - 1) * float(1 << 63) / max(1, int(self.smallest[-1]))
        return round(few if few <= 4 * NUM_BITS else many)

    def _bound(self) -> np.int64:
        return _FIRST_BOUND if len(self.smallest) < NUM_SMALLEST else self.smallest[-1]

    def _keep(self, found: Integers) -> None:
        both = np.sort(
            np.concatenate([self.smallest, found])
        )  # np.unique goes by a hash table, and takes twice the time
        self.smallest = both[np.append(both[1:] != both[:-1], len(both) > 0)[: len(both)]][
            :NUM_SMALLEST
        ]


class Collisions:
    """Finds signs that more than one value has: each sign comes with a *witness*, another hash of
    the same value.

    Of all pairs given at once, those of equal sign and unequal witness are found; between updates,
    and between files, the smallest signs are compared. Two values whose hashes are equal twice, one
    chance in 2^126 for a pair, pass as one.
    """

    def __init__(
        self,
        signs: Integers | None = None,
        witnesses: Integers | None = None,
        collided: Integers | None = None,
    ) -> None:
        none = np.zeros(0, np.int64)
        self.signs = none if signs is None else signs
        self.witnesses = none if witnesses is None else witnesses
        self.collided = none if collided is None else collided
        """The signs with more than one value, at most `NUM_COLLIDED`: the smallest."""

    def update(self, signs: Integers, witnesses: Integers) -> int:
        """Takes the pairs of some values, any number of times each. The number of different signs
        among those given.
        """
        signs, witnesses = (
            np.concatenate([self.signs, signs]),
            np.concatenate([self.witnesses, witnesses]),
        )
        num_before = len(self.signs)
        order = np.argsort(signs, kind="stable")
        signs, witnesses = signs[order], witnesses[order]
        again = signs[1:] == signs[:-1]
        found = signs[1:][again & (witnesses[1:] != witnesses[:-1])]
        first = np.flatnonzero(np.append(True, ~again)[: len(signs)])
        num_new = int(np.unique(signs[order >= num_before]).size) if num_before else len(first)
        self.signs, self.witnesses = signs[first[:NUM_CHECKED]], witnesses[first[:NUM_CHECKED]]
        if len(found):
            self.collided = np.union1d(self.collided, found)[:NUM_COLLIDED]
        return num_new

    def merge(self, other: "Collisions") -> None:
        self.update(other.signs, other.witnesses)
        self.collided = np.union1d(self.collided, other.collided)[:NUM_COLLIDED]


def points_of(
    values: Floats, weights: Floats, num_points: int = NUM_POINTS
) -> tuple[Floats, Floats]:
    """At most `num_points` values, ascending, and weights that stand for all given: equal steps of
    their weight.

    The rank of any value changes by at most half a step, 1 / (2 * `num_points`) of the whole
    weight.
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    if len(values) <= num_points:
        return values, weights
    ends = np.cumsum(weights)
    wanted = (np.arange(num_points) + 0.5) * (ends[-1] / num_points)
    return values[np.searchsorted(ends, wanted)], np.full(num_points, ends[-1] / num_points)


def quantiles_of(values: Floats, weights: Floats, wanted: tuple[float, ...]) -> list[float] | None:
    """The values at which these shares of the weight lie below; None where there are no values."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    at = np.searchsorted(ends, np.array(wanted) * ends[-1]).clip(max=len(values) - 1)
    return [float(value) for value in values[order][at]]


def top_of(values: Integers, counts: Floats, num_top: int = NUM_TOP) -> tuple[Integers, Floats]:
    """The `num_top` values with the greatest counts, those of equal values added; the greatest
    first.
    """
    found, which = np.unique(values, return_inverse=True)
    totals = np.bincount(which, weights=counts, minlength=len(found)).astype(np.float64)
    order = np.lexsort((found, -totals))[:num_top]
    return found[order], totals[order]
