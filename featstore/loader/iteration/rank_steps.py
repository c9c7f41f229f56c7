"""The steps of ranks that train in step: those on which they agree, with padding where a rank has
no rows.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import closing

from featstore.base.errors import DispatchError, DispatchUnavailableError, StateError
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import SYSTEM_CLOCK, AnsweredClock
from featstore.dispatch.unfinished import open_leases, silent_leases
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.hand_over import HandOver, MadeBatch
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Meeting
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.slice_source import rows_in_place
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.step_agreement import Agreed, Counted, Steps
from featstore.tensors.batch import Batch


def agreement(job: Job, meeting: Meeting, start: LoaderState) -> Steps | None:
    """How the ranks of one iteration agree on the number of steps: by counting in order `static`,
    otherwise through the store. None if ranks may end apart, or there is only one.

    Raises:
        DispatchError: Announcements of an earlier start of the run are still in the store.
    """
    worker = meeting.worker
    if not job.tail.agrees or worker.num_ranks == 1:
        return None
    if (num_steps := job.num_steps(start, worker)) is not None:
        return Counted(num_steps)
    if meeting.is_repeated:
        raise DispatchError(
            f"tail {job.tail}: this iteration was begun before, in an earlier start of the run, "
            "and ranks do not know how many steps were made then: load the state of a checkpoint "
            "in all ranks, or choose another run_id"
        )
    prefix = f"{meeting.prefix}{meeting.first_epoch}/"
    clock = AnsweredClock(SYSTEM_CLOCK, meeting.address.unanswered_s)
    patience_s = job.terms.stall_s
    return Agreed(job.tail, meeting.address.open(), prefix, worker, patience_s, clock)


class RankSteps:
    """The steps of one rank, as the ranks agree on them. One consumer.

    Args:
        steps: The agreement.
        job: What is read; only options that do not change with a plan are taken from it.
        meeting: The iteration that all ranks began.
        parts: Gives what is read now, in parts, to a rank that has no rows of its own as padding.
        delivery: What is stopped when the ranks stop.
        hand_over: Makes the batches.
        reports: Where it is known which rows are reserved, and at which rows claims end now.
        num_own_rows: Gives the rank's rows from the beginning of the current epoch on, delivered
            ones included; None if a store is asked for claims.
    """

    def __init__(
        self,
        steps: Steps,
        job: Job,
        meeting: Meeting,
        parts: Callable[[], Iterable[Job]],
        delivery: Delivery,
        hand_over: HandOver,
        reports: Reports,
        num_own_rows: Callable[[], int | None],
    ) -> None:
        self._steps, self._job, self._meeting, self._parts = steps, job, meeting, parts
        self._delivery, self._hand_over, self._reports = delivery, hand_over, reports
        self._num_own_rows = num_own_rows
        self._num_steps = 0
        self._last: Batch | None = None

    def batch(self, rows: BatchSlice | None) -> MadeBatch | None:
        """The batch of the next step: of these rows, or padding if there are none. None if the
        ranks stop.
        """
        self._num_steps += 1
        if rows is None:
            if not self._steps.pads(self._num_steps):
                return None
            # From a local name, as below.
            last = self._last
            if last is None:
                last = self._last = some_rows(self._parts()).batch()
            return self._hand_over.made_padding(self._job.tail.padding(last))
        num_promised = self._reports.num_promised(rows.blocks[-1], self._job.batch_size)
        if not self._steps.makes(self._num_steps, num_promised):
            # The ranks stop while this one has rows left. The iteration ends once everything that
            # was handed over before is delivered.
            end = self._meeting.first_epoch + self._job.num_epochs
            self._delivery.stop(end, self._reports.limits(), self._num_own_rows())
            return None
        # Returned from a local name: another thread may leave, and so drop `_last`, at any time.
        made = self._hand_over.made(rows)
        self._last = made.batch
        return made

    def leave(self) -> None:
        """Called when the loop is left. May be called more than once, from any thread."""
        self._steps.leave()
        # The iteration, to which `parts` refers, and the last batch's memory are then freed at
        # once, and not only when the collector finds the cycle.
        self._last, self._parts = None, lambda: ()

    def require_nothing_unread(self) -> None:
        """Called after the last step. Waits, for at most the length of a lease, for signs of life
        from workers that hold rows. Rows that are dropped on purpose do not count.

        Raises:
            DispatchError: A silent worker holds rows of the iteration.
        """
        if not self._job.ordering.is_dynamic:
            return
        lease_s, unread, address = self._job.terms.lease_s, [], self._meeting.address
        clock = AnsweredClock(self._meeting.clock, address.unanswered_s)
        with closing(address.open()) as store:
            first_epoch = self._meeting.first_epoch
            for epoch in range(first_epoch, first_epoch + self._job.num_epochs):
                keys = EpochKeys(self._meeting.prefix, epoch)
                unread += silent_leases(store, keys, lease_s, threading.Event(), clock)
                if self._job.tail.pads:
                    unread += [lease for lease in open_leases(store, keys) if not lease.is_held]
        if unread:
            raise DispatchUnavailableError(
                f"tail {self._job.tail}: all ranks have agreed to stop, and rows are unread whose "
                f"holders have been silent for {lease_s:g} s: {'; '.join(map(str, unread))}; load "
                "the state of a checkpoint in all ranks to read them"
            )


def some_rows(jobs: Iterable[Job]) -> BatchSlice:
    """Rows of the first split that has any, read in place, for a rank that has delivered none that
    it could repeat as padding.

    Raises:
        StateError: No split has rows.
    """
    for job in jobs:
        for split in job.splits:
            with closing(rows_in_place(job, [split])) as slices:
                if (rows := next(slices, None)) is not None:
                    return rows
    raise StateError(
        "tail pad: this rank has no rows to pad with, and no split has any: choose tail join, or "
        "another `where`"
    )
