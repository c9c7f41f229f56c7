"""All rows of a table once, a few of its row groups at a time."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from featstore.base.errors import ConfigError
from featstore.samples.indices import Array
from featstore.samples.permutation import Permutation


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
