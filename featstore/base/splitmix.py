"""The finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), over arrays, and draws by weight from its words. `dispatch/plan.py` has
it over single integers.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featstore.base.errors import ConfigError

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # The increment of SplitMix64: 2^64 / golden ratio, odd.
_NUM_BITS = 53
# Leaves of a word the 53 bits of a uniform number.
UNIFORM_SHIFT = np.uint64(64 - _NUM_BITS)


def mixed(values: NDArray[Any]) -> NDArray[Any]:
    """A bijection of 64-bit words that scatters them: uint64 of the same shape."""
    # Two multiplications with xor-shifts before them, after which each bit depends on all.
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    result: NDArray[Any] = values ^ values >> np.uint64(31)
    return result


def keys(text: str, num_keys: int) -> NDArray[Any]:
    """Keys that follow from a text, unrelated to those of any other text: uint64 (num_keys,)."""
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * num_keys), "<u8")


def words(key: NDArray[Any], positions: NDArray[Any]) -> NDArray[Any]:
    """Outputs of SplitMix64 that was seeded with `key`, at positions from 0: uint64 of the shape to
    which both are broadcast.
    """
    return mixed(key + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA)


class CumulativeWeights:
    """The sums of weights up to and with each row, as parts of the sum of all, and where to begin
    a search in them.

    A search is an indexed one (H. Chen, Y. Asau, "On Generating Random Variates from an Empirical
    Distribution", AIIE Transactions 6, 1974): the range of sums is divided into equal parts, one
    for 8 to 16 rows, and the first row of each part is kept. A binary search in a part takes a
    fraction of the cache misses of one over all rows. Rows take 9 bytes each.

    Args:
        weights: A number for each row.
        what: What they are, for errors.

    Raises:
        ConfigError: The weights are not numbers of at least 0, or none is above 0.
    """

    def __init__(self, weights: Any, what: str = "weights") -> None:
        self.sums = _sums(weights, what)
        num_parts_log2 = max(0, len(self.sums).bit_length() - 4)
        self._shift = np.uint64(_NUM_BITS - num_parts_log2)
        begins = np.arange((1 << num_parts_log2) + 1, dtype=np.uint64) << self._shift
        self._firsts = np.searchsorted(self.sums, begins * 2.0**-_NUM_BITS, side="right")

    @property
    def num_bytes(self) -> int:
        """The memory that they take."""
        return int(self.sums.nbytes + self._firsts.nbytes)

    def rows_of(self, bits: NDArray[Any]) -> NDArray[Any]:
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

    def intervals(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The uniform numbers that give each row, as of `rows_of`: the first one, and the one after
        the last, int64 (num_rows,). Where none does both are equal.
        """
        sums = np.stack([np.where(rows > 0, self.sums[rows - 1], 0), self.sums[rows]])
        firsts, ends = np.ceil(sums * 2.0**_NUM_BITS).astype(np.int64)
        return firsts, ends


def _sums(weights: Any, what: str) -> NDArray[Any]:
    """The sums of weights up to and with each row, divided by the last: float64 (num_rows,)."""
    given = np.asarray(weights)
    if given.ndim != 1 or given.dtype.kind not in "uif":
        raise ConfigError(
            f"{what}: expected one number for each row, found {given.ndim} dimensions of "
            f"{given.dtype}"
        )
    wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if wrong.size:
        raise ConfigError(
            f"{what}[{wrong[0]}]: expected a finite number of at least 0, found {given[wrong[0]]}"
        )
    cumulative: NDArray[Any] = np.cumsum(given, dtype=np.float64)
    if not given.any() or not np.isfinite(cumulative[-1]):
        raise ConfigError(f"{what}: expected a sum above 0 that a float64 can hold")
    cumulative /= cumulative[-1]
    return cumulative
