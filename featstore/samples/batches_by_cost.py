"""Batches of an order whose rows differ in length, by the number of their values; with similar
lengths together, if wanted.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np

from featstore.base.errors import ConfigError, require_integer
from featstore.base.intervals import capped_cuts
from featstore.base.processes import cached_property
from featstore.samples.indices import Array
from featstore.samples.order_batches import ORDER_ROWS, Order, OrderIteration, digest_of
from featstore.samples.permutation import Permutation


class BatchesByCost(OrderIteration):
    """One rank's batches of an order, each of at most `max_values` values: read-only arrays of
    rows, int64 (num_rows,). Made by `RandomOrder.batches_by_cost`.

    In each step the ranks take the next batches, one each. In the last step batches are divided
    until all ranks have one; if it has fewer rows than ranks, the step before leaves it its last
    rows, unless both have fewer than two for each. All ranks compute where all batches end.

    Similar lengths come together as in torchtext's `BucketIterator`: what is sorted by length is a
    window of the order, so that batches hold other rows in each epoch, and batches are shuffled
    within it.
    """

    def __init__(
        self,
        order: Order,
        lengths: Any,
        max_values: int,
        batch_size: int,
        *,
        window_rows: int | None,
        rank: int | None,
        world_size: int | None,
        drop_last: bool,
    ) -> None:
        # Where each batch that was handed out in this iteration has led the order.
        self._ends = list[int]()
        super().__init__(order, batch_size, rank, world_size, drop_last=drop_last)
        self.max_values = require_integer("max_values", max_values)
        self.window_rows = window_rows
        if window_rows is not None:
            require_integer("window_rows", window_rows)
        self._lengths = checked_lengths(lengths, order.num_rows, max_values)

    def __iter__(self) -> Iterator[Array]:
        for position, rows in self._steps(self._begun()):
            self._position = position
            if rows is not None:
                self._ends.append(position)
                # Libraries that join batches with `+=` would add rows up.
                rows.flags.writeable = False
                yield rows

    def __len__(self) -> int:
        """How many batches the next iteration has. Looks at the lengths of all of its rows."""
        return sum(rows is not None for _, rows in self._steps(self._next_begin))

    @property
    def _identity(self) -> dict[str, Any]:
        """Positions are those of the order, unless it is sorted: then they depend on all of it."""
        identity = super()._identity
        if self.window_rows is None:
            return identity
        return identity | {
            "kind": f"{identity['kind']} by length",
            "max_values": self.max_values,
            "batch_size": self.batch_size,
            "window_rows": self.window_rows,
            "lengths": self._lengths_digest,
        }

    @cached_property
    def _lengths_digest(self) -> str:
        return digest_of(self._lengths.astype(np.int64, copy=False))

    def _go_to(self, position: int) -> None:
        super()._go_to(position)
        self._ends.clear()

    def _position_after(self, num_delivered: int) -> int | None:
        if num_delivered > len(self._ends):
            return None
        return self._ends[num_delivered - 1] if num_delivered else self._begin

    def _steps(self, begin: int) -> Iterator[tuple[int, Array | None]]:
        """The position after each step, and this rank's rows of it; None if it has none."""
        position = begin
        batches = self._in_order(begin) if self.window_rows is None else self._by_length(begin)
        following = list(islice(batches, self.world_size))
        while step := following:
            following = list(islice(batches, self.world_size))
            if not self.drop_last:
                if following:
                    step, following = _shared(step, following, self.world_size)
                step = _divided(step, self.world_size)
            elif len(step) < self.world_size:
                return
            position += sum(map(len, step))
            yield position, step[self.rank] if self.rank < len(step) else None

    def _in_order(self, begin: int) -> Iterator[Array]:
        """All ranks' batches from a position on, in the order."""
        num_rows = max(ORDER_ROWS, 4 * self.batch_size)
        while begin < len(self.order):
            rows, cuts = self._divided_rows(begin, num_rows)
            is_end = begin + len(rows) == len(self.order)
            if not is_end and cuts[-1] - cuts[-2] < self.batch_size:
                cuts.pop()  # Further rows may fit. There are other batches: it has few of the rows.
            for first, end in pairwise(cuts):
                yield rows[first:end]
            begin += cuts[-1]

    def _by_length(self, begin: int) -> Iterator[Array]:
        """All ranks' batches from a position on, window by window."""
        assert self.window_rows is not None
        for first in range(begin - begin % self.window_rows, len(self.order), self.window_rows):
            rows, cuts = self._divided_rows(first, self.window_rows, is_sorted=True)
            num_batches = len(cuts) - 1
            key = f"featstore batches 1 {self.order.seed} {self.order.epoch} window {first}"
            shuffled = Permutation(num_rows=num_batches, key=key).at(np.arange(num_batches))
            position = first
            for index in shuffled.tolist():
                batch = rows[cuts[index] : cuts[index + 1]]
                position += len(batch)
                if position > begin:  # It may lie in a batch whose last rows another step took.
                    yield batch[begin - position :]

    def _divided_rows(
        self, begin: int, num_rows: int, *, is_sorted: bool = False
    ) -> tuple[Array, list[int]]:
        """Rows of the order, and where their batches begin and end."""
        rows = self.order[begin : begin + num_rows]
        lengths = self._lengths[rows]
        if is_sorted:
            by_length = np.argsort(lengths, kind="stable")
            rows, lengths = rows[by_length], lengths[by_length]
        return rows, capped_cuts(offsets_of_lengths(lengths), self.max_values, self.batch_size)


def offsets_of_lengths(lengths: Array) -> Array:
    """Where lists begin and end, one after the other: int64 (num_rows + 1,). As of
    `ops.lists.offsets_from`, which would load pyarrow.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _shared(
    step: list[Array], last: list[Array], num_ranks: int
) -> tuple[list[Array], list[Array]]:
    """Both steps, such that the last has a row for each rank, if the one before can spare them."""
    lacking = num_ranks - sum(map(len, last))
    kept = sum(map(len, step)) - lacking
    if lacking <= 0 or kept < num_ranks:
        return step, last
    parts = np.split(np.concatenate(step), np.minimum(np.cumsum([*map(len, step)]), kept))
    return [rows for rows in parts[:-1] if len(rows)], [parts[-1], *last]


def _divided(batches: Sequence[Array], num_parts: int) -> list[Array]:
    """Halves the batch of the most rows until there are so many parts, or all have one row."""
    parts = list(batches)
    while len(parts) < num_parts:
        index = max(range(len(parts)), key=lambda number: len(parts[number]))
        if len(parts[index]) == 1:
            break
        parts[index : index + 1] = np.array_split(parts[index], 2)
    return parts


def checked_lengths(lengths: Any, num_rows: int, max_values: int) -> Array:
    """The lengths as an array of integers: (num_rows,).

    Raises:
        ConfigError: They are no such array, or one is negative or above the cap.
    """
    given = np.asarray(lengths)
    if given.ndim != 1 or len(given) != num_rows or (given.size and given.dtype.kind not in "iu"):
        raise ConfigError(
            f"lengths: expected an integer for each of {num_rows:,} rows, found {given.dtype} of "
            f"shape {given.shape}"
        )
    if not given.size:
        return given.astype(np.int64)
    if given.min() < 0:
        row = int(given.argmin())
        raise ConfigError(f"lengths[{row}]: expected an integer of 0 or more, found {given[row]}")
    if given.max() > max_values:
        row = int(given.argmax())
        raise ConfigError(
            f"max_values: expected at most {max_values:,} values in each row, found "
            f"{given[row]:,} in row {row}: raise max_values, or cut longer lists with max_len"
        )
    return given
