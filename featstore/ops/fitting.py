"""What a first pass collects from a column to fit an operator's constants.

A state is immutable: `add` returns one that includes a batch's values, `merge` one that includes
another state's. The fitted constants depend only on the set of rows, not on their order or on how
they are split into batches, threads or partitions. Memory does not grow with the number of rows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]

# Rows in a sample. The standard deviation of a boundary's rank falls with the root of it, and a
# state is 16 bytes a row (1 MiB): see `QuantileSample`.
MAX_SAMPLE = 65_536
# The smallest float64 is 2**-1074. frexp gives it a fraction of 1/2 and so, as a 53-bit mantissa, a
# unit of 2**-1126: every float64 is an integer times 2**-1126.
_OFFSET = 1126
# Mantissas are split into two halves of this many bits, so that products of halves fit in int64.
_HALF_BITS = 27


class State(Protocol):
    """Collected from some rows of one column.

    Attributes:
        num_values: The number of values seen.
    """

    @property
    def num_values(self) -> int: ...

    def add(self, values: Floats, keys: Keys) -> Self:
        """The state that includes a batch.

        Args:
            values: float64 `(num_values,)`, all finite.
            keys: uint64 `(num_values,)`, a hash of file and row for each value.
        """

    def merge(self, other: Self) -> Self:
        """The state that includes the rows of both."""

    def fit(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The constants, as JSON types.

        Args:
            params: The params of the node, in canonical form.

        Raises:
            ValueError: These values determine no constants.
        """


