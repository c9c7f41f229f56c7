"""Which row comes at which position of an epoch, without a list of rows; and an order shared among
the ranks of a job, in batches or row by row, that can be resumed.

In each step all ranks together take the next rows of the order, so what is delivered after any
number of steps is a beginning of the order, and a state is one number that fits any number of
ranks.
"""

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, overload

import numpy as np

from featstore.base.errors import ConfigError, StateError, require_integer
from featstore.samples.indices import Array, is_single, positions_of
from featstore.samples.permutation import (
    MOST_ROWS,
    CumulativeWeights,
    Permutation,
    WeightedDraws,
    WindowedPermutation,
    rows_of_groups,
)

_FORMAT = 1  # of states
_CHUNK_ROWS = 1 << 13


class RandomOrder:
    """The rows of an epoch in random order, as a sequence that is computed on access.

    The same arguments give the same order on every machine and with every version (the order is
    part of the file formats in docs/contracts.md). It takes no memory, except for weights. It never
    changes, so threads and processes may share it.

        order = RandomOrder(len(samples), seed=1, epoch=0)
        order[0], order[10:20]                             # a row, and int64 rows
        for rows in order.batches(4096): samples[rows]     # resumable, shared among ranks
        DataLoader(samples, sampler=order)                 # or batch_sampler=order.batches(4096)

    Without options every row comes once.

    Args:
        num_rows: How many rows there are, at most 2^40.
        seed: Another seed is another order.
        epoch: Another epoch is another order.
        weights: A number for each row. Rows are drawn with replacement, each with a probability in
            proportion to its weight. 9 bytes for each row are kept.
        num_draws: With `weights`: how many rows are drawn, `num_rows` by default.
        row_groups: The number of rows of each row group, in the order of rows. Row groups come in
            random order, `window_groups` at a time, and the rows of these in random order before
            others are read.
        window_groups: With `row_groups`: how many are read at a time.

    Attributes:
        num_rows, seed, epoch: As above.

    Raises:
        ConfigError: An argument is out of range, or two of them do not go together.
    """

    def __init__(
        self,
        num_rows: int,
        seed: int = 0,
        epoch: int = 0,
        *,
        weights: Any = None,
        num_draws: int | None = None,
        row_groups: Any = None,
        window_groups: int | None = None,
    ) -> None:
        self.num_rows = require_integer("num_rows", num_rows, 0)
        if num_rows > MOST_ROWS:
            raise ConfigError(f"num_rows: expected at most 2^40, found {num_rows}")
        self.seed = require_integer("seed", seed, 0)
        self.epoch = require_integer("epoch", epoch, 0)
        _require_together(weights, num_draws, row_groups, window_groups)
        self._length = num_rows if num_draws is None else require_integer("num_draws", num_draws, 0)
        self._kind: str
        self._options: Array | None = None
        self._make: Callable[..., Any]
        if weights is not None:
            cumulative = CumulativeWeights(weights)
            self._options = cumulative.sums
            self._require_rows("weights", len(cumulative.sums))
            self._kind, self._make = "weighted", partial(WeightedDraws, weights=cumulative)
        elif row_groups is not None and window_groups is not None:
            require_integer("window_groups", window_groups)
            sizes = rows_of_groups(row_groups)
            self._options = np.append(sizes, window_groups)
            self._require_rows("row_groups", int(sizes.sum()))
            self._kind = "windows"
            self._make = partial(WindowedPermutation, group_rows=sizes, window_groups=window_groups)
        else:
            self._kind, self._make = "all", partial(Permutation, num_rows=num_rows)
        self._rows_at = self._rows_of_epoch()

    @property
    def identity(self) -> dict[str, Any]:
        """What the order depends on except for the epoch, as JSON data, for states."""
        return {
            "kind": self._kind,
            "num_rows": self.num_rows,
            "length": self._length,
            "seed": self.seed,
            "options": self._options_digest,
        }

    def at_epoch(self, epoch: int) -> "RandomOrder":
        """The order of another epoch, with everything else the same."""
        other = copy.copy(self)
        other.epoch = require_integer("epoch", epoch, 0)
        other._rows_at = other._rows_of_epoch()
        return other

    def batches(
        self,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> "OrderBatches":
        """This rank's batches of rows, for a loop or as the `batch_sampler` of a DataLoader.

        Args:
            batch_size: Rows of a batch, of one rank.
            rank: This rank, by default RANK of the environment, or 0.
            world_size: The number of ranks, by default WORLD_SIZE of the environment, or 1.
            drop_last: Whether the last step is left out if it is not full in all ranks.

        Raises:
            ConfigError: An argument is out of range.
        """
        return OrderBatches(self, batch_size, rank, world_size, drop_last=drop_last)

    def rows(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> "OrderRows":
        """This rank's rows one by one, for a loop or as the `sampler` of a DataLoader.

        Args:
            rank: As for `batches`.
            world_size: As for `batches`.
            drop_last: Whether rows are left out that not all ranks would get.

        Raises:
            ConfigError: An argument is out of range.
        """
        return OrderRows(self, 1, rank, world_size, drop_last=drop_last)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: Any) -> Array: ...

    def __getitem__(self, index: Any) -> Any:
        """The row at a position, or the rows at several: int64 (num_positions,).

        Args:
            index: An integer, a slice, or a list or an array of integers.

        Raises:
            SampleIndexError: A position is out of range.
        """
        rows = self._rows_at(positions_of(index, self._length))
        return int(rows[0]) if is_single(index) else rows

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self._length, _CHUNK_ROWS):
            yield from self[first : first + _CHUNK_ROWS].tolist()

    def __repr__(self) -> str:
        return (
            f"RandomOrder({self.num_rows}, seed={self.seed}, epoch={self.epoch}, "
            f"kind={self._kind!r})"
        )

    @cached_property
    def _options_digest(self) -> str | None:
        """Equal for equal weights, or for equal row groups and windows: 32 hex digits."""
        if self._options is None:
            return None
        little_endian = self._options.astype(self._options.dtype.newbyteorder("<"))
        return hashlib.sha256(little_endian.tobytes()).hexdigest()[:32]

    def _rows_of_epoch(self) -> Callable[[Array], Array]:
        """Gives the rows at positions: int64 (num_positions,) both."""
        key = f"featstore order 1 {self._kind} {self.seed} {self.epoch}"
        rows_at: Callable[[Array], Array] = self._make(key=key).at
        return rows_at

    def _require_rows(self, name: str, num_rows: int) -> None:
        if num_rows != self.num_rows:
            raise ConfigError(
                f"{name}: expected to cover {self.num_rows} rows (num_rows), found {num_rows}"
            )


