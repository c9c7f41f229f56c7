"""An order whose positions workers claim as they need them, at each one's pace, instead of fixed
shares of ranks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from featstore.base.closing import Closing
from featstore.base.errors import ConfigError, StateError, require_integer
from featstore.loader.iteration.shard_loop import (
    DispatchOptions,
    LoopBatches,
    ShardLoop,
    Shards,
    ValueCap,
)
from featstore.loader.iteration.state import LoaderState, merge_states
from featstore.samples.batches_by_cost import checked_lengths, offsets_of_lengths
from featstore.samples.indices import Array
from featstore.samples.order_batches import require_same_order
from featstore.samples.random_order import RandomOrder

Item = TypeVar("Item")
_FORMAT = 1  # of states


class DispatchedOrder(Closing):
    """The rows of a `RandomOrder`, which workers claim in a dispatch store: each gets as many as it
    trains, and what a dead one has not delivered goes to others. The `sampler` of a DataLoader, or
    with a `batch_size` its `batch_sampler`, which asks for whole batches:

        order = DispatchedOrder(len(samples), 256, dispatch={"store": URL, "run_id": "run-1"})
        loader = DataLoader(samples, batch_sampler=order, num_workers=8, persistent_workers=True)
        for epoch in range(num_epochs):
            order.set_epoch(epoch)
            for batch in order.deliver(loader):
                train(batch)

    A batch counts as delivered when the loop asks for the next one, or at `ack`, however far the
    DataLoader has asked ahead. Not thread-safe: only `close` may be called from any thread.

    Args:
        order: The order, or a number of rows for `RandomOrder(num_rows)`. Equal for all workers.
        batch_size: Rows of a batch, of which the last one of a worker may have fewer. None: the
            DataLoader's, whose `sampler` this is.
        dispatch: Where workers meet, as of `FeatureLoader`.
        shard_rows: How many rows are claimed at once. Workers that have nothing left take parts of
            what others have claimed, so it need not be small. Equal for all workers.
        lengths: With `max_values` and `batch_size`: how many values each row has, as of
            `RandomOrder.batches_by_cost`. They are kept.
        max_values: The most values of a batch, which ends before the row that would exceed it.

    Raises:
        ConfigError: An option is invalid, or a row alone exceeds the cap.
    """

    def __init__(
        self,
        order: RandomOrder | int,
        batch_size: int | None = None,
        *,
        dispatch: DispatchOptions = "auto",
        shard_rows: int = 16_384,
        lengths: Any = None,
        max_values: int | None = None,
    ) -> None:
        self._order = order if isinstance(order, RandomOrder) else RandomOrder(order)
        self._shards = Shards(
            num_positions=len(self._order),
            shard_rows=require_integer("shard_rows", shard_rows),
            order=json.dumps(self._order.identity),
        )
        if batch_size is not None:
            require_integer("batch_size", batch_size)
        self._gives_rows, self._lengths, cap = batch_size is None, None, None
        if max_values is not None and lengths is not None and batch_size is not None:
            require_integer("max_values", max_values)
            self._lengths = checked_lengths(lengths, self._order.num_rows, max_values)
            cap = ValueCap(max_values=max_values, offsets=self._offsets)
        elif max_values is not None or lengths is not None:
            raise ConfigError(
                "lengths, max_values: expected both, and batch_size, found "
                f"{'no lengths' if lengths is None else 'lengths'}, max_values {max_values} and "
                f"batch_size {batch_size}"
            )
        self._loop = ShardLoop(self._shards, batch_size, dispatch, self._order.epoch, cap)

    def deliver(self, loader: Iterable[Item]) -> LoopBatches[Item]:
        """The loader's batches, of one epoch. Ends when all workers have delivered it, or, for
        ranks in step, when nothing is left for this one. A loop that was broken off, as by an
        error, goes on: the batch that was not delivered comes again, here or elsewhere.

        Args:
            loader: A DataLoader with this order as its sampler, or the order itself. It is
                iterated anew when there is more to claim at the end of the epoch: with workers, set
                `persistent_workers`.

        Raises:
            ConfigError: The loader does not keep the order of batches.
            StateError: Its batches are not those of this order, or the loop was ended by `close`,
                or by a newer loop.
            DispatchError: The store is lost, an earlier start of the run has read everything, or
                rows killed their worker again and again.
        """
        return self._loop.deliver(loader)

    def __iter__(self) -> Iterator[Any]:
        order = self._order.at_epoch(self._loop.epoch)
        for positions in self._loop.batches():
            rows = order[np.concatenate([np.arange(each.start, each.stop) for each in positions])]
            # Libraries that join batches with `+=` would add rows up.
            rows.flags.writeable = False
            if self._gives_rows:
                yield from rows.tolist()
            else:
                yield rows

    def _offsets(self, epoch: int, positions: range) -> Array:
        """Where the values of the rows at these positions begin and end: (num_positions + 1,)."""
        assert self._lengths is not None
        rows = self._order.at_epoch(epoch)[positions.start : positions.stop]
        return offsets_of_lengths(self._lengths[rows])

    def ack(self) -> None:
        """Counts the last batch as delivered now, not only when the next one is asked for."""
        self._loop.ack()

    def set_epoch(self, epoch: int) -> None:
        """Goes to another epoch, which is shared by all workers that name it. Does nothing if this
        is the current one, so that it may be called after `load_state_dict`. Without it, each loop
        repeats the same epoch.

        Raises:
            ConfigError: `epoch` is not an integer of 0 or more.
        """
        self._loop.set_epoch(require_integer("epoch", epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """What the loop of this process has delivered, as JSON data. Merge the states that all
        ranks saved at one step with `merge_states`.
        """
        return {"format": _FORMAT, "order": self._identity, "delivered": self._loop.state.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next loop continue where the state was saved, on any number of workers and with
        any batch size. All workers load it.

        Raises:
            StateError: The state is of another order or format, lacks workers of its step, or a
                loop is under way.
        """
        delivered = _delivered(state)
        require_same_order(self._identity, state.get("order"))
        self._loop.restore(LoaderState.from_json(delivered))

    @staticmethod
    def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Merges the states that all ranks saved at one step into one for `load_state_dict`.

        Raises:
            StateError: They are not of one step of one run.
        """
        states = list(states)
        merged = merge_states(map(_delivered, states))
        return {**states[0], "delivered": merged}

    def close(self) -> None:
        """Gives back what is claimed and not delivered, and closes connections."""
        self._loop.close()

    @property
    def _identity(self) -> dict[str, Any]:
        return {**self._order.identity, "shard_rows": self._shards.shard_rows}


def _delivered(state: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or "delivered" not in state:
        raise StateError(f"expected a state of a DispatchedOrder, format {_FORMAT}: {state!r:.200}")
    delivered: Mapping[str, Any] = state["delivered"]
    return delivered
