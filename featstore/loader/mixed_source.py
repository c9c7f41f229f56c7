"""The life of a loader of several tables, each of which an ordinary source reads."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from featstore.base.errors import DispatchError, StateError
from featstore.loader.batches.stats import OnStats, summed_stats
from featstore.loader.description import mixed_descriptions
from featstore.loader.mixed_state import MixedState, Turns
from featstore.loader.request.train_config import (
    ALL_EXHAUSTED,
    MixedTables,
    naming,
    num_passes,
    table_names,
)
from featstore.loader.table_source import Life, TableSource
from featstore.tensors.batch import Batch

_LOG = logging.getLogger(__name__)
# A worker that got no batch in this many passes in a row goes on without the table. One is too few:
# other workers may have taken the few splits of a small table, and be in a later pass. Chosen, not
# measured.
_MOST_EMPTY = 8


class MixedIterator:
    """The batches of one iteration over a mixture. For one consumer. Like a `BatchIterator`, it
    begins when its first batch, or its state, is asked for.

    Three counts of batches follow each other: of those drawn from the tables, of those given to the
    consumer, and of those delivered, which it has acknowledged. Where a thread runs ahead of the
    consumer, that thread draws, and changes nothing that the consumer changes.

    Args:
        owner: The source, which the iteration keeps alive.
    """

    def __init__(self, owner: "MixedSource") -> None:
        self._owner = owner
        self._reset()

    def _reset(self) -> None:
        """Makes this an iteration that has not begun."""
        self._iterators = [iter(source) for source in self._owner.sources]
        self._drawn = self._given = self._delivered = Turns((), ())  # Until it begins.
        # Of batches that are drawn and not yet given: their tables, and the turns after each.
        self._ahead: deque[tuple[int, Turns]] = deque()
        self._exhausted: set[int] = set()
        self._num_empty = [0] * len(self._iterators)  # Passes in a row without a batch.
        self._epoch = 0
        self._has_begun = self._is_ahead = self._has_failed = False
        self.has_ended = False

    def __iter__(self) -> "MixedIterator":
        return self

    def __next__(self) -> Batch:
        if self.has_ended:
            raise StopIteration
        if self._has_failed:
            raise StateError("this iteration has failed; iterate anew")
        try:
            self.begin()
            if not self._is_ahead:
                self.acknowledge()
            batch = self._next_batch()
            if batch is None:
                self._end()
                raise StopIteration
            return batch
        except StopIteration:
            raise
        except BaseException:
            # A loop that is behind still gets the batches from before the error.
            self._has_failed = True
            self._wait_delivered()
            self.close()
            raise

    def begin(self) -> None:
        """Begins the iteration, unless it has begun."""
        if self._has_begun:
            return
        self._owner.take(self)
        passes = num_passes(self._owner.stop)
        for table, iterator in enumerate(self._iterators):
            iteration = iterator.begin()
            iteration.pauses = passes > 1
            if iteration.delivery.state.epoch > iteration.meeting.first_epoch:
                self._exhausted.add(table)
        meeting = self._iterators[0].begin().meeting
        self._epoch = meeting.first_epoch // passes
        self._drawn = self._given = self._delivered = self._owner.turns(
            meeting.number, meeting.first_epoch
        )
        self._has_begun = True

    def run_ahead(self) -> "MixedIterator":
        """As of `BatchIterator`."""
        self.begin()
        self._is_ahead = True
        for iterator in self._iterators:
            iterator.run_ahead()
        return self

    def give(self) -> None:
        """As of `BatchIterator`."""
        if self._ahead:
            table, self._given = self._ahead.popleft()
            self._iterators[table].give()

    def acknowledge(self) -> None:
        """Counts the batches that the consumer has as delivered."""
        for iterator in self._iterators:
            iterator.acknowledge()
        self._delivered = self._given

    def close(self) -> None:
        """Ends the iteration before its end. May be called more than once, from any thread."""
        for iterator in self._iterators:
            iterator.close()

    def state(self, table_states: Sequence[dict[str, Any]]) -> MixedState:
        """The state after what was delivered last, with those of the tables."""
        self.begin()
        return MixedState(
            stop=self._owner.stop,
            epoch=self._epoch,
            turns=self._delivered,
            tables=tuple(table_states),
            ended=self.has_ended,
        )

    def state_dict(self) -> dict[str, Any]:
        """The state in which the batch that was handed out last counts as delivered. After the last
        batch it is at the end of the epoch that was read, not at the beginning of the next.

        Raises:
            StateError: In one of several DataLoader workers, where each table may be read more than
                once: the others may be in another pass.
        """
        self.begin()
        worker = self._iterators[0].begin().meeting.worker
        is_one_of_several = worker.is_dataloader and worker.num_workers > 1
        if is_one_of_several and self._owner.stop == ALL_EXHAUSTED:
            raise StateError(
                "a StatefulDataLoader of several workers: expected stop first_exhausted, found "
                f"{ALL_EXHAUSTED}: workers may be in different passes over a table, and when they "
                "restore, each has only its own state; use one worker, or the other stop"
            )
        return MixedState(
            stop=self._owner.stop,
            epoch=self._epoch,
            turns=self._given,
            tables=tuple(iterator.state_dict() for iterator in self._iterators),
        ).to_json()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As of `BatchIterator`: the other workers of the DataLoader load theirs meanwhile."""
        self.close()
        self._owner.load_state_dict(state)
        self._reset()
        self.begin()

    def _next_batch(self) -> Batch | None:
        """The next batch; None at the end."""
        while not self._is_over():
            table = self._drawn.next_table()
            batch = next(self._iterators[table], None)
            if batch is not None:
                self._hand_over(table)
                return batch
            self._exhausted.add(table)
            self._note_empty(table)
        self._warn_of_unread()
        return None

    def _warn_of_unread(self) -> None:
        """Warns of a table that gave no batch, at whose first turn the epoch ended."""
        for table in self._exhausted if self._owner.stop != ALL_EXHAUSTED else ():
            if not self._drawn.num_batches[table]:
                _LOG.warning(
                    "%s gave this worker no batch, so its epoch ends after %d batches: its rows "
                    "are filtered out, are fewer than a batch (drop_last), or were read by other "
                    "workers; leave it out, or choose stop %s",
                    *(self._owner.names[table], sum(self._drawn.num_batches), ALL_EXHAUSTED),
                )

    def _is_over(self) -> bool:
        """Whether as many tables are exhausted as end the epoch."""
        is_all = self._owner.stop == ALL_EXHAUSTED
        return len(self._exhausted) >= (len(self._iterators) if is_all else 1)

    def _hand_over(self, table: int) -> None:
        self._owner.tell_stats(is_last=False)
        self._num_empty[table] = 0
        self._drawn = self._drawn.after(table)
        if self._is_ahead:
            self._ahead.append((table, self._drawn))
        else:
            self._given = self._drawn

    def _note_empty(self, table: int) -> None:
        """Counts a pass that has ended since the last batch. Leaves the table out after several."""
        self._num_empty[table] += 1
        if self._num_empty[table] > _MOST_EMPTY:
            self._drawn = self._drawn.without(table)
            _LOG.warning(
                "%s: %d passes in a row gave this worker no batch, because its rows are filtered "
                "out, or there are fewer batches than workers: the epoch goes on without it here",
                *(self._owner.names[table], _MOST_EMPTY),
            )

    def _end(self) -> None:
        """Ends the epoch, once all of its batches are delivered."""
        self._wait_delivered()
        self.has_ended = True
        self.close()
        self._owner.tell_stats(is_last=True)

    def _wait_delivered(self) -> None:
        for iterator in self._iterators:
            iterator.wait_delivered()


