"""What a training loop iterates."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from featstore.errors import StateError
from featstore.loader.batching import Cut
from featstore.loader.cleanup import when_gone
from featstore.loader.iteration import Run
from featstore.loader.tensors import Batch


class Owner(Protocol):
    """The loader that is iterated."""

    def begin_run(self) -> Run:
        """A new pass over the loader's epochs, in place of the one under way."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Iteration:
    """The batches of one pass. Letting go of it, as a loop does that ends or breaks, ends its threads.

    `owner` lives as long as the iteration does: it keeps the directories that the run uses. Without a `run` one is begun
    when the first batch is asked for.
    """

    def __init__(self, owner: Owner, run: Run | None) -> None:
        self._owner = owner
        self._run: Run | None = None
        self._cuts: Iterator[Cut] = iter(())
        self._close: Callable[[], object] = _nothing
        if run is not None:
            self._take(run)

    def __iter__(self) -> "Iteration":
        return self

    def __next__(self) -> Batch:
        run = self._run or self._take(self._owner.begin_run())
        _require_open(run)
        try:
            run.acknowledge()
            return run.hand_over(self._next_cut(run))
        except BaseException:
            self._close()
            raise

    def state_dict(self) -> dict[str, Any]:
        """The loader's state with the batch that was handed out last counted as delivered, as torchdata's StatefulDataLoader
        expects of an iterator. After the last batch it is of the epoch that was read, and not of the next."""
        return self._owner.state_dict() if self._run is None else self._run.state_handed_over.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Waits for the other workers of a DataLoader, each of which has a state of its own."""
        self._close()
        self._owner.load_state_dict(state)
        self._take(self._owner.begin_run())

    def _take(self, run: Run) -> Run:
        self._run, self._cuts = run, run.cuts()
        self._close = when_gone(self, run.close)
        return run

    def _next_cut(self, run: Run) -> Cut:
        """The next cut that has rows; what others stand for is delivered without a batch."""
        for with_rows in self._cuts:
            if with_rows.spans:
                return with_rows
            run.deliver(with_rows)
        _require_open(run)
        raise StopIteration


def _require_open(run: Run) -> None:
    if run.is_closed and not run.is_exhausted:
        raise StateError("this iteration was closed before its end, by close(), an error or a newer one; iterate anew")


def _nothing() -> None:
    """Nothing has begun that is to be closed."""