@dataclass(frozen=True, kw_only=True)
class QuantileSample:
    """The rows with the smallest keys, at most `MAX_SAMPLE`. Fits `boundaries`.

    All rows are kept where there are no more than that. Otherwise the rows are a random sample
    without replacement, since keys are hashes: the share of rows below a boundary has a standard
    deviation of at most 0.2 percentage points (0.5 / sqrt(65,536)).

    Attributes:
        num_values: The number of values seen.
        values: float64 `(num_kept,)`, in the order of the keys.
        keys: uint64 `(num_kept,)`, ascending.
    """

    num_values: int = 0
    values: Floats = field(default_factory=lambda: np.empty(0))
    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))

    def add(self, values: Floats, keys: Keys) -> "QuantileSample":
        return self._with(values, keys, len(values))

    def merge(self, other: "QuantileSample") -> "QuantileSample":
        return self._with(other.values, other.keys, other.num_values)

    def _with(self, values: Floats, keys: Keys, num_values: int) -> "QuantileSample":
        if len(self.keys) == MAX_SAMPLE:
            # Most rows of a later batch have keys above all that are kept: they need no sorting.
            is_candidate = keys <= self.keys[-1]
            values, keys = values[is_candidate], keys[is_candidate]
        all_values, all_keys = (
            np.concatenate([self.values, values]),
            np.concatenate([self.keys, keys]),
        )
        # By key, then by value: rows of equal keys must not depend on the order of batches.
        chosen = np.lexsort((all_values, all_keys))[:MAX_SAMPLE]
        return QuantileSample(
            num_values=self.num_values + num_values,
            values=all_values[chosen],
            keys=all_keys[chosen],
        )

    def fit(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """`boundaries`: the sorted values at positions `len * i // num_buckets`, each once.

        `i` runs from 1 to `num_buckets - 1`.
        """
        _check_any(self.num_values)
        ordered, num_buckets = np.sort(self.values), params["num_buckets"]
        at = np.arange(1, num_buckets) * len(ordered) // num_buckets
        return {"boundaries": np.unique(ordered[at]).tolist()}


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Exact sums of values and of their squares. Fits `mean` and `stddev`.

    Sums of floats depend on the order of the rows; sums of integers do not.

    Attributes:
        num_values: The number of values seen.
        total: The sum of the values, in units of 2**-1126.
        squares: The sum of their squares, in units of 2**-2252.
    """

    num_values: int = 0
    total: int = 0
    squares: int = 0

    def add(self, values: Floats, keys: Keys) -> "Moments":
        fractions, exponents = np.frexp(values)
        mantissas = np.ldexp(fractions, 53).astype(np.int64)
        # (high * 2**27 + low)**2 = high**2 * 2**54 + high * low * 2**28 + low**2
        high, low = mantissas >> _HALF_BITS, mantissas & (2**_HALF_BITS - 1)
        shifts = exponents.astype(np.int64) - 53 + _OFFSET
        crossed = _sum(high * low, 2 * shifts) << (_HALF_BITS + 1)
        squares = (
            (_sum(high * high, 2 * shifts) << 2 * _HALF_BITS)
            + crossed
            + _sum(low * low, 2 * shifts)
        )
        return self.merge(
            Moments(num_values=len(values), total=_sum(mantissas, shifts), squares=squares)
        )

    def merge(self, other: "Moments") -> "Moments":
        return Moments(
            num_values=self.num_values + other.num_values,
            total=self.total + other.total,
            squares=self.squares + other.squares,
        )

    def fit(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """`mean` and `stddev` (of the population), rounded once."""
        _check_any(self.num_values)
        mean = Fraction(self.total, self.num_values << _OFFSET)
        variance = Fraction(
            self.squares * self.num_values - self.total**2, self.num_values**2 << 2 * _OFFSET
        )
        stddev = _root(variance)
        if stddev == 0:
            raise ValueError(f"expected values that differ, found only {float(mean)!r}")
        return {"mean": float(mean), "stddev": stddev}


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """The smallest and the largest value. Fits `min` and `max`."""

    num_values: int = 0
    min: float = math.inf
    max: float = -math.inf

    def add(self, values: Floats, keys: Keys) -> "ValueRange":
        low, high = values.min(initial=math.inf), values.max(initial=-math.inf)
        return self.merge(ValueRange(num_values=len(values), min=float(low), max=float(high)))

    def merge(self, other: "ValueRange") -> "ValueRange":
        return ValueRange(
            num_values=self.num_values + other.num_values,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
        )

    def fit(self, params: Mapping[str, Any]) -> dict[str, Any]:
        _check_any(self.num_values)
        if self.min == self.max:
            raise ValueError(f"expected values that differ, found only {self.min!r}")
        if math.isinf(self.max - self.min):
            raise ValueError(f"expected a range within float64, found {self.min!r} to {self.max!r}")
        return {"min": self.min, "max": self.max}


STATES: Mapping[str, Callable[[], State]] = {
    "quantile_bucketize": QuantileSample,
    "standardize": Moments,
    "min_max": ValueRange,
}


def _check_any(num_values: int) -> None:
    if not num_values:
        raise ValueError("expected a value that is not missing, found none")


def _sum(integers: NDArray[np.int64], shifts: NDArray[np.int64]) -> int:
    """The exact sum of `integers[i] << shifts[i]`, for up to 2**25 values."""
    # `bincount` adds in float64, which is exact below 2**53: 27-bit halves leave room for 2**25.
    high, low = integers >> _HALF_BITS, integers & (2**_HALF_BITS - 1)
    highs, lows = np.bincount(shifts, high), np.bincount(shifts, low)
    used = np.flatnonzero((highs != 0) | (lows != 0))
    return sum(
        ((int(highs[shift]) << _HALF_BITS) + int(lows[shift])) << int(shift) for shift in used
    )


def _root(square: Fraction) -> float:
    """The square root, computed to at least 64 bits and rounded to float64 once.

    float64 may hold the root where it cannot hold the square, so the square is never rounded.
    """
    if not square:
        return 0.0
    shift = max(0, 64 + (square.denominator.bit_length() - square.numerator.bit_length() + 1) // 2)
    return float(
        Fraction(math.isqrt((square.numerator << 2 * shift) // square.denominator), 1 << shift)
    )
