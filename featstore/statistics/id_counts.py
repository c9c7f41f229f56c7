"""Exact counts of a slot's ids, as long as there are not too many different ones."""

import numpy as np

from featstore.native import kernels
from featstore.statistics.sketches import Integers

_FIRST_PLACES = 1 << 9
_NO_WEIGHTS = np.zeros(0, np.int64)


class IdCounts:
    """Counts each id of a slot exactly. Not thread-safe.

    Past `most` different ids it gives up and forgets all, or with `keeps_top` forgets the rarer
    half: then counts are those since an id was last taken up, and so at most the true ones. Memory:
    32 to 128 bytes for each different id, at least 8 KB.

    Args:
        most: The most different ids.
        keeps_top: Whether to go on with the most frequent ones.

    Attributes:
        has_given_up: Whether there were more than `most` different ids; never with `keeps_top`.
        num_known: The number of different ids that are counted.
    """

    def __init__(self, most: int, *, keeps_top: bool = False) -> None:
        self._most = most
        self._keeps_top = keeps_top
        self.has_given_up = False
        self.num_known = 0
        self._table: Integers = np.zeros((_FIRST_PLACES, 2), np.int64)

    def update(self, values: Integers) -> Integers:
        """Counts the next ids, int64 (num_values,). Ids of 0 are missing and not counted.

        Returns:
            The positions of ids that were not known before, ascending; of each the first.
        """
        found, num_read = [np.zeros(0, np.int64)], 0
        while num_read < len(values) and not self.has_given_up:
            firsts, num_more = self._count(values[num_read:], _NO_WEIGHTS)
            found.append(firsts + num_read)
            num_read += num_more
            if self.num_known > self._most or num_read < len(values):
                self._make_room()
        return np.concatenate(found)

    @property
    def counts(self) -> tuple[Integers, Integers]:
        """The ids and how often each was counted, the most frequent first, then by id."""
        ids, counts = self._entries()
        order = np.lexsort((ids, -counts))
        return ids[order], counts[order]

    def _entries(self) -> tuple[Integers, Integers]:
        used = self._table[np.flatnonzero(self._table[:, 0])]
        return np.ascontiguousarray(used[:, 0]), np.ascontiguousarray(used[:, 1])

    def _count(self, values: Integers, weights: Integers) -> tuple[Integers, int]:
        """Counts ids until the table is half full. Returns the positions of new ones, and how many
        ids were read.
        """
        firsts = np.empty(len(values) + 1, np.int64)
        self.num_known, num_read, num_new = kernels.count_ids(
            np.ascontiguousarray(values), weights, self._table, self.num_known, firsts
        )
        return firsts[:num_new], num_read

    def _make_room(self) -> None:
        """Grows the table; past the most different ids gives up, or drops the rarer half."""
        if self.num_known > self._most and not self._keeps_top:
            self.has_given_up = True
            self._start(_FIRST_PLACES)
        elif self.num_known > self._most:
            ids, counts = self.counts
            self._start(len(self._table))
            self._count(ids[: self._most // 2], counts[: self._most // 2])
        else:
            ids, counts = self._entries()
            # A fuller table is smaller, but its ids collide more often.
            self._start(4 * len(self._table))
            self._count(ids, counts)

    def _start(self, num_places: int) -> None:
        self.num_known = 0
        self._table = np.zeros((num_places, 2), np.int64)
