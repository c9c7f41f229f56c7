"""Windows of row groups, the order of rows in a window, and how the rows of several splits are
mixed.

The stream of a split's rows is a pure function of the seed, the epoch, the split's position in the
plan and the options here. So a worker that takes a split over at any row of its stream delivers the
same rows from there. From which of the open splits the next row comes is a pure function of the
seed, the epoch and the positions in their streams. So a loader that resumes at any row mixes the
rest as if it had not stopped.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from featstore.base.errors import ConfigError, require_integer
from featstore.base.processes import cached_property
from featstore.dispatch.plan import Split
from featstore.native import kernels
from featstore.reading.buffers import Array

MOST_SHARES = 1 << 16  # Of a mixture: draws are uint16.
_MOST_SPLITS = MOST_SHARES // 2  # Of each open split there may be two windows in a mixture.


class Drawn(NamedTuple):
    """What `RowOrder.draw` drew.

    Attributes:
        num_rows: How many rows.
        num_shares: How many shares there are now.
        ended: Which of the splits has no rows left in its window; -1: each has some.
    """

    num_rows: int
    num_shares: int
    ended: int


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """How rows are shuffled. Splits come in a seeded order.

    Each split's rows are permuted within windows of its consecutive row groups. Several splits are
    open at once, each with one window in memory, and every row is drawn from one of them, in
    proportion to the splits' rows.

    Attributes:
        window_rows: Rows in memory, in the windows of all open splits together. A window is as few
            row groups as hold the split's part of them.
        interleave: How many splits are open at once, at most: as many as make all rounds of an
            epoch equally wide.
        within: A partition key. The splits of one of its values come before those of the next one,
            and rows of different values are not mixed. None: all splits are.

    Raises:
        ConfigError: A number is not an integer of 1 or more, `interleave` is above 32,768, or
            `within` is no name.
    """

    window_rows: int = 100_000
    interleave: int = 12
    within: str | None = None

    def __post_init__(self) -> None:
        require_integer("shuffle.window_rows", self.window_rows)
        require_integer("shuffle.interleave", self.interleave)
        if self.interleave > _MOST_SPLITS:
            raise ConfigError(
                f"shuffle.interleave: expected at most {_MOST_SPLITS}, found {self.interleave}"
            )

        if self.within is not None and not isinstance(self.within, str):
            raise ConfigError(
                f"shuffle.within: expected the name of a partition key, found {self.within!r}"
            )

    @property
    def split_window_rows(self) -> int:
        """The rows of a window of one split."""
        return max(1, self.window_rows // self.interleave)


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """Everything that the order of a split's rows depends on."""

    seed: int
    epoch: int
    shuffle: Shuffle | None

    @property
    def window_rows(self) -> int | None:
        """The rows of a window of one split; None without shuffling."""
        return self.shuffle.split_window_rows if self.shuffle else None

    def permutation(self, num_rows: int, split_index: int, window: int) -> Array | None:
        """The order of rows in a window: int64 (num_rows,), or None for the order in the file."""
        if self.shuffle is None:
            return None
        return permutation(num_rows, self.seed, self.epoch, split_index, window)

    def draw(self, streams: "array[int]", draws: Array, shares: Array, num_shares: int) -> Drawn:
        """Draws the next rows of the open splits until the window of one of them ends, or there is
        no room.

        Rows are drawn in rounds of 256. In each round every split has its share of the rows, and
        they come in a random order. So splits that are opened together end together.

        Args:
            streams: The open splits, as of `kernels.draw_rows`.
            draws: uint16 (num_rows,), written, as of `Mixture`.
            shares: int64 (num_shares, 2), written, as of `kernels.draw_rows`.
            num_shares: How many shares there are already.
        """
        return Drawn(*kernels.draw_rows(self._words, streams, draws, shares, num_shares))

    @cached_property
    def _words(self) -> bytes:
        return _words(self.seed, self.epoch)


def round_size(place: int, num_splits: int, width: int) -> int:
    """How many splits are open at once, of which one is that at `place` of its section: as few
    rounds as there can be, of equal size give or take one. Of ten splits five and five are open
    where eight could be, not eight and then two, which would be the last that a model sees.

    Args:
        place: The split's place in its section.
        num_splits: How many splits the section has.
        width: How many may be open at once.
    """
    num_rounds = -(-num_splits // width)
    number = place * num_rounds // num_splits
    first, end = (-(-num_splits * at // num_rounds) for at in (number, number + 1))
    return end - first


def split_windows(
    split: Split, row_group_rows: Sequence[int], window_rows: int | None
) -> list[range]:
    """The windows of a split, as ranges of its file's row groups."""
    first = split.first_row_group
    end = len(row_group_rows) if split.last_row_group is None else split.last_row_group + 1
    cuts = windows(row_group_rows[first:end], window_rows)
    return [range(cut.start + first, cut.stop + first) for cut in cuts]


def windows(row_group_rows: Sequence[int], window_rows: int | None) -> list[range]:
    """Windows as ranges of row-group indices. Without shuffling (None) each row group is one."""
    cuts, first, rows = [], 0, 0
    for index, num_rows in enumerate(row_group_rows):
        rows += num_rows
        if rows >= (window_rows or 0):
            cuts.append(range(first, index + 1))
            first, rows = index + 1, 0
    if first < len(row_group_rows):
        cuts.append(range(first, len(row_group_rows)))
    return cuts


def permutation(num_rows: int, *key: int) -> Array:
    """The order of a window's rows: int64 (num_rows,).

    That of the raw output of Philox, which numpy promises never to change. `Generator.permutation`
    comes without that promise, and a saved state would lose its meaning with a new numpy.

    Args:
        num_rows: Rows of the window.
        key: Seed, epoch, split and window.
    """
    order = np.empty(num_rows, np.int64)
    kernels.permute(_words(*key), order)
    return order


def _words(*numbers: int) -> bytes:
    """The words that `numpy.random.SeedSequence` takes of these numbers, each in as few as hold
    it.
    """
    return b"".join(
        number.to_bytes(4 * max(1, -(-number.bit_length() // 32)), "little") for number in numbers
    )