class MixedSource(Life[MixedIterator]):
    """A loader of several tables, batches of which are drawn by weight: what a `FeatureLoader` of a
    config with `tables` reads. docs/mixing.md describes it.

    Each batch is of one table, and each table's source keeps its guarantees: every row once in each
    pass.

    Args:
        tables: What is mixed.
        on_stats: What is called with metrics.

    Attributes:
        names: The tables, as messages name them.
        stop: When an epoch ends: `first_exhausted` or `all_exhausted`.
        sources: One for each table.
        num_epochs: How many epochs each iteration reads.
    """

    num_epochs = 1

    def __init__(self, tables: MixedTables, on_stats: OnStats | None) -> None:
        super().__init__(on_stats)
        self.names, self.stop = table_names(tables.configs), tables.stop
        self.sources = [TableSource(each) for each in mixed_descriptions(tables)]
        self._weights = tuple(tables.weights)
        self._restored: MixedState | None = None

    def __str__(self) -> str:
        return f"tables={self.names}, stop={self.stop}"

    def __iter__(self) -> MixedIterator:
        return MixedIterator(self)

    def take(self, iteration: MixedIterator) -> None:
        """Makes this the current iteration, and ends the one under way. Called by `MixedIterator`.

        Args:
            iteration: It is about to begin.
        """
        if self.iteration is not iteration:
            self.forget()
        self.iteration = iteration

    def num_batches(self) -> NoReturn:
        raise TypeError(
            "a mixture of tables has no len(): when it ends depends on which table is exhausted, "
            "in each worker; count batches instead"
        )

    def set_epoch(self, epoch: int) -> None:
        if self._restored is not None and self._restored.epoch != epoch:
            self._restored = None
        self.forget()
        for source in self.sources:
            source.set_epoch(epoch * num_passes(self.stop))

    def state_dict(self) -> dict[str, Any]:
        self._adopt()
        states = [source.state_dict() for source in self.sources]
        if self.iteration is not None:
            return self.iteration.state(states).to_json()
        first_epoch = int(states[0]["first_epoch"])
        return MixedState(
            stop=self.stop,
            epoch=first_epoch // num_passes(self.stop),
            turns=self.turns(0, first_epoch),
            tables=tuple(states),
        ).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = MixedState.from_json(state)
        saved.require_fit(self.stop, len(self.sources))
        saved = saved.to_continue
        parts = list(zip(self.names, self.sources, saved.tables, strict=True))
        for name, source, table in parts:
            with naming(name):
                source.require_fit(table)
        self._adopt()
        self.forget()
        for name, source, table in parts:
            with naming(name):
                source.load_state_dict(table)
        self._restored = saved

    def recorded_order(self, _: int | None) -> NoReturn:
        raise DispatchError(
            "recorded_order(): expected a loader of one table, found a mixture, which has no order "
            "replay; a mixture in order static is repeatable"
        )

    def stats(self) -> dict[str, Any]:
        """Metrics of this process since the loader was made, summed over the tables; under `tables`
        some of each table, by its number in the config. May be called from any thread.
        """
        return summed_stats([source.stats() for source in self.sources])

    def verdict(self) -> str:
        """What the last passes over the tables waited for, in one line; empty before any has
        ended.
        """
        verdicts = [source.verdict() for source in self.sources]
        told = zip(self.names, verdicts, strict=True)
        lines = [f"{name}: {verdict or 'no pass over it has ended'}" for name, verdict in told]
        return "; ".join(lines) if any(verdicts) else ""

    def close(self) -> None:
        with ExitStack() as ending:  # All are closed, even if one fails.
            for source in self.sources:
                ending.callback(source.close)

    def turns(self, number: int, first_epoch: int) -> Turns:
        """The turns with which an iteration begins: those of the loaded state, if it is of the same
        epoch and weights.

        Args:
            number: The number of the iteration over the first table, since the last restore.
            first_epoch: The epoch of that table with which it begins.
        """
        begin, saved = Turns.begin(self._weights), self._restored
        is_saved = (
            saved is not None
            and number == 0
            and saved.epoch == first_epoch // num_passes(self.stop)
            and saved.turns.weights == begin.weights
        )
        return saved.turns if saved is not None and is_saved else begin

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process gets: everything except the iteration."""
        return self.__dict__ | {"iteration": None}