def _require_together(weights: Any, num_draws: Any, row_groups: Any, window_groups: Any) -> None:
    if weights is not None and row_groups is not None:
        raise ConfigError("weights and row_groups: expected one of them, found both")
    if num_draws is not None and weights is None:
        raise ConfigError("num_draws: expected only with weights, found without")
    if (row_groups is None) != (window_groups is None):
        raise ConfigError("row_groups and window_groups: expected both or neither, found one")


class OrderIteration:
    """Where one rank is in an order. Base of `OrderBatches` and `OrderRows`.

    Like torch's samplers it is used by one thread, repeats the same epoch until `set_epoch`, and
    counts a batch as delivered as soon as it is yielded. A DataLoader with workers prefetches: then
    tell `state_dict` how many batches the loop has received, or use torchdata's StatefulDataLoader,
    which keeps count.

    Attributes:
        order: The order of the current epoch.
    """

    def __init__(
        self,
        order: "RandomOrder",
        batch_size: int,
        rank: int | None,
        world_size: int | None,
        *,
        drop_last: bool,
    ) -> None:
        self.order, self.drop_last = order, drop_last
        self.batch_size = require_integer("batch_size", batch_size)
        self.rank, self.world_size = _share(rank, world_size)
        # Positions: where the next iteration begins, where the current one began, and where it is.
        self._next_begin = self._begin = self._position = 0

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of another epoch. Does nothing if this is the current one, so that
        it may be called after `load_state_dict`.
        """
        if epoch != self.order.epoch:
            self.order = self.order.at_epoch(epoch)
            self._next_begin = self._begin = self._position = 0

    def state_dict(self, num_delivered: int | None = None) -> dict[str, Any]:
        """Where this rank is, as JSON data. It is the same for all ranks of one step.

        Args:
            num_delivered: How many batches (of `OrderRows`: rows) the training loop has got in this
                iteration. By default as many as were handed out.

        Raises:
            StateError: More than were handed out.
        """
        position = self._position
        if num_delivered is not None:
            # The last step may be a part of one, so what it reaches may lie beyond the position.
            reached = self._begin + num_delivered * self._step_rows
            is_ahead = num_delivered > 0 and reached - self._step_rows >= position
            if is_ahead or num_delivered < 0:
                raise StateError(
                    f"num_delivered: expected at most what was handed out since row "
                    f"{self._begin} of the order, which is at row {position}, found "
                    f"{num_delivered}"
                )
            position = min(reached, position)
        return {
            "format": _FORMAT,
            "order": self.order.identity,
            "epoch": self.order.epoch,
            "position": position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where a state was taken, by any rank of any number of ranks, with any batch size.

        Raises:
            StateError: The state is of another order, or of another format, or something in it is
                missing or wrong.
        """
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise StateError(f"expected a state of a RandomOrder, format {_FORMAT}: {state!r:.200}")
        require_same_order(self.order.identity, state.get("order"))
        epoch, position = _count(state, "epoch"), _count(state, "position")
        if position > len(self.order):
            raise StateError(f"position: expected 0 to {len(self.order)}, found {position}")
        self.order = self.order.at_epoch(epoch)
        self._next_begin = self._begin = self._position = position

    def __len__(self) -> int:
        """How many batches the next iteration has (of `OrderRows`: rows)."""
        full, rest = divmod(self._end(self._next_begin) - self._next_begin, self._step_rows)
        first, end = self._own(0, rest)
        return full + (end > first)

    @property
    def _step_rows(self) -> int:
        """The rows of one step of all ranks."""
        return self.batch_size * self.world_size

    def _end(self, begin: int) -> int:
        """Where an iteration ends that begins at `begin`."""
        rows = len(self.order) - begin
        return begin + rows - (rows % self._step_rows if self.drop_last else 0)

    def _begun(self) -> tuple[int, int]:
        """Begins an iteration, which is one step that has begun: see `load_state_dict`."""
        self._begin = self._position = begin = self._next_begin
        self._next_begin = 0
        return begin, self._end(begin)

    def _own(self, first: int, end: int) -> tuple[int, int]:
        """This rank's positions of a step's: an equal part, or one of parts that differ by 1."""
        rows = end - first
        return (
            first + rows * self.rank // self.world_size,
            first + rows * (self.rank + 1) // self.world_size,
        )


