"""Rows drawn with replacement, each as often as its weight says."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from featstore.base.errors import ConfigError
from featstore.samples.indices import Array
from featstore.samples.permutation import keys, mixed

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # The increment of SplitMix64: 2^64 / golden ratio, odd.
_NUM_BITS = 53


class CumulativeWeights:
    """The sums of weights up to and with each row, as parts of the sum of all, and where to begin
    a search in them.

    A search is an indexed one (H. Chen, Y. Asau, "On Generating Random Variates from an Empirical
    Distribution", AIIE Transactions 6, 1974): the range of sums is divided into equal parts, one
    for 8 to 16 rows, and the first row of each part is kept. A binary search in a part takes a
    fraction of the cache misses of one over all rows. Rows take 9 bytes each.

    Args:
        weights: A number for each row.

    Raises:
        ConfigError: The weights are not numbers of at least 0, or none is above 0.
    """

    def __init__(self, weights: Any) -> None:
        self.sums = _sums(weights)
        num_parts_log2 = max(0, len(self.sums).bit_length() - 4)
        self._shift = np.uint64(_NUM_BITS - num_parts_log2)
        begins = np.arange((1 << num_parts_log2) + 1, dtype=np.uint64) << self._shift
        self._firsts = np.searchsorted(self.sums, begins * 2.0**-_NUM_BITS, side="right")

    def rows_of(self, bits: Array) -> Array:
        """The rows of uniform numbers: int64 (num_numbers,).

        Args:
            bits: The numbers in units of 2^-53: uint64 below 2^53, so that they are below 1.

        Returns:
            For each the first row whose sum is above it.
        """
        wanted = bits * 2.0**-_NUM_BITS  # exact
        parts = (bits >> self._shift).astype(np.int64)
        low, high = self._firsts[parts], self._firsts[parts + 1]
        while (is_open := low < high).any():
            middle = (low + high) >> 1
            is_above = is_open & (self.sums[np.minimum(middle, len(self.sums) - 1)] > wanted)
            low = np.where(is_open & ~is_above, middle + 1, low)
            high = np.where(is_above, middle, high)
        return low


@dataclass(frozen=True, kw_only=True)
class WeightedDraws:
    """Draws of rows. Draw i is a pure function of the weights, the key and i, so any draw can be
    repeated without those before it.

    A draw is a uniform number below 1; its row is the first one whose cumulative weight, as a part
    of all weights, is above it. The numbers are those of SplitMix64 (see `permutation`), whose
    i-th output needs no state.

    Attributes:
        weights: The cumulative weights.
        key: What the draws depend on, as text.
    """

    weights: CumulativeWeights
    key: str

    def at(self, positions: Array) -> Array:
        """The rows of draws: int64 of the same shape (num_positions,)."""
        bits = mixed(self._key + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA)
        return self.weights.rows_of(bits >> np.uint64(64 - _NUM_BITS))

    @cached_property
    def _key(self) -> Array:
        return keys(self.key, 1)


def _sums(weights: Any) -> Array:
    """The sums of weights up to and with each row, divided by the last: float64 (num_rows,)."""
    given = np.asarray(weights)
    if given.ndim != 1 or given.dtype.kind not in "uif":
        raise ConfigError(
            f"weights: expected one number for each row, found {given.ndim} dimensions of "
            f"{given.dtype}"
        )
    wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if wrong.size:
        raise ConfigError(
            f"weights[{wrong[0]}]: expected a finite number of at least 0, found {given[wrong[0]]}"
        )
    cumulative: Array = np.cumsum(given, dtype=np.float64)
    if not given.any() or not np.isfinite(cumulative[-1]):
        raise ConfigError("weights: expected a sum above 0 that a float64 can hold")
    cumulative /= cumulative[-1]
    return cumulative
