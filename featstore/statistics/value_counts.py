"""Exact counts of values: as sorted arrays, and of a slot's ids as long as there are not too many
different ones.

A batch is counted by sorting it: numpy sorts the values of a batch at a few nanoseconds each, and a
hash table of a library takes several times as long (docs/design/statistics.md).
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featstore.native import kernels
from featstore.ops.arrays import Integers

# So many values are counted in one call at most: 64 slots of an hour of 500 rows.
_BLOCK_VALUES = 1 << 15


@dataclass(frozen=True, kw_only=True)
class ValueCounts:
    """How often each value occurs, and sums of weights by value.

    Attributes:
        values: The distinct values, ascending, (num_values,). Integers, or floats without NaN.
        counts: How often each occurs, int64 (num_values,).
        sums: The sum of each weight over the occurrences, float64 (num_weights, num_values).
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]
    sums: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def num_bytes(self) -> int:
        """The bytes of the arrays."""
        return self.values.nbytes + self.counts.nbytes + self.sums.nbytes

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> "ValueCounts":
        return ValueCounts(
            values=self.values[part], counts=self.counts[part], sums=self.sums[:, part]
        )


def count_values(values: NDArray[Any], weights: Sequence[NDArray[np.float64]] = ()) -> ValueCounts:
    """Counts values.

    Args:
        values: The values, (num,), in any order.
        weights: For each sum, the weights of the values, float64 (num,).
    """
    if not weights:  # Sorting alone is faster than sorting with the order.
        return next(count_each([values]))
    order = np.argsort(values)
    ordered = values[order]
    first = are_first(ordered).nonzero()[0]
    sums = [np.add.reduceat(weight[order], first) if len(first) else weight for weight in weights]
    return ValueCounts(
        values=ordered[first],
        # `np.diff` takes several times as long for few values.
        counts=np.concatenate([first[1:], [len(ordered)]]) - first,
        sums=np.array(sums).reshape(len(weights), len(first)),
    )


def count_each(columns: Iterable[NDArray[Any]]) -> Iterator[ValueCounts]:
    """Counts the values of each column, as `count_values` does.

    Short columns of one length that follow each other are counted together: numpy's calls would
    take longer than their values.
    """
    for length, alike in itertools.groupby(columns, len):
        while block := list(itertools.islice(alike, max(1, _BLOCK_VALUES // max(length, 1)))):
            yield from _count_rows(np.stack(block))


def _count_rows(rows: NDArray[Any]) -> Iterator[ValueCounts]:
    """The counts of each row of a matrix, which is sorted in place."""
    rows.sort(axis=1)
    is_first = np.ones(rows.shape, np.bool_)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=is_first[:, 1:])
    places = np.flatnonzero(is_first)
    values, counts = rows.ravel()[places], np.diff(places, append=rows.size)
    start = 0
    for end in np.cumsum(np.count_nonzero(is_first, axis=1)).tolist():
        no_sums = np.zeros((0, end - start))
        yield ValueCounts(values=values[start:end], counts=counts[start:end], sums=no_sums)
        start = end


def merge_counts(parts: Sequence[ValueCounts]) -> ValueCounts:
    """The counts of the values of all parts, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = are_first(ordered).nonzero()[0]
    counts = np.concatenate([part.counts for part in parts])[order]
    sums = np.concatenate([part.sums for part in parts], axis=1)[:, order]
    return ValueCounts(
        values=ordered[first],
        counts=np.add.reduceat(counts, first) if len(first) else counts,
        sums=np.add.reduceat(sums, first, axis=1) if len(first) else sums,
    )


def most_frequent(counts: ValueCounts, num: int) -> ValueCounts:
    """The most frequent values in descending order of their counts, and equally frequent ones in
    ascending order of the values.
    """
    # Values ascend already. A stable sort is quick with runs of equal counts, which are common.
    order = (-counts.counts).argsort(kind="stable")[:num]
    return ValueCounts(
        values=counts.values[order], counts=counts.counts[order], sums=counts.sums[:, order]
    )


def are_first(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the ordered values are the first of their kind, bool (num_values,)."""
    found = np.empty(len(ordered), np.bool_)
    found[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=found[1:])
    return found


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
