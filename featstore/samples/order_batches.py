"""An order shared among the ranks of a job, in batches or row by row, that can be resumed.

In each step all ranks together take the next rows of the order, so what is delivered after any
number of steps is a beginning of the order, and a state is one number that fits any number of
ranks.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

from featstore.base.errors import ConfigError, StateError, require_integer
from featstore.samples.indices import Array

_FORMAT = 1  # of states
ORDER_ROWS = 1 << 13  # of an order that are computed at once


class Order(Protocol):
    """What is shared among ranks: a `RandomOrder`."""

    num_rows: int
    seed: int
    epoch: int

    @property
    def identity(self) -> dict[str, Any]:
        """What the order depends on except for the epoch, as JSON data."""

    def at_epoch(self, epoch: int) -> Self:
        """The order of another epoch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice) -> Array: ...


class OrderIteration:
    """Where one rank is in an order. Base of `OrderBatches`, `OrderRows` and `BatchesByCost`.

    Like torch's samplers it is used by one thread, repeats the same epoch until `set_epoch`, and
    counts a batch as delivered as soon as it is yielded. A DataLoader with workers prefetches: then
    tell `state_dict` how many batches the loop has received, or use torchdata's StatefulDataLoader,
    which keeps count.

    Attributes:
        order: The order of the current epoch.
    """

    # Positions: where the next iteration begins, where the current one began, and where it is.
    _next_begin: int
    _begin: int
    _position: int

    def __init__(
        self,
        order: Order,
        batch_size: int,
        rank: int | None,
        world_size: int | None,
        *,
        drop_last: bool,
    ) -> None:
        self.order, self.drop_last = order, drop_last
        self.batch_size = require_integer("batch_size", batch_size)
        self.rank, self.world_size = _share(rank, world_size)
        self._go_to(0)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of another epoch. Does nothing if this is the current one, so that
        it may be called after `load_state_dict`.
        """
        if epoch != self.order.epoch:
            self.order = self.order.at_epoch(epoch)
            self._go_to(0)

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
            found = self._position_after(num_delivered) if num_delivered >= 0 else None
            if found is None:
                raise StateError(
                    f"num_delivered: expected at most what was handed out since row "
                    f"{self._begin} of the order, which is at row {position}, found "
                    f"{num_delivered}"
                )
            position = found
        return {
            "format": _FORMAT,
            "order": self._identity,
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
        require_same_order(self._identity, state.get("order"))
        epoch, position = _count(state, "epoch"), _count(state, "position")
        if position > len(self.order):
            raise StateError(f"position: expected 0 to {len(self.order)}, found {position}")
        self.order = self.order.at_epoch(epoch)
        self._go_to(position)

    def __len__(self) -> int:
        """How many batches the next iteration has (of `OrderRows`: rows)."""
        begin, end = self._next_begin, self._end(self._next_begin)
        full = (end - begin) // self._step_rows
        own_first, own_end = self._own(self._after(full, begin), end)
        return full + (own_end > own_first)

    @property
    def _identity(self) -> dict[str, Any]:
        """What a position in a state depends on, except for the epoch, as JSON data."""
        return self.order.identity

    def _position_after(self, num_delivered: int) -> int | None:
        """Where the order is after so many batches of this iteration; None: there were fewer."""
        if num_delivered and self._after(num_delivered - 1, self._begin) >= self._position:
            return None
        return min(self._after(num_delivered, self._begin), self._position)

    def _after(self, num_steps: int, begin: int) -> int:
        """Where an iteration is after its first steps. The last step but one leaves a row for each
        rank, where both have enough.
        """
        reached, end = begin + num_steps * self._step_rows, self._end(begin)
        left = end - reached
        if num_steps and 0 < left < self.world_size <= (self._step_rows + left) // 2:
            return end - self.world_size
        return min(reached, end)

    @property
    def _step_rows(self) -> int:
        """The rows of one step of all ranks."""
        return self.batch_size * self.world_size

    def _end(self, begin: int) -> int:
        """Where an iteration ends that begins at `begin`."""
        rows = len(self.order) - begin
        return begin + rows - (rows % self._step_rows if self.drop_last else 0)

    def _begun(self) -> int:
        """Begins an iteration, which is one step that has begun: see `load_state_dict`."""
        begin = self._next_begin
        self._go_to(begin)
        self._next_begin = 0
        return begin

    def _go_to(self, position: int) -> None:
        """Makes the next iteration begin there. Nothing has been handed out since."""
        self._next_begin = self._begin = self._position = position

    def _own(self, first: int, end: int) -> tuple[int, int]:
        """This rank's positions of a step's: an equal part, or one of parts that differ by 1."""
        rows = end - first
        return (
            first + rows * self.rank // self.world_size,
            first + rows * (self.rank + 1) // self.world_size,
        )


class OrderBatches(OrderIteration):
    """One rank's batches of an order: read-only arrays of rows, int64 (num_rows,).

    In the last step the ranks share what is left, and where that is less than a row for each, the
    step before leaves them one: so they have the same number of batches, unless the batches are of
    one row or the order has fewer rows than ranks. Made by `RandomOrder.batches`.
    """

    def __iter__(self) -> Iterator[Array]:
        begin = self._begun()
        num_steps = -(-(self._end(begin) - begin) // self._step_rows)
        for step in range(num_steps):
            self._position = self._after(step + 1, begin)
            own_first, own_end = self._own(self._after(step, begin), self._position)
            if own_end > own_first:
                rows = self.order[own_first:own_end]
                # Libraries that join batches with `+=` would add rows up.
                rows.flags.writeable = False
                yield rows


class OrderRows(OrderIteration):
    """One rank's rows of an order, one by one: batches of 1. Made by `RandomOrder.rows`."""

    def __iter__(self) -> Iterator[int]:
        begin = self._begun()
        end = self._end(begin)
        chunk = ORDER_ROWS * self.world_size
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


def digest_of(numbers: Array) -> str:
    """Equal for equal numbers of one dtype, on every machine: 32 hex digits."""
    little_endian = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(little_endian.tobytes()).hexdigest()[:32]


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