class OrderBatches(OrderIteration):
    """One rank's batches of an order: read-only arrays of rows, int64 (num_rows,).

    In the last step the ranks share what is left: they have the same number of batches, whose sizes
    differ by at most one row, unless fewer rows than ranks are left. Made by `RandomOrder.batches`.
    """

    def __iter__(self) -> Iterator[Array]:
        begin, end = self._begun()
        for first in range(begin, end, self._step_rows):
            step_end = min(first + self._step_rows, end)
            self._position = step_end
            own_first, own_end = self._own(first, step_end)
            if own_end > own_first:
                rows = self.order[own_first:own_end]
                # Libraries that join batches with `+=` would add rows up.
                rows.flags.writeable = False
                yield rows


class OrderRows(OrderIteration):
    """One rank's rows of an order, one by one: batches of 1. Made by `RandomOrder.rows`."""

    def __iter__(self) -> Iterator[int]:
        begin, end = self._begun()
        chunk = _CHUNK_ROWS * self.world_size
        # In whole steps of all ranks this one has every `world_size`-th row. What is left is shared
        # as the rows of a last batch are.
        full_end = end - (end - begin) % self.world_size
        for chunk_begin in range(begin, full_end, chunk):
            chunk_end = min(chunk_begin + chunk, full_end)
            mine = self.order[chunk_begin + self.rank : chunk_end : self.world_size]
            for number, row in enumerate(mine.tolist(), 1):
                self._position = chunk_begin + number * self.world_size
                yield row
        self._position = end
        own_first, own_end = self._own(full_end, end)
        yield from self.order[own_first:own_end].tolist()


def require_same_order(own: Mapping[str, Any], saved: Any) -> None:
    """StateError if the identity in a state is not that of this order."""
    if not isinstance(saved, Mapping):
        raise StateError(f"order: expected a mapping, found {saved!r:.200}")
    for name, value in own.items():
        if value != (found := saved.get(name)):
            raise StateError(
                f"the state is of another order: expected {name} {value!r} (of this one), "
                f"found {found!r}; make the order with the arguments that it had"
            )


def _count(state: dict[str, Any], name: str) -> int:
    try:
        return require_integer(name, state.get(name), 0)
    except ConfigError as error:
        raise StateError(f"the state of an order: {error}") from error


def _share(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The rank and the number of ranks, as given or by the launcher's environment."""
    if (rank is None) != (world_size is None):
        raise ConfigError("rank and world_size: expected both or neither, found one")
    if rank is None or world_size is None:
        rank = int(os.environ.get("RANK") or 0)
        world_size = int(os.environ.get("WORLD_SIZE") or 1)
    require_integer("world_size", world_size)
    if require_integer("rank", rank, 0) >= world_size:
        raise ConfigError(f"rank: expected less than world_size ({world_size}), found {rank}")
    return rank, world_size
