"""Sketches: mergeable summaries of many values in little memory, vectorized over numpy arrays. And
a random sample of rows.

Sketches consist of plain numpy arrays, which can be stored as bytes. They are written here because
sketch libraries for Python take one value at a time.

Rows are drawn by a hash of the row's number, so that a sample does not depend on how the rows are
divided into batches: two that see the same rows, one with raw columns and one with slots, select
the same.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featstore.base.splitmix import mixed
from featstore.native import kernels
from featstore.statistics.measures import Z_95
from featstore.statistics.value_counts import ValueCounts, are_first, most_frequent

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]

# The bits of the bitmap that counts few distinct values. It is trusted up to four times as many
# values: beyond, too few bits are still empty. Part of the stored format.
NUM_BITS = 1 << 14
# The number of smallest hashes kept to count many distinct values. The standard error is
# 1 / sqrt(NUM_SMALLEST), that is 3 %.
NUM_SMALLEST = 1024
# The number of smallest signs kept, each with its witness, for comparison with those of other
# files.
NUM_CHECKED = 256
NUM_COLLIDED = 1024  # the most colliding signs that are listed
NUM_POINTS = 256  # the points that represent a distribution; ranks are off by 1/512 at most
NUM_TOP = 64  # the most frequent values kept per file; merging can lose a value beyond them
# A file of few rows keeps fewer: one sign to compare for each 32 rows, one point for each 8, but at
# least `MIN_KEPT`. So its statistics stay smaller than its values
# (`benchmarks/table_statistics.md`).
ROWS_PER_SIGN, ROWS_PER_POINT, MIN_KEPT = 32, 8, 8
# One hash in 64 lies below it. So NUM_SMALLEST hashes are kept once there are about 65,536 distinct
# values, where the bitmap stops being trusted.
_FIRST_BOUND = np.int64((1 << 63) // 64)


_NO_INTEGERS, _NO_FLOATS = np.zeros(0, np.int64), np.zeros(0)


def no_integers() -> Integers:
    """An empty array, which all may share."""
    return _NO_INTEGERS


def no_floats() -> Floats:
    """An empty array, which all may share."""
    return _NO_FLOATS


def at_most(num_kept: int, num_rows: int, rows_per_kept: int) -> int:
    """The most entries that a sketch of `num_rows` rows keeps."""
    return min(num_kept, max(MIN_KEPT, num_rows // rows_per_kept))


def mix(values: Integers) -> Integers:
    """Uniform 63-bit hashes of integers: the finalizer of SplitMix64, shifted right by one bit."""
    return (mixed(values.astype(np.uint64)) >> np.uint64(1)).view(np.int64)


@dataclass(eq=False)
class Distinct:
    """A sketch of distinct 63-bit hashes.

    Few are counted in a bitmap (linear counting, Whang et al. 1990), many by the smallest hashes
    (KMV, Bar-Yossef et al. 2002). Only hashes below a bound, at first one in 64, are considered for
    the latter.

    Attributes:
        bits: The bitmap, bool (NUM_BITS,).
        smallest: The smallest hashes, int64, ascending and distinct, at most `NUM_SMALLEST`.
    """

    bits: Bits = field(default_factory=lambda: np.zeros(NUM_BITS, np.bool_))
    smallest: Integers = field(default_factory=no_integers)

    def update(self, values: Integers | NDArray[np.float32]) -> int:
        """Adds hashes, int64 in (0, 2^63), such as signs; or a slot's stored floats, float32, by
        their bits.

        Returns:
            The number of marks of missing values (0 or NaN), which are not added.
        """
        # The bitmap uses the low bits of a hash, the bound its high ones: the two are independent.
        small = np.empty(len(values) + 1, np.int64)
        num_missing, num_small = kernels.mark_values(
            values, values.itemsize, self.bits, int(self._bound()), small
        )
        if num_small:
            self._keep(small[:num_small])
        return num_missing

    def merge(self, other: "Distinct") -> None:
        """Adds all hashes of another sketch."""
        self.bits |= other.bits
        self._keep(other.smallest)

    def estimate(self) -> int:
        """The number of distinct hashes. The standard error is about 1.5 % up to 65,536, and 3 %
        beyond.
        """
        num_free = NUM_BITS - int(self.bits.sum())
        by_bits = NUM_BITS * np.log(NUM_BITS / num_free) if num_free else np.inf
        if len(self.smallest) < NUM_SMALLEST and np.isfinite(by_bits):
            return round(by_bits)
        # The k-th smallest of n uniform hashes in [0, 2^63) lies near k / n of the range.
        by_smallest = (len(self.smallest) - 1) * float(1 << 63) / max(1, int(self.smallest[-1]))
        return round(by_bits if by_bits <= 4 * NUM_BITS else by_smallest)

    def error(self) -> float:
        """The relative error of `estimate`: with a probability of 95 % the number of distinct
        hashes is no further away.

        The standard errors are those of Whang et al. for `NUM_BITS` bits, and of `NUM_SMALLEST`
        order statistics.
        """
        estimate = self.estimate()
        if not estimate:
            return 0.0
        if len(self.smallest) >= NUM_SMALLEST and estimate > 4 * NUM_BITS:
            return float(Z_95 / np.sqrt(NUM_SMALLEST - 2))
        load = estimate / NUM_BITS
        # Of few values none may share a bit, but one value more or less is never excluded.
        return float(
            max(Z_95 * np.sqrt(np.expm1(load) - load) / (load * np.sqrt(NUM_BITS)), 1 / estimate)
        )

    @property
    def bound(self) -> int:
        """All hashes below it are among `smallest`."""
        return int(self._bound()) + (len(self.smallest) >= NUM_SMALLEST)

    def _bound(self) -> np.int64:
        return _FIRST_BOUND if len(self.smallest) < NUM_SMALLEST else self.smallest[-1]

    def _keep(self, hashes: Integers) -> None:
        # np.unique uses a hash table, and takes twice the time.
        both = np.sort(np.concatenate([self.smallest, hashes]))
        self.smallest = both[are_first(both)][:NUM_SMALLEST]


@dataclass(eq=False)
class Collisions:
    """Finds signs that more than one value has. Each sign comes with a *witness*, another hash of
    the same value; two values with one sign have different witnesses.

    All pairs of one update are compared with each other. Between updates, and between files, only
    the smallest signs are compared. Two values that agree in both hashes (a chance of 2^-126 per
    pair) count as one.

    Attributes:
        signs: The smallest distinct signs, int64, at most `NUM_CHECKED`.
        witnesses: Their witnesses.
        collided: The signs with more than one value, the smallest `NUM_COLLIDED` of them.
    """

    signs: Integers = field(default_factory=no_integers)
    witnesses: Integers = field(default_factory=no_integers)
    collided: Integers = field(default_factory=no_integers)

    def update(self, signs: Integers, witnesses: Integers) -> int:
        """Adds the signs and witnesses of some values, which may repeat.

        Returns:
            The number of distinct signs among those given.
        """
        num_before = len(self.signs)
        if num_before:
            signs = np.concatenate([self.signs, signs])
            witnesses = np.concatenate([self.witnesses, witnesses])
        order = signs.argsort()
        ordered, others = signs[order], witnesses[order]
        is_first = are_first(ordered)
        collided = ordered[1:][~is_first[1:] & (others[1:] != others[:-1])]
        if len(collided):
            # Of equal signs the first, such as one kept before, stays with its witness. A stable
            # sort takes thrice the time.
            order = signs.argsort(kind="stable")
            others = witnesses[order]
        first = is_first.nonzero()[0]
        num_new = int(np.unique(signs[num_before:]).size) if num_before else len(first)
        first = first[:NUM_CHECKED]
        self.signs, self.witnesses = ordered[first], others[first]
        if len(collided):
            self.collided = np.union1d(self.collided, collided)[:NUM_COLLIDED]
        return num_new

    def shorten(self, num_kept: int) -> None:
        """Keeps the smallest signs only, with their witnesses."""
        self.signs, self.witnesses = self.signs[:num_kept], self.witnesses[:num_kept]

    def merge(self, other: "Collisions") -> None:
        """Adds the signs of another sketch."""
        self.update(other.signs, other.witnesses)
        self.collided = np.union1d(self.collided, other.collided)[:NUM_COLLIDED]


def points_of(
    values: Floats, weights: Floats, num_points: int = NUM_POINTS
) -> tuple[Floats, Floats]:
    """Reduces weighted values to at most `num_points`, at equal steps of the cumulative weight.

    The rank of any value changes by at most half a step, 1 / (2 * `num_points`) of the total
    weight.

    Args:
        values: float64 (num_values,), in any order.
        weights: float64 (num_values,).
        num_points: The most values to keep.

    Returns:
        The values, ascending, and their weights, which have the same total.
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    if len(values) <= num_points:
        return values, weights
    ends = np.cumsum(weights)
    middles = (np.arange(num_points) + 0.5) * (ends[-1] / num_points)
    return values[np.searchsorted(ends, middles)], np.full(num_points, ends[-1] / num_points)


