"""What a run has delivered: batch slices that are pending, given, acknowledged, and told to the
dispatch store. Without torch."""

import os
import threading
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, NamedTuple, Protocol

from featstore.dispatch.leases.delivered import Done, Rows
from featstore.dispatch.terms import Claim
from featstore.errors import DispatchError
from featstore.loader.batches.progress import ClaimKey, Progress, Segment, delivered
from featstore.loader.run.claims import Claims, Kind, Limits, Report
from featstore.loader.run.state import LoaderState

_FORKED = (
    "this iteration is of process {parent}, and was copied into {child} by a fork: iterate anew in "
    "this process, under a dispatch store that both reach, or start DataLoader workers, which "
    "share each epoch"
)


class Checked(Protocol):
    """A batch that nobody may write to."""

    def require_unwritten(self) -> None:
        """BatchError where somebody did."""


class _Pending(NamedTuple):
    """What is delivered once all before it is."""

    progress: Progress
    check: Checked | None


class Delivery:
    """The order in which the batch slices of one run are delivered, and how far that is.

    Whoever makes batches adds their slices. The consumer is given each batch, and acknowledges it:
    then it is delivered, and what follows it without a batch too. So what is delivered is at any
    time a prefix of what was added, and never includes a batch that the consumer still has. Where
    no thread runs ahead, a batch counts as given when it is added.

    Safe to use from any thread. Locks: `_lock` guards all of it and is the last in the order of
    locks. Who holds it takes no other lock, asks no store, and calls nothing that may wait;
    `Reports` takes its own lock before this one. It is reentrant because a finalizer or a signal
    handler that closes the run, or saves its state, may run in the thread that holds it. A copy in
    a forked process, where the lock may be held for ever, is refused before the lock is touched.

    `counts` holds what is counted here: `rows_dropped_last`, `rows_dropped_tail`, `leases_lost`.
    `tells`: whether there is a store to be told of claims.
    """

    def __init__(self, start: LoaderState, counts: Counter[str], *, tells: bool) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Where the run is, and what is delivered there: set together, so that whoever interrupts
        # this thread, as a signal handler does, finds them fit.
        self._position: tuple[LoaderState, dict[int, Rows]] = start, dict(start.done)
        self._ended: LoaderState | None = None
        self._pending: deque[_Pending] = deque()
        self._num_given = 0  # Of the pending slices from the first on: batches and what is between.
        self._stop_epoch: int | None = None
        self._limits: Limits | None = None
        self._counts, self._claims = counts, Claims(tells)
        self._pid, self.closed = os.getpid(), threading.Event()
        # These change once, from False to True, and may be read without the lock.
        self.is_ahead = self.is_closed = self.is_stopped = False

    def run_ahead(self) -> None:
        """From now on another thread than the consumer's adds: a batch is given by `give()`."""
        with self._lock:
            self.is_ahead = True

    def add(self, progress: Progress, check: Checked | None = None) -> bool:
        """The progress comes after all that was added before it; after a stop nothing does.

        Without a batch it is delivered at once where nothing is pending before it.

        Returns:
            Whether a claim is complete of which the store is to be told; never for a batch, with
            which nothing is delivered yet.
        """
        if os.getpid() != self._pid:
            self.require_own_process()
        with self._lock:
            if self._stop_epoch is not None:
                return False
            self._pending.append(_Pending(progress, check))
            if progress.is_batch:
                if not self.is_ahead:
                    self._num_given = len(self._pending)
                return False
            self._deliver_without_batch()
            return bool(self._claims.complete)

    def give(self) -> None:
        """The consumer has the first of the pending batches that it did not have."""
        self.require_own_process()
        with self._lock:
            for number, pending in enumerate(islice(self._pending, self._num_given, None)):
                if pending.progress.is_batch:
                    self._num_given += number + 1
                    return

    def acknowledge(self) -> bool:
        """All that was given is delivered.

        Returns:
            Whether a claim is complete of which the store is to be told.

        Raises:
            BatchError: A batch was written to. It stays pending, and so does what follows it.
        """
        if os.getpid() != self._pid:
            self.require_own_process()
        with self._lock:
            while self._num_given:
                if (check := self._pending[0].check) is not None:
                    check.require_unwritten()
                self._num_given -= 1
                self._deliver(self._pending.popleft().progress)
            self._deliver_without_batch()
            return bool(self._claims.complete)

    def stop(self, epoch: int, limits: Limits | None = None) -> None:
        """The run ends before its rows do: `epoch` is next. It takes effect once all that was added
        before it is delivered, at once where that is so. `limits`: as of `Claims.num_rows_left`."""
        self.require_own_process()
        with self._lock:
            self._stop_epoch, self._limits = epoch, limits
            self._deliver_without_batch()

    def end_epoch(self, *, is_last: bool, **plan: Any) -> None:
        """All of the epoch is delivered, and the next begins, of another run if `is_last`.

        `plan`: the fields of a state that change with the plan of a followed table.
        """
        self.require_own_process()
        with self._lock:
            self._turn(self._position[0].epoch + 1, is_last=is_last, **plan)
            self._claims.clear()

    def reopen(self) -> None:
        """The end does not hold, as rows of the last epoch are unread: the state is that of before
        it.
        """
        self.require_own_process()
        with self._lock:
            if self._ended is not None:
                self._position = replace(self._ended, done={}), dict(self._ended.done)

    def begin_plan(self, **plan: Any) -> None:
        """The plan of a followed table is known; fields as of `end_epoch`."""
        self.require_own_process()
        with self._lock:
            at, done = self._position
            self._position = replace(at, **plan), done

    def wait(self) -> None:
        """A thread that runs ahead waits until all that it added is delivered, or the run closed.
        Others need not: they acknowledge before they add."""
        self.require_own_process()
        with self._lock:
            self._changed.wait_for(lambda: self.is_closed or not self.is_ahead or not self._pending)

    def close(self) -> bool:
        """Nobody waits any more. What the consumer has, or still gets, can be acknowledged.

        Returns:
            False where it was closed before, and in a forked copy.
        """
        if self.is_forked:
            return False
        with self._lock:
            if self.is_closed:
                return False
            self.is_closed = True
            self._changed.notify_all()
        self.closed.set()  # Not under the lock: it has one of its own.
        return True

    @property
    def epoch(self) -> int:
        """The epoch that is being delivered."""
        with self._lock:
            return self._position[0].epoch

    @property
    def done(self) -> Done:
        """A copy of what is delivered of the epoch's splits."""
        return self.state.done

    @property
    def state(self) -> LoaderState:
        """Where the run is, at what was delivered last."""
        self.require_own_process()
        with self._lock:
            at, done = self._position
            return replace(at, done=dict(done))

    @property
    def state_with_given(self) -> LoaderState:
        """As if all that was given were acknowledged; after the run's end, its last epoch."""
        self.require_own_process()
        with self._lock:
            if self._ended is not None:
                return self._ended
            at, done = self._position
            given = list(islice(self._pending, self._num_given))
            rest = islice(self._pending, self._num_given, None)
            given += takewhile(lambda pending: not pending.progress.is_batch, rest)
            segments = [segment for pending in given for segment in pending.progress.segments]
            return replace(at, done=done | _changes(done, segments))

    def claim(self, claim: Claim) -> None:
        """The worker has it now."""
        with self._lock:
            self._claims.open[claim.key] = claim

    def claim_of(self, key: ClaimKey) -> Claim:
        """The claim of this key, not all of which is delivered."""
        with self._lock:
            return self._claims.open[key]

    def fail(self, claim: Claim) -> None:
        """It cannot be read."""
        with self._lock:
            self._claims.failed[claim.key] = claim

    def lose(self, key: ClaimKey) -> None:
        """Another worker has taken the split over, and delivers what the store was not told of."""
        with self._lock:
            self._counts["leases_lost"] += self._claims.lose(key)

    @property
    def has_failed(self) -> bool:
        """Whether a claim could not be read and the store does not know of it."""
        with self._lock:
            return bool(self._claims.failed)

    def untold(self, *kinds: Kind) -> list[Report]:
        """What of these kinds the store is to be told. Each comes until `told` is called for it."""
        with self._lock:
            return [report for kind in kinds for report in self._claims.untold(kind)]

    def told(self, report: Report, *, is_mine: bool) -> None:
        """The store was told; `is_mine`: and did not answer that another worker has the claim."""
        with self._lock:
            self._claims.told(report)
            if not is_mine:
                self._counts["leases_lost"] += self._claims.lose(report.claim.key)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in another process."""
        return os.getpid() != self._pid

    def require_own_process(self) -> None:
        """DispatchError in a forked copy: it has no threads, and its rows are the parent's."""
        if os.getpid() != self._pid:
            raise DispatchError(_FORKED.format(parent=self._pid, child=os.getpid()))

    def _deliver(self, progress: Progress) -> None:
        _, done = self._position
        done.update(
            _changes(done, progress.segments)
        )  # At once: a state never has a part of a batch.
        for segment in progress.segments:
            self._claims.note(segment)
        if progress.num_dropped_rows:
            self._counts["rows_dropped_last"] += progress.num_dropped_rows

    def _deliver_without_batch(self) -> None:
        """Delivers what waited only for the batches before it."""
        while self._pending and not self._pending[0].progress.is_batch:
            self._deliver(self._pending.popleft().progress)
        if self._pending:
            return
        if self._stop_epoch is not None and not self.is_stopped:
            self._counts["rows_dropped_tail"] += self._claims.num_rows_left(self._limits)
            self._turn(self._stop_epoch, is_last=True)
            self.is_stopped = True
        if self.is_ahead:
            self._changed.notify_all()

    def _turn(self, epoch: int, *, is_last: bool, **plan: Any) -> None:
        at, done = self._position
        self._ended = replace(at, done=done) if is_last else None
        first_epoch = epoch if is_last else at.first_epoch
        # One of several workers says how it ended: the others may not be there yet.
        ended = done if is_last and at.num_workers > 1 else None
        turned = replace(at, epoch=epoch, first_epoch=first_epoch, ended=ended, done={}, **plan)
        self._position = turned, {}


def _changes(done: Done, segments: Iterable[Segment]) -> dict[int, Rows]:
    """What the segments change of what is delivered."""
    changed: dict[int, Rows] = {}
    for segment in segments:
        index = segment.split_index
        changed[index] = delivered(changed.get(index, done.get(index, 0)), segment)
    return changed
