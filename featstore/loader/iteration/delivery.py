"""What an iteration has delivered: batch slices that are pending, given to the consumer,
acknowledged, and reported to the dispatch store. Imports no torch.
"""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

from featstore.base.errors import DispatchError
from featstore.base.processes import OwnProcess
from featstore.dispatch.plan import Done, Rows
from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import ClaimKey, Progress, Segment, delivered
from featstore.loader.iteration.state import LoaderState

Kind = Literal["complete", "advanced", "failed"]
Limits = Mapping[ClaimKey, int | None]
Check = Callable[[], None]  # BatchError if a batch was written to.


class Report(NamedTuple):
    """A report about a claim to the store.

    Attributes:
        claim: The claim.
        kind: `advanced`: delivered up to row `through`; `complete`: delivered to its end; `failed`:
            it cannot be read.
        through: Rows before this one are delivered.
    """

    claim: Claim
    kind: Kind
    through: int = 0


class Claims:
    """What is delivered of one worker's claims of an epoch, and what of that is not yet reported.
    Both are computed when they are asked for, and not for each batch.

    It has no lock: only its `Delivery` uses it, under its own lock.

    Args:
        tells: Whether there is a store to report to; there is none in the orders in which claims
            are computed.
        done: What was delivered of the epoch before.

    Attributes:
        open: The claims that are not complete; without a store, all.
    """

    def __init__(self, tells: bool, done: Done) -> None:
        self.tells, self._done = tells, dict(done)
        self.open: dict[ClaimKey, Claim] = {}
        # The last segment that was delivered of each claim, if that is not complete. Complete ones
        # are in `_done`.
        self._reached: dict[ClaimKey, Segment] = {}
        self._num_complete_rows = 0  # Without a store: those of complete claims.
        # The reports that the store has not got, and the row of each open claim that it has.
        self._due: dict[Kind, dict[ClaimKey, Report]] = {"complete": {}, "failed": {}}
        self._told: dict[ClaimKey, int] = {}
        self._lost: set[ClaimKey] = set()

    def num_rows_left(self, limits: Limits | None, num_own_rows: int | None = None) -> int:
        """How many rows of the claims are not delivered.

        Args:
            limits: The row at which each claim ends now, since other workers may have cut off rows
                (None: at its original end). Claims that are not in it have ended or are lost. None:
                no store is asked for claims.
            num_own_rows: Where no store is asked: the rows of all claims of the epoch, and of later
                ones, also of those that were not made yet.
        """
        if num_own_rows is not None:
            begun = sum(_num_rows(segment) for segment in self._reached.values())
            return num_own_rows - self._num_complete_rows - begun
        num_rows = 0
        for key, claim in self.open.items():
            if limits is not None and key not in limits:
                continue
            end = (limits or {}).get(key) or claim.end_row or claim.split.num_rows
            reached = self._reached.get(key)
            through = 0 if reached is None else reached.through
            num_rows += max(0, end - max(claim.start_row, through))
        return num_rows

    def done_with(self, segments: Iterable[Segment]) -> dict[int, Rows]:
        """What is delivered of the epoch, as if these segments were, too."""
        return self._done | _changes(self._done, (*self._reached.values(), *segments))

    def note(self, segments: Sequence[Segment]) -> None:
        """Records that the segments of a batch are delivered."""
        # In one call, so that a state never has a part of a batch.
        self._reached.update([(segment.claim.key, segment) for segment in segments])
        for segment in segments:
            if segment.is_complete:
                self._complete(segment)

    def _complete(self, segment: Segment) -> None:
        key = segment.claim.key
        self._done.update(_changes(self._done, (segment,)))
        if not self.tells:
            self._num_complete_rows += _num_rows(segment)
        elif key not in self.open or key in self._lost:
            return
        else:
            self.add(Report(segment.claim, "complete"))
            del self.open[key]
            self._told.pop(key, None)
        del self._reached[key]

    @property
    def has_complete(self) -> bool:
        """Whether a claim is complete and has to be reported."""
        return bool(self._due["complete"])

    def untold(self, kind: Kind) -> list[Report]:
        """The reports of this kind that the store has not got."""
        if kind != "advanced":
            return list(self._due[kind].values())
        return [
            Report(segment.claim, kind, segment.through)
            for key, segment in self._reached.items()
            if self.tells
            and self._told.get(key) != segment.through
            and key in self.open
            and key not in self._lost
            and key not in self._due["complete"]
        ]

    def add(self, report: Report) -> None:
        """Adds a report that is due, in place of an earlier one of the same kind."""
        self._due[report.kind][report.claim.key] = report

    def told(self, report: Report) -> None:
        """Records that the store has got the report. Meanwhile there may be a later one."""
        key = report.claim.key
        if report.kind != "advanced":
            if self._due[report.kind].get(key) == report:
                del self._due[report.kind][key]
        elif key in self.open:
            self._told[key] = report.through

    def lose(self, key: ClaimKey) -> bool:
        """Records that another worker has the claim. Returns whether that is new."""
        is_new = key not in self._lost
        self._lost.add(key)
        self._due["complete"].pop(key, None)
        return is_new