def quantiles_of(values: Floats, weights: Floats, shares: tuple[float, ...]) -> list[float] | None:
    """The quantiles of weighted values at these shares of the total weight; None if there are no
    values.
    """
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    indices = np.searchsorted(ends, np.array(shares) * ends[-1]).clip(max=len(values) - 1)
    return [float(value) for value in values[order][indices]]


@dataclass(frozen=True, kw_only=True)
class Top:
    """The most frequent ids of some rows, with what bounds the errors of their counts.

    A summary that drops the rare values and remembers how much they can have counted merges in any
    order (P. K. Agarwal et al., "Mergeable summaries", PODS 2012).

    Attributes:
        values: The ids, int64 (num,), in descending order of their counts, equal counts ascending.
        counts: Their counts, float64 (num,); estimates if rows were sampled.
        unlisted: The most that an id which is not listed can have counted, sampling aside.
        missed: The most that the counts of listed ids can be too low, sampling aside.
        sampled: As `ColumnStatistics.sampled`, of these counts.
    """

    values: Integers = field(default_factory=no_integers)
    counts: Floats = field(default_factory=no_floats)
    unlisted: float = 0.0
    missed: float = 0.0
    sampled: float = 0.0

    @classmethod
    def of_counts(cls, counts: ValueCounts, weight: float = 1.0, sampled: float = 0.0) -> "Top":
        """The top values of counts, each of which stands for `weight` as many.

        Where most values occur once, only those that occur more often are listed, or the first
        `MIN_KEPT`.
        """
        repeated = int(np.count_nonzero(counts.counts > 1))
        mostly_once = 2 * len(counts) > int(counts.counts.sum())
        kept = min(NUM_TOP, max(MIN_KEPT, repeated)) if mostly_once else NUM_TOP
        # One more than is kept: the most frequent of those that are not.
        top = most_frequent(counts, kept + 1)
        return cls(
            values=top.values[:kept],
            counts=top.counts[:kept].astype(np.float64) * weight,
            unlisted=float(top.counts[kept] * weight) if len(top) > kept else 0.0,
            sampled=sampled,
        )

    def merge(self, other: "Top") -> "Top":
        """The top values of both."""
        distinct, inverse = np.unique(
            np.concatenate([self.values, other.values]), return_inverse=True
        )
        weights = np.concatenate([self.counts, other.counts])
        totals = np.bincount(inverse, weights=weights, minlength=len(distinct)).astype(np.float64)
        order = np.lexsort((distinct, -totals))
        # An id that only one side lists may have counted up to `unlisted` on the other.
        missed = self.missed + other.missed
        missed = max(missed, self.missed + other.unlisted, self.unlisted + other.missed)
        unlisted = self.unlisted + other.unlisted
        if len(order) > NUM_TOP:
            unlisted = max(unlisted, float(totals[order[NUM_TOP]]) + missed)
        order = order[:NUM_TOP]
        return Top(
            values=distinct[order],
            counts=totals[order],
            unlisted=unlisted,
            missed=missed,
            sampled=self.sampled + other.sampled,
        )

    def count_errors(self, num_rows: int) -> Floats:
        """The errors of the counts, float64 (num,): with a probability of 95 % the true count of an
        id is no further away. 0 where counts are exact.

        For lists, an id is taken to be at most once in a row.

        Args:
            num_rows: The number of all rows.
        """
        shares = np.minimum(self.counts / max(num_rows, 1), 1.0)
        return Z_95 * np.sqrt(self.sampled * shares * (1.0 - shares)) + self.missed


