"""What a training loop iterates."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from featstore.errors import StateError
from featstore.loader.batches.cutting import Cut
from featstore.loader.cleanup import when_gone
from featstore.loader.run.delivery import BatchSlice
from featstore.loader.run.iteration import Run, to_deliver
from featstore.loader.run.padding import padding_of
from featstore.loader.run.tail import Steps
from featstore.tensors.batch import Batch


class Owner(Protocol):
    """The loader that is iterated."""

    def begin_run(self) -> Run:
        """A new pass over the loader's epochs, in place of the one under way."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Iteration:
    """The batches of one pass. Letting go of it, as a loop does that ends or breaks, ends its
    threads.

    `owner` lives as long as the iteration does: it keeps the directories that the run uses. Without
    a `run` one is begun when the first batch is asked for.
    """

    def __init__(self, owner: Owner, run: Run | None) -> None:
        self._owner = owner
        self._run: Run | None = None
        self._cuts: Iterator[Cut] = iter(())
        self._close: Callable[[], object] = _nothing
        self._num_steps = 0
        self._last: Batch | None = None
        if run is not None:
            self._take(run)

    def __iter__(self) -> "Iteration":
        return self

    def __next__(self) -> Batch:
        run = self._run or self._take(self._owner.begin_run())
        _require_open(run)
        if run.is_closed:
            raise StopIteration
        run.require_own_process()
        try:
            if not run.is_ahead:
                run.acknowledge()
            with_rows = self._next_cut(run)
            batch = self._batch(run, with_rows)
            if batch is None:
                run.finish()
                raise StopIteration
            return batch
        except BaseException as error:
            was_closed = run.is_closed
            run.wait()  # A loop that is behind still gets the batches from before an error.
            self._close()
            if was_closed and isinstance(error, StateError):
                _require_open(run)
            raise

    def run_ahead(self) -> "Iteration":
        """From now on another thread than the consumer's asks for batches: what it is handed counts
        as given, and then as delivered, only when the consumer says so by `give` and
        `acknowledge`."""
        run = self._run or self._take(self._owner.begin_run())
        run.run_ahead()
        return self

    def give(self) -> None:
        """The consumer has the next batch."""
        if self._run is not None:
            self._run.give()

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
        self._run, self._cuts = run, run.cuts()
        self._close = when_gone(self, run.close)
        return run

    def _batch(self, run: Run, with_rows: Cut | None) -> Batch | None:
        if run.steps is not None:
            return self._in_step(run, run.steps, with_rows)
        return None if with_rows is None else run.hand_over(with_rows)

    def _in_step(self, run: Run, steps: Steps, with_rows: Cut | None) -> Batch | None:
        """The batch of a step that all ranks make: these rows, padding, or None where no rank goes
        on.
        """
        self._num_steps += 1
        if with_rows is None:
            return self._padding(run) if steps.pads(self._num_steps) else None
        if not steps.makes(self._num_steps, with_rows.num_ahead(run.batch_size)):
            run.stop()
            return None
        self._last = run.hand_over(with_rows)
        return self._last

    def _padding(self, run: Run) -> Batch:
        if self._last is None:
            self._last = run.some_rows().batch()
        padding = run.sendable(padding_of(self._last))
        run.add(BatchSlice(()))
        return padding

    def _next_cut(self, run: Run) -> Cut | None:
        """The next cut that has rows, or None at the end; what others stand for is delivered in its
        turn, without a batch."""
        for with_rows in self._cuts:
            if with_rows.spans:
                return with_rows
            run.add(to_deliver(with_rows))
        _require_open(run)
        return None


def _require_open(run: Run) -> None:
    """StateError where the run was closed before its end; StopIteration where that is its end, of a
    table that is followed.
    """
    if run.is_closed and not run.is_exhausted:
        if run.follows:
            raise StopIteration
        raise StateError(
            "this iteration was closed before its end, by close(), an error or a newer one; "
            "iterate anew"
        )


def _nothing() -> None:
    """Nothing has begun that is to be closed."""