class Delivery:
    """The queue of progress between the making of batches and their delivery, and the state of what
    is delivered.

    The producer adds the progress of each batch. The consumer is given each batch and acknowledges
    it; then it is delivered, together with progress without a batch that follows it. So what is
    delivered is always a prefix of what was added, and never includes a batch that the consumer
    still uses. If no thread runs ahead, a batch counts as given when it is added.

    Safe to use from any thread. Locks: `_lock` guards everything and is the last in the order of
    locks. A thread that holds it takes no other lock, asks no store, and calls nothing that may
    wait; `Reports` takes its own lock before this one. The lock is reentrant because a finalizer or
    a signal handler that closes the iteration, or saves its state, may run in the thread that holds
    it. In a forked process, where the lock may be held forever, every call is refused before it
    touches the lock.

    Args:
        start: The state in which the iteration begins.
        counts: Where `rows_dropped_last`, `rows_dropped_tail` and `leases_lost` are counted.
        tells: As of `Claims`.
    """

    def __init__(self, start: LoaderState, counts: Counter[str], *, tells: bool) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # The state, without what is delivered of its epoch, and that. Both are replaced by one
        # assignment, so that a signal handler that interrupts this thread finds them consistent.
        self._position = start, Claims(tells, start.done)
        self._claims = self._position[1]  # After a stop still those of the epoch before.
        self._ended: LoaderState | None = None
        # Progress that is delivered once everything before it is.
        self._pending: deque[tuple[Progress, Check | None]] = deque()
        self._num_given = 0  # How many of the first pending items the consumer was given.
        self._stop_epoch: int | None = None
        self._left_of: tuple[Limits | None, int | None] = None, None
        self._counts = counts
        self._process, self.closed = OwnProcess(), threading.Event()
        # Each changes once, from False to True, so it may be read without the lock.
        self.is_ahead = self.is_closed = self.is_stopped = False

    def run_ahead(self) -> None:
        """From now on a thread other than the consumer's adds, and batches are given by `give`."""
        with self._lock:
            self.is_ahead = True

    def add(self, progress: Progress, check: Check | None = None) -> bool:
        """Adds progress after everything that was added before. Ignored after a stop.

        Progress without a batch is delivered at once if nothing is pending before it.

        Args:
            progress: What is delivered with the batch.
            check: Called when the batch is acknowledged.

        Returns:
            Whether a claim is complete and has to be reported. Never for a batch, which is not yet
            delivered.
        """
        self.require_own_process()
        with self._lock:
            if self._stop_epoch is not None:
                return False
            self._pending.append((progress, check))
            if progress.is_batch:
                if not self.is_ahead:
                    self._num_given = len(self._pending)
                return False
            self._deliver_without_batch()
            return self._claims.has_complete

    def give(self) -> None:
        """Records that the consumer got the next pending batch."""
        self.require_own_process()
        with self._lock:
            for number, (progress, _) in enumerate(islice(self._pending, self._num_given, None)):
                if progress.is_batch:
                    self._num_given += number + 1
                    return

    def acknowledge(self) -> bool:
        """Delivers everything that was given.

        Returns:
            Whether a claim is complete and has to be reported.

        Raises:
            BatchError: A batch was written to. It stays pending, and so does everything after it.
        """
        self.require_own_process()
        with self._lock:
            while self._num_given:
                progress, check = self._pending[0]
                if check is not None:
                    check()
                self._num_given -= 1
                self._pending.popleft()
                self._deliver(progress)
            self._deliver_without_batch()
            return self._claims.has_complete

    def stop(
        self, epoch: int, limits: Limits | None = None, num_own_rows: int | None = None
    ) -> None:
        """Ends the iteration before its rows end. Takes effect once everything that was added
        before is delivered.

        Args:
            epoch: The epoch with which the next iteration begins.
            limits, num_own_rows: As of `Claims.num_rows_left`.
        """
        self.require_own_process()
        with self._lock:
            self._stop_epoch, self._left_of = epoch, (limits, num_own_rows)
            self._deliver_without_batch()

    def end_epoch(self, *, is_last: bool, **plan: Any) -> None:
        """Moves the state to the next epoch, once all of this one is delivered.

        Args:
            is_last: Whether the iteration ends, so that the next epoch is of another one.
            plan: The fields of a state that change with the plan of a followed table.
        """
        self.require_own_process()
        with self._lock:
            epoch = self._position[0].epoch + 1
            self._turn(epoch, is_last=is_last, **plan)
            self._claims = self._position[1]

    def reopen(self) -> None:
        """Takes the end of the iteration back, since rows of its last epoch are unread."""
        self.require_own_process()
        with self._lock:
            if self._ended is not None:
                done = Claims(self._claims.tells, self._ended.done)
                self._position = replace(self._ended, done={}), done

    def begin_plan(self, **plan: Any) -> None:
        """Sets the plan of a followed table in the state; fields as of `end_epoch`."""
        self.require_own_process()
        with self._lock:
            at, claims = self._position
            self._position = replace(at, **plan), claims

    def wait(self) -> None:
        """Waits until everything that was added is delivered, or the iteration is closed. Returns
        at once if no thread runs ahead, since the consumer acknowledges before it adds.
        """
        self.require_own_process()
        with self._lock:
            self._changed.wait_for(lambda: self.is_closed or not self.is_ahead or not self._pending)

    def close(self) -> bool:
        """Wakes all threads that wait. Batches that the consumer has can still be acknowledged.

        Returns:
            False if it was closed before, and in a forked process.
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
    def state(self) -> LoaderState:
        """The state after what was delivered last."""
        self.require_own_process()
        with self._lock:
            return self._state_with(())

    @property
    def state_with_given(self) -> LoaderState:
        """The state as if everything that was given were acknowledged. After the iteration's end it
        is at the end of the last epoch, not at the beginning of the next.
        """
        self.require_own_process()
        with self._lock:
            if self._ended is not None:
                return self._ended
            given = list(islice(self._pending, self._num_given))
            rest = islice(self._pending, self._num_given, None)
            given += takewhile(lambda pending: not pending[0].is_batch, rest)
            segments = [segment for progress, _ in given for segment in progress.segments]
            return self._state_with(segments)

    def claim(self, claim: Claim) -> None:
        """Records that the worker holds the claim."""
        with self._lock:
            self._claims.open[claim.key] = claim

    def fail(self, claim: Claim) -> None:
        """Records that the claim cannot be read."""
        with self._lock:
            self._claims.add(Report(claim, "failed"))

    def lose(self, key: ClaimKey) -> None:
        """Records that another worker has taken the claim over, unless it is complete. It delivers
        the rows that were not reported to the store.
        """
        with self._lock:
            if key in self._claims.open:
                self._counts["leases_lost"] += self._claims.lose(key)

    def untold(self, *kinds: Kind) -> list[Report]:
        """The reports of these kinds that are due. Each is due until `told` is called with it."""
        with self._lock:
            return [report for kind in kinds for report in self._claims.untold(kind)]

    def told(self, report: Report, *, is_mine: bool) -> None:
        """Records that the store got a report.

        Args:
            report: The report.
            is_mine: Whether the store still has the claim as this worker's.
        """
        with self._lock:
            self._claims.told(report)
            if not is_mine:
                self._counts["leases_lost"] += self._claims.lose(report.claim.key)

    @property
    def num_pending(self) -> int:
        """How many batches are made and not delivered, or other progress between them."""
        return len(self._pending)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked process."""
        return not self._process.is_this()

    def require_own_process(self) -> None:
        """DispatchError in a forked process, which has neither the threads nor the rows."""
        if not self._process.is_this():
            raise DispatchError(
                f"this iteration is of process {self._process.id}, and was copied into "
                f"{os.getpid()} by a fork: iterate anew in this process, under a dispatch store "
                "that both reach, or start DataLoader workers, which share each epoch"
            )

    def _deliver(self, progress: Progress) -> None:
        self._claims.note(progress.segments)
        if progress.num_dropped_rows:
            self._counts["rows_dropped_last"] += progress.num_dropped_rows

    def _deliver_without_batch(self) -> None:
        """Delivers progress without a batch that has no batch before it any more."""
        while self._pending and not self._pending[0][0].is_batch:
            self._deliver(self._pending.popleft()[0])
        if self._pending:
            return
        if self._stop_epoch is not None and not self.is_stopped:
            self._counts["rows_dropped_tail"] += self._claims.num_rows_left(*self._left_of)
            self._turn(self._stop_epoch, is_last=True)
            self.is_stopped = True
        if self.is_ahead:
            self._changed.notify_all()

    def _turn(self, epoch: int, *, is_last: bool, **plan: Any) -> None:
        at = self._state_with(())
        self._ended = at if is_last else None
        first_epoch = epoch if is_last else at.first_epoch
        is_next = epoch == at.epoch + 1  # A stop may pass epochs over.
        # Of several workers, one may end an epoch earlier. Its state keeps how that ended, so that
        # it can be merged with those of workers that are still in it. The next epoch of a followed
        # table has another plan.
        keeps_done = at.num_workers > 1 and is_next and (is_last or not plan)
        turned = replace(at, epoch=epoch, first_epoch=first_epoch, done={}, ahead={}, **plan)
        turned = replace(turned, ended=at.done if keeps_done else None)
        self._position = turned, Claims(self._claims.tells, at.ahead if is_next else {})

    def _state_with(self, segments: Iterable[Segment]) -> LoaderState:
        """The state after what was delivered last, and then these segments."""
        at, claims = self._position
        return replace(at, done=claims.done_with(segments))


def _num_rows(segment: Segment) -> int:
    """How many rows of its claim a segment says are delivered."""
    return max(0, segment.through - segment.claim.start_row)


def _changes(done: Done, segments: Iterable[Segment]) -> dict[int, Rows]:
    """The entries of `done` that change when the segments are delivered."""
    changed: dict[int, Rows] = {}
    for segment in segments:
        index = segment.claim.index
        changed[index] = delivered(changed.get(index, done.get(index, 0)), segment)
    return changed