# The least number of rows sampled from a larger file. More rows make quantiles and top values more
# precise, and gathering slower.
SAMPLE_ROWS = 2_048
_ALL = 1 << 63  # above every 63-bit hash


class RowSample:
    """A sample of between `SAMPLE_ROWS` and twice as many rows, or of all rows if there are fewer.

    It holds the rows whose hash is below a bound, which is halved whenever the sample is too large.

    Attributes:
        batches: The sampled rows.
        num_rows_seen: The number of rows passed to `update`.
    """

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.num_rows_seen = 0
        self._hashes: list[Integers] = []
        self._bound = _ALL

    def update(self, batch: pa.RecordBatch) -> None:
        """Samples the next rows."""
        first = self.num_rows_seen + 1
        self.num_rows_seen += batch.num_rows
        hashes = mix(np.arange(first, self.num_rows_seen + 1, dtype=np.int64))
        all_hashes = [*self._hashes, hashes]
        before = self._bound
        while sum(int(np.count_nonzero(h < self._bound)) for h in all_hashes) > 2 * SAMPLE_ROWS:
            self._bound //= 2
        pairs = list(zip([*self.batches, batch], all_hashes, strict=True))
        # Unless the bound has changed, the earlier batches are sampled already.
        num_done = len(pairs) - 1 if self._bound == before else 0
        drawn = [_below(rows, of_rows, self._bound) for rows, of_rows in pairs[num_done:]]
        self.batches, self._hashes = map(list, zip(*pairs[:num_done], *drawn, strict=True))


def _below(batch: pa.RecordBatch, hashes: Integers, bound: int) -> tuple[pa.RecordBatch, Integers]:
    """The rows whose hashes are below the bound, and these hashes."""
    if bound >= _ALL:
        return batch, hashes
    kept = np.flatnonzero(hashes < bound)
    # `pa.array` of a numpy array would import pandas.
    indices = pa.Array.from_buffers(pa.int64(), len(kept), [None, pa.py_buffer(kept)])
    return batch.take(indices), hashes[kept]
