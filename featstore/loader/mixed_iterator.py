"""The iterator of a training loop over a mixture."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from featstore.base.errors import StateError
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.loader.iteration.rendezvous import Meeting
from featstore.loader.mixed_state import MixedState, num_passes
from featstore.loader.request.mixed_tables import ALL_EXHAUSTED
from featstore.loader.turns import Turns
from featstore.tensors.batch import Batch

_LOG = logging.getLogger(__name__)
# A worker to which so many passes in a row gave no batch goes on without the table. One is too few:
# other workers may have taken the few splits of a small table, and be in a later pass. Chosen, not
# measured.
_MOST_EMPTY = 8


class MixOwner(Protocol):
    """The loader over which an iteration runs."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def stop(self) -> str: ...

    def take(self, iteration: "MixedIterator") -> None:
        """Makes this the current iteration, and ends the one under way."""

    def turns_at(self, meeting: Meeting) -> Turns:
        """The turns with which an iteration begins."""

    def tell_stats(self, *, is_last: bool) -> None:
        """As of `batch_iterator.Owner`."""

    def load_state_dict(self, state: Any) -> None: ...

    def iterators(self) -> Sequence[BatchIterator]:
        """A new iteration over each table."""


class MixedIterator:
    """The batches of one iteration over a mixture. For one consumer. Like a `BatchIterator`, it
    begins when its first batch, or its state, is asked for.

    Three counts of batches follow each other: of those drawn from the tables, of those given to the
    consumer, and of those delivered, which it has acknowledged. Where a thread runs ahead of the
    consumer, that thread draws, and changes nothing that the consumer changes.

    Args:
        owner: The loader, which the iteration keeps alive.
        iterators: One over each table.
    """

    def __init__(self, owner: MixOwner, iterators: Sequence[BatchIterator]) -> None:
        self._owner, self._iterators = owner, iterators
        self._drawn = self._given = self._delivered = Turns((), ())  # Until it begins.
        # Of batches that are drawn and not yet given: their tables, and the turns after each.
        self._ahead: deque[tuple[int, Turns]] = deque()
        self._unacknowledged: set[int] = set()  # The tables of batches that are given.
        self._exhausted: set[int] = set()
        self._num_empty = [0] * len(iterators)  # Passes in a row without a batch.
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
            if passes > 1:
                iterator.pause_at_epochs()
            if iteration.delivery.epoch > iteration.meeting.first_epoch:
                self._exhausted.add(table)
        meeting = self._iterators[0].begin().meeting
        self._epoch = meeting.first_epoch // passes
        self._drawn = self._given = self._delivered = self._owner.turns_at(meeting)
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
            table, turns = self._ahead.popleft()
            self._iterators[table].give()
            self._note_given(table, turns)

    def acknowledge(self) -> None:
        """Counts the batches that the consumer has as delivered."""
        for table in sorted(self._unacknowledged):
            self._iterators[table].acknowledge()
            self._unacknowledged.discard(table)
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
        # From here on it is a new iterator.
        self.__dict__ = MixedIterator(self._owner, self._owner.iterators()).__dict__
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
            self._note_given(table, self._drawn)

    def _note_given(self, table: int, turns: Turns) -> None:
        self._unacknowledged.add(table)
        self._given = turns

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
