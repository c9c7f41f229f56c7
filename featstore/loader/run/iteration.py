"""What a training loop iterates."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from featstore.errors import StateError
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.cleanup import when_gone
from featstore.loader.run.epochs import Run
from featstore.tensors.batch import Batch


class Owner(Protocol):
    """The loader that is iterated."""

    def begin_run(self) -> Run:
        """A new iteration over the loader's epochs, in place of the one under way."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Iteration:
    """The batches of one iteration. Dropping it, as a loop does that ends or breaks, ends its
    threads.

    Args:
        owner: The loader. It lives as long as the iteration does, since it keeps the directories
            that the run uses.
        run: What makes the batches; None to begin it when the first batch is asked for.
    """

    def __init__(self, owner: Owner, run: Run | None) -> None:
        self._owner = owner
        self._run: Run | None = None
        # Kept here and not in the run, or the two would keep each other alive.
        self._slices: Iterator[BatchSlice] = iter(())
        self._close: Callable[[], object] = _nothing
        if run is not None:
            self._take(run)

    def __iter__(self) -> "Iteration":
        return self

    def __next__(self) -> Batch:
        run = self._run or self._take(self._owner.begin_run())
        _require_open(run)
        if run.delivery.is_closed:
            raise StopIteration
        run.delivery.require_own_process()
        try:
            if not run.delivery.is_ahead:
                run.acknowledge()
            batch = run.batch(self._next_slice(run))
            if batch is None:
                run.finish()
                raise StopIteration
            return batch
        except BaseException as error:
            was_closed = run.delivery.is_closed
            # A loop that is behind still gets the batches from before an error.
            run.delivery.wait()
            self._close()
            if was_closed and isinstance(error, StateError):
                _require_open(run)
            raise

    def run_ahead(self) -> "Iteration":
        """From now on another thread than the consumer's asks for batches: what it is handed counts
        as given, and then as delivered, only when the consumer says so by `give` and
        `acknowledge`."""
        run = self._run or self._take(self._owner.begin_run())
        run.delivery.run_ahead()
        return self

    def give(self) -> None:
        """The consumer has the next batch."""
        if self._run is not None:
            self._run.delivery.give()

    def acknowledge(self) -> None:
        """The consumer has done with the batches that it has."""
        if self._run is not None:
            self._run.acknowledge()

    def close(self) -> None:
        """Ends the iteration before its end. May be called more than once, from any thread."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """The loader's state with the batch that was handed out last counted as delivered, as
        torchdata's StatefulDataLoader expects of an iterator. After the last batch it is of the
        epoch that was read, and not of the next."""
        return (
            self._owner.state_dict() if self._run is None else self._run.state_handed_over.to_json()
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Waits for the other workers of a DataLoader, each of which has a
        state of its own.
        """
        self._close()
        self._owner.load_state_dict(state)
        self._take(self._owner.begin_run())

    def _take(self, run: Run) -> Run:
        self._run, self._slices = run, run.slices()
        self._close = when_gone(self, run.close)
        return run

    def _next_slice(self, run: Run) -> BatchSlice | None:
        """The next slice that has rows, or None at the end; what others stand for is delivered in
        its turn, without a batch.
        """
        for rows in self._slices:
            if rows.blocks:
                return rows
            run.add_without_batch(rows)
        _require_open(run)
        return None


def _require_open(run: Run) -> None:
    """StateError where the run was closed before its end; StopIteration where that is its end, of a
    table that is followed.
    """
    if run.delivery.is_closed and not run.is_exhausted:
        if run.follows:
            raise StopIteration
        raise StateError(
            "this iteration was closed before its end, by close(), an error or a newer one; "
            "iterate anew"
        )


def _nothing() -> None:
    """Nothing has begun that is to be closed."""
