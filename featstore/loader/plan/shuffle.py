"""Windows of row groups, and the order of rows in a window.

The stream of a split's rows is a pure function of the seed, the epoch, the split's position in the
plan and the options here. So a worker that takes a split over at any row of its stream delivers the
same rows from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from featstore.dispatch.plan import Split
from featstore.errors import require_integer
from featstore.reading.buffers import Array


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """How rows are shuffled. Splits come in a seeded order in any case.

    Attributes:
        window_rows: Rows are permuted within windows of consecutive row groups of one split. A
            window is as few row groups as hold this many rows.
        interleave: This many splits are open at once, and give a window each in turn.

    Raises:
        ConfigError: A value is not an integer of 1 or more.
    """

    window_rows: int = 100_000
    interleave: int = 1

    def __post_init__(self) -> None:
        require_integer("shuffle.window_rows", self.window_rows)
        require_integer("shuffle.interleave", self.interleave)


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """Everything that the order of a split's rows depends on."""

    seed: int
    epoch: int
    shuffle: Shuffle | None

    @property
    def window_rows(self) -> int | None:
        return self.shuffle.window_rows if self.shuffle else None

    @property
    def interleave(self) -> int:
        return self.shuffle.interleave if self.shuffle else 1

    def permutation(self, num_rows: int, split_index: int, window: int) -> Array | None:
        """The order of rows in a window: int64 (num_rows,), or None for the order in the file."""
        if self.shuffle is None:
            return None
        return permutation(num_rows, self.seed, self.epoch, split_index, window)


def split_windows(
    split: Split, row_group_rows: Sequence[int], window_rows: int | None
) -> list[range]:
    """The windows of a split, as ranges of its file's row groups."""
    first = split.first_row_group
    end = len(row_group_rows) if split.last_row_group is None else split.last_row_group + 1
    cuts = windows(row_group_rows[first:end], window_rows)
    return [range(cut.start + first, cut.stop + first) for cut in cuts]


def split_boundaries(
    split: Split, row_group_rows: Sequence[int], window_rows: int | None
) -> list[int]:
    """The rows of a split's stream at which another worker may take it over: between windows.

    Args:
        split: The split.
        row_group_rows: Rows of each row group of its file.
        window_rows: As in `Shuffle`; None without shuffling.
    """
    cuts = split_windows(split, row_group_rows, window_rows)
    return list(accumulate(sum(row_group_rows[cut.start : cut.stop]) for cut in cuts))[:-1]


def windows(row_group_rows: Sequence[int], window_rows: int | None) -> list[range]:
    """Windows as ranges of row-group indices. Without shuffling (None) each row group is one."""
    if window_rows is None:
        return [range(i, i + 1) for i in range(len(row_group_rows))]
    cuts, first, rows = [], 0, 0
    for index, num_rows in enumerate(row_group_rows):
        rows += num_rows
        if rows >= window_rows:
            cuts.append(range(first, index + 1))
            first, rows = index + 1, 0
    if first < len(row_group_rows):
        cuts.append(range(first, len(row_group_rows)))
    return cuts


def permutation(num_rows: int, *key: int) -> Array:
    """The order of a window's rows: int64 (num_rows,).

    Sorts the raw output of Philox, which numpy promises never to change. `Generator.permutation`
    comes without that promise, and a saved state would lose its meaning with a new numpy.

    Args:
        num_rows: Rows of the window.
        key: Seed, epoch, split and window.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(num_rows)
    # With the row number in the lowest bits, one sort of the keys gives the order, several times as
    # fast as argsort. The result is the same if the bits above the row number are all different.
    shift = np.uint64(num_rows.bit_length())
    keys = bits >> shift << shift | np.arange(num_rows, dtype=np.uint64)
    keys.sort()
    above = keys >> shift
    if (above[1:] == above[:-1]).any():
        return np.argsort(bits, kind="stable")
    order: Array = (keys - (above << shift)).view(np.int64)
    return order
