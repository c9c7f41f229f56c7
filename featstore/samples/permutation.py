"""Orders that are computed index by index and never held in memory: permutations of all rows, or of
a few row groups at a time, and draws in which each row comes as often as its weight says.

`Permutation` is a Feistel network whose halves are the digits of an index in two nearly equal
bases, with cycle walking: the generalized Feistel cipher and the cycle-walking cipher of J. Black
and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002. The round function is the
finalizer of SplitMix64 (`base/splitmix.py`) of the other half plus the round's key. It scatters
rows; it is no cipher to keep secrets.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from featstore.base.errors import ConfigError
from featstore.base.processes import cached_property
from featstore.base.splitmix import UNIFORM_SHIFT, CumulativeWeights, keys, mixed, words
from featstore.samples.indices import Array

MOST_ROWS = 1 << 40
# With 10 rounds the 720 orders of 6 rows are not equally frequent, as 20,000 seeds show; with 16
# they are (docs/design/orders.md).
_ROUNDS, _ROUNDS_OF_FEW, _FEW_ROWS = 10, 24, 1 << 16
_BLOCK_ROWS = 1 << 14  # Intermediate arrays of this size stay in the cache of a core.
_U32 = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class Permutation:
    """A permutation of the integers from 0 up to `num_rows`, chosen by `key`.

    Attributes:
        num_rows: How many integers, at most 2^40.
        key: What the choice depends on, as text.
    """

    num_rows: int
    key: str

    def at(self, positions: Array) -> Array:
        """The images of positions: int64 of the same shape (num_positions,)."""
        images = np.empty(len(positions), np.int64)
        for first in range(0, len(positions), _BLOCK_ROWS):
            block = positions[first : first + _BLOCK_ROWS].astype(np.uint64)
            images[first : first + _BLOCK_ROWS] = self._walked(block).view(np.int64)
        return images

    def _walked(self, values: Array) -> Array:
        """Applies the network until every value is a row: a cycle of the network's permutation
        leads from each row to the next row on it, which keeps it a permutation of rows.
        """
        values = self._network(values)
        outside = np.flatnonzero(values >= self.num_rows)
        while outside.size:
            values[outside] = again = self._network(values[outside])
            outside = outside[again >= self.num_rows]
        return values

    def _network(self, values: Array) -> Array:
        left_base, right_base = self._bases
        left = values // right_base
        right = values - left * right_base
        for index in range(0, len(self._round_keys), 2):
            left = _shifted(left, mixed(right + self._round_keys[index]), left_base)
            right = _shifted(right, mixed(left + self._round_keys[index + 1]), right_base)
        moved: Array = left * right_base + right
        return moved

    @cached_property
    def _bases(self) -> tuple[np.uint64, np.uint64]:
        """Two nearly equal bases whose product is `num_rows` or a little more."""
        left = math.isqrt(max(self.num_rows - 1, 0)) + 1
        return np.uint64(left), np.uint64(-(-self.num_rows // left) or 1)

    @cached_property
    def _round_keys(self) -> Array:
        return keys(self.key, _ROUNDS_OF_FEW if self.num_rows < _FEW_ROWS else _ROUNDS)


def _shifted(half: Array, bits: Array, base: np.uint64) -> Array:
    """`half` plus a number below `base` that `bits` choose, modulo `base`, which is below 2^32."""
    half = half + ((bits >> _U32) * base >> _U32)
    # Where `half` is below `base` the difference wraps around to a huge number.
    return np.minimum(half, half - base)


@dataclass(frozen=True, kw_only=True)
class WindowedPermutation:
    """An order for tables that are larger than the disk, or than what is worth caching.

    The row groups are put into a random order and divided into windows of `window_groups` of them.
    All rows of a window come in random order before the first row of the next window.

    Attributes:
        group_rows: The rows of each row group, in the order of the table's rows: int64.
        window_groups: How many row groups are read at a time.
        key: What the order depends on, as text.
    """

    group_rows: Array
    window_groups: int
    key: str

    def at(self, positions: Array) -> Array:
        """The rows at positions: int64 of the same shape (num_positions,)."""
        # The window of a position is that of its row group.
        windows = np.searchsorted(self._ends, positions, side="right") // self.window_groups
        rows = np.empty(len(positions), np.int64)
        for window in np.unique(windows):
            chosen = windows == window
            first = window * self.window_groups
            members = self._groups[first : first + self.window_groups]
            sizes = self.group_rows[members]
            inner = Permutation(num_rows=int(sizes.sum()), key=f"{self.key} window {window}")
            offsets = inner.at(positions[chosen] - (self._ends[first] - sizes[0]))
            rows[chosen] = self._rows_at(members, offsets)
        return rows

    def _rows_at(self, members: Array, offsets: Array) -> Array:
        """The table's rows at offsets into the row groups `members`, laid end to end."""
        sizes = self.group_rows[members]
        ends = np.cumsum(sizes)
        place = np.searchsorted(ends, offsets, side="right")
        within = offsets - (ends - sizes)[place]
        rows: Array = self._first_rows[members[place]] + within
        return rows

    @cached_property
    def _groups(self) -> Array:
        """The row groups in the order in which they are read."""
        num_groups = len(self.group_rows)
        return Permutation(num_rows=num_groups, key=f"{self.key} groups").at(np.arange(num_groups))

    @cached_property
    def _ends(self) -> Array:
        """The positions at which the row groups end, in the order in which they are read."""
        return np.cumsum(self.group_rows[self._groups])

    @cached_property
    def _first_rows(self) -> Array:
        return np.cumsum(self.group_rows) - self.group_rows


def rows_of_groups(row_groups: Any) -> Array:
    """The rows of each row group as int64 (num_groups,).

    Raises:
        ConfigError: There is no row group, or a number is not an integer of at least 0.
    """
    given = np.asarray(row_groups)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu" or (given < 0).any():
        raise ConfigError(
            "row_groups: expected the number of rows of each row group, as integers of at "
            f"least 0, found {row_groups!r:.80}"
        )
    return given.astype(np.int64)


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
        return self.weights.rows_of(words(keys(self.key, 1), positions) >> UNIFORM_SHIFT)
