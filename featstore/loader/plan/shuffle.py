"""Windows of row groups, the order of rows in a window, and how the rows of several splits are
mixed.

The stream of a split's rows is a pure function of the seed, the epoch, the split's position in the
plan and the options here. So a worker that takes a split over at any row of its stream delivers the
same rows from there. From which of the open splits the next row comes is a pure function of the
seed, the epoch and the positions in their streams. So a loader that resumes at any row mixes the
rest as if it had not stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from featstore.base.errors import ConfigError, require_integer
from featstore.dispatch.plan import Split
from featstore.reading.buffers import Array

# Draws are uint16, and of each open split there may be two windows in a mixture.
_MOST_SPLITS = 1 << 15
# In each round of this many rows every open split has its share, give or take one. A power of 2.
_ROUND_ROWS = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio.


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

    def draws(
        self, splits: Sequence[int], split_rows: Sequence[int], num_taken: int, num_rows: int
    ) -> Array:
        """From which of the open splits the next rows come: uint16 (num_rows,), places in `splits`.

        Rows are drawn in rounds. In each round every split has its share of the rows, and they come
        in a random order. So splits that are opened together end together.

        Args:
            splits: The open splits' positions in the plan, in ascending order.
            split_rows: How many rows each of them has in all.
            num_taken: The sum of the positions in their streams, which grows by 1 with each row.
            num_rows: How many rows to draw.
        """
        if len(splits) == 1:
            return np.zeros(num_rows, np.uint16)
        seeds = np.random.SeedSequence((self.seed, self.epoch, *splits))
        *key, first_offset = seeds.generate_state(3, np.uint64)
        number, skipped = divmod(num_taken, _ROUND_ROWS)
        num_rounds = -(-(skipped + num_rows) // _ROUND_ROWS)
        # Evenly spaced points, as many as a round has rows. Multiples of the golden ratio shift
        # them from round to round, so that shares which are no whole numbers add up.
        numbers = np.arange(number, number + num_rounds, dtype=np.uint64)
        shifts = ((first_offset + numbers * _GOLDEN) >> np.uint64(11)) * 2.0**-53
        points = (np.arange(_ROUND_ROWS) + shifts[:, None]) / _ROUND_ROWS
        weights = np.maximum(np.array(split_rows, np.int64), 1)
        bounds = np.cumsum(weights)[:-1] / weights.sum()
        drawn = np.searchsorted(bounds, points, side="right").astype(np.uint16)
        # Philox numbers blocks of four words. So its stream can be entered at any round.
        source = np.random.Philox(key=key, counter=number * _ROUND_ROWS // 4)
        bits = source.random_raw(num_rounds * _ROUND_ROWS).reshape(num_rounds, _ROUND_ROWS)
        # With the row number in the lowest bits, one sort gives the order, as in `permutation`.
        low = np.uint64(_ROUND_ROWS - 1)
        keys = (bits & ~low) | np.arange(_ROUND_ROWS, dtype=np.uint64)
        keys.sort(axis=1)
        rows: Array = np.take_along_axis(drawn, (keys & low).view(np.int64), axis=1).reshape(-1)
        return rows[skipped : skipped + num_rows]


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
