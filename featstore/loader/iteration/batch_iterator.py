"""The iterator of a training loop."""

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from featstore.base.closing import when_gone
from featstore.base.errors import StateError
from featstore.base.named_errors import NamedErrors
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.iteration.iteration import Iteration
from featstore.loader.iteration.worker import LoaderWorker
from featstore.tensors.batch import Batch


class Owner(Protocol):
    """The loader over which an iteration runs."""

    @property
    def named_errors(self) -> NamedErrors:
        """Names the table in errors of the operating system."""

    @property
    def is_awaiting_shares(self) -> bool:
        """Whether the next iteration begins with a state of which other DataLoader workers have
        their parts.
        """

    def begin_iteration(self, worker: LoaderWorker) -> Iteration:
        """Begins a new iteration over the loader's epochs, which replaces the current one."""

    def state_dict(self) -> dict[str, Any]:
        """As of `FeatureLoader`."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As of `FeatureLoader`."""

    def tell_stats(self, *, is_last: bool) -> None:
        """Called for each batch before it is handed out, and at the end of the iteration."""


class BatchIterator:
    """The batches of one iteration. Its threads end when it is dropped, as by a loop that ends or
    breaks.

    It begins when its first batch, or its state, is asked for. So an iterator that a framework
    makes and does not use skips no epoch, and does not end another one.

    Args:
        owner: The loader. The iteration keeps it alive, since it owns the directories that the
            iteration uses.
        worker: Which worker this process is.
    """

    def __init__(self, owner: Owner, worker: LoaderWorker) -> None:
        self._owner, self._worker = owner, worker
        self._iteration: Iteration | None = None
        # Kept here, since the generator and the iteration would keep each other alive.
        self._slices: Iterator[BatchSlice | None] = iter(())
        self._close: Callable[[], object] = lambda: None  # Until it begins.

    def __iter__(self) -> "BatchIterator":
        return self

    def __next__(self) -> Batch:
        batch = self._next_of_epoch()
        if batch is None:
            raise StopIteration
        return batch

    def begin(self) -> Iteration:
        """Begins the iteration, unless it has begun."""
        if self._iteration is not None:
            return self._iteration
        with self._owner.named_errors:
            return self._take(self._owner.begin_iteration(self._worker))

    def wait_delivered(self) -> None:
        """Waits until the consumer has acknowledged all batches, if a thread runs ahead of it."""
        if self._iteration is not None:
            self._iteration.delivery.wait()

    def _next_of_epoch(self) -> Batch | None:
        """The next batch; None at a pause."""
        iteration = self._iteration or self.begin()
        if iteration.delivery.is_closed:
            _require_open(iteration)
            raise StopIteration
        iteration.delivery.require_own_process()
        try:
            if not iteration.delivery.is_ahead:
                iteration.acknowledge()
            rows = self._next_slice(iteration)
            if iteration.is_between_epochs:
                return None
            made = iteration.batch(rows)
            if made is None:
                iteration.finish()
                iteration.complete_lineage()
                self._owner.tell_stats(is_last=True)
                raise StopIteration
            self._owner.tell_stats(is_last=False)
            if iteration.delivery.is_closed:  # Meanwhile: its claims are released.
                _require_open(iteration)
            # The last step: nothing can fail after it before the consumer has the batch. A thread
            # that runs ahead would wait for the delivery of one that the consumer never gets.
            iteration.delivery.add(made.progress, made.check)
            return made.batch
        except BaseException as error:
            was_closed = iteration.delivery.is_closed
            if not isinstance(error, StopIteration):
                iteration.lineage.end("ABORT" if was_closed else "FAIL", error)
            # A loop that is behind still gets the batches from before the error.
            iteration.delivery.wait()
            self._close()
            if was_closed and isinstance(error, StateError):
                _require_open(iteration)
            raise

    def run_ahead(self) -> "BatchIterator":
        """From now on a thread other than the consumer's asks for batches. A batch counts as given,
        and then as delivered, only when the consumer calls `give` and `acknowledge`.
        """
        self.begin().delivery.run_ahead()
        return self

    def give(self) -> None:
        """Records that the consumer got the next batch."""
        if self._iteration is not None:
            self._iteration.delivery.give()

    def acknowledge(self) -> None:
        """Counts the batches that the consumer has as delivered."""
        if self._iteration is not None:
            self._iteration.acknowledge()

    def close(self) -> None:
        """Ends the iteration before its end. May be called more than once, from any thread."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """The loader's state in which the batch that was handed out last counts as delivered, as
        torchdata's StatefulDataLoader expects of an iterator. After the last batch it is at the end
        of the epoch that was read, not at the beginning of the next.
        """
        if self._iteration is None and self._owner.is_awaiting_shares:
            return self._owner.state_dict()
        return self.begin().state_handed_over.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state. Waits for the other workers of the DataLoader, each of which
        loads its own state.
        """
        self._close()
        self._owner.load_state_dict(state)
        self._take(self._owner.begin_iteration(self._worker))

    def _take(self, iteration: Iteration) -> Iteration:
        slices = iteration.slices()
        self._iteration, self._slices = iteration, slices
        self._close = when_gone(self, partial(_end, iteration, slices))
        return iteration

    def _next_slice(self, iteration: Iteration) -> BatchSlice | None:
        """The next slice with rows; None at the end, or at a pause. Progress of slices without rows
        is added to the delivery.
        """
        try:
            for rows in self._slices:
                if rows is None:
                    return None
                if rows.blocks:
                    return rows
                iteration.add_without_batch(rows)
        except BaseException:  # Here errors of the threads that read, decode and stage come out.
            with self._owner.named_errors:
                raise
        _require_open(iteration)
        return None


def _end(iteration: Iteration, slices: Generator[BatchSlice | None, None, None]) -> None:
    """Closes an iteration, and leaves the blocks in which its generator stands: it may be closed at
    the interpreter's end, after which their modules are gone.
    """
    iteration.close()
    # A thread that is in it leaves them now that the iteration is closed. To close a generator that
    # runs may crash Python 3.11, which may take an inline cache of its code for a `yield from`.
    if inspect.getgeneratorstate(slices) != inspect.GEN_RUNNING:
        slices.close()


def _require_open(iteration: Iteration) -> None:
    """StateError if the iteration was closed before its end; StopIteration if the table is
    followed, where closing is the end.
    """
    if iteration.delivery.is_closed and not iteration.is_exhausted:
        if iteration.follows:
            raise StopIteration
        raise StateError(
            "this iteration was closed before its end, by close(), an error or a newer one; "
            "iterate anew"
        )
