"""One epoch in order `dynamic`: what a worker claims, what it reports of that to the store,
and which workers it waits for at the end.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import chain
from types import TracebackType

from featstore.base.errors import DataFileError, DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Split
from featstore.dispatch.receipt import EpochSize
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import Claim, WaitFor
from featstore.files.storage import source_of
from featstore.loader.batches.bad_files import BadFiles
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery, Kind, Limits, Report
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Meeting
from featstore.loader.plan.ordering import claims_of_share
from featstore.loader.plan.shuffle import split_boundaries
from featstore.reading.open_file import OpenFile
from featstore.table.snapshot import DataFile

# How often progress within a claim is reported. If the worker dies, another one reads again what it
# delivered since. Chosen, not measured: each report is one write to the store.
_EVERY_S = 0.5


class Reports:
    """Sends the reports of a `Delivery` to the store. Without a coordinator, in the orders in which
    claims are computed, it does nothing.

    Safe to use from any thread. Locks: `_telling` is held while reporting to the store, so that
    each report is sent once and in order: nothing may be reported of a claim after it is
    complete. It comes before the lock of `Delivery`, which is never held while a store is asked,
    and is reentrant for the same reason as that one.

    Args:
        delivery: What is delivered.
        stats: Metrics.
        lease_s: Seconds of a lease.

    Attributes:
        bad_files: Files that are left out. Those of a failed claim count when it was the last try.
    """

    def __init__(self, delivery: Delivery, stats: Stats, lease_s: float) -> None:
        self._delivery, self._stats = delivery, stats
        self._telling = threading.RLock()
        # At most a quarter of a lease apart: a worker that stood still for a whole lease reports
        # with its next batch, and so learns at once whether its claim was taken over.
        self._every_s, self._reported_at = min(_EVERY_S, lease_s / 4), time.monotonic()
        self.coordinator: Coordinator | None = None
        self.bad_files = BadFiles(stats)

    def begin(self, coordinator: Coordinator) -> None:
        """Sets the coordinator of the epoch, through which it reports to the store."""
        with self._telling:
            self.coordinator = coordinator

    def end(self) -> None:
        """Ends reporting for this epoch."""
        if not self._delivery.is_forked:
            with self._telling:
                self.coordinator = None

    def close(self) -> None:
        """Sends all reports, and releases the claims that the coordinator still holds. Does not
        wait long for a store that does not answer.
        """
        if (coordinator := self.coordinator) is None:
            return
        coordinator.hurry()
        with ExitStack() as parts:  # Runs from the last line to the first, even if one fails.
            parts.callback(coordinator.close)
            parts.callback(self.end)
            parts.callback(self.settle)

    def limits(self) -> Limits | None:
        """The rows at which the worker's claims end now, as of `Coordinator.limits`; None if no
        store is asked for claims.
        """
        coordinator = self.coordinator  # Read once: another thread may end the epoch.
        return None if coordinator is None else coordinator.limits()

    def tell(self, *, is_complete: bool) -> None:
        """Reports complete claims, if there are any, and every `_EVERY_S` also how far the others
        are delivered, which is where a takeover would begin.
        """
        if self.coordinator is None:
            return
        with self._telling:
            if time.monotonic() - self._reported_at >= self._every_s:
                self._tell("complete", "advanced")
            elif is_complete:
                self._tell("complete")

    def settle(self) -> None:
        """Sends all reports. Only here are failed claims reported: that ends their lease, so what
        was read of them must be delivered before.
        """
        with self._telling:
            self._tell("complete", "advanced", "failed")

    def settle_if_it_can(self) -> None:
        """Like `settle`, but ignores errors of the store: called on the way out, where another
        error matters more.
        """
        if not self._delivery.is_forked:
            with suppress(DispatchError):
                self.settle()

    def await_delivery(self) -> None:
        """Waits until everything that was added is delivered, or the iteration is closed, and
        reports it. Claims may be released only after that.
        """
        self._delivery.wait()
        self.tell(is_complete=True)

    def lost_sources(self, block: Block) -> Collection[int]:
        """The places in `block.sources` of those whose claims other workers have taken over; their
        rows are counted as left to others. Called before the block is delivered: it also records in
        the store that the claims have been started.
        """
        coordinator = self.coordinator
        if coordinator is None:
            return ()
        lost = [
            number
            for number, source in enumerate(block.sources)
            if not coordinator.start(source.claim.key)
        ]
        for number in lost:
            self._delivery.lose(block.sources[number].claim.key)
        if lost:
            self._stats.counts["rows_left_to_others"] += block.num_rows_from(lost)
        return lost

    def _tell(self, *kinds: Kind) -> None:
        if self.coordinator is None:
            return
        if (reports := self._delivery.untold(*kinds)) and "advanced" in kinds:
            self._reported_at = time.monotonic()
        for report in reports:
            self._delivery.told(report, is_mine=self._send(self.coordinator, report))

    def _send(self, coordinator: Coordinator, report: Report) -> bool:
        """Sends a report. Returns whether the claim is still this worker's."""
        if report.kind == "advanced":
            return coordinator.acknowledge(report.claim, report.through)
        if report.kind == "complete":
            return coordinator.complete(report.claim)
        record = coordinator.fail(report.claim)
        if record is not None and coordinator.gives_up(record):
            self.bad_files.give_up(report.claim, record.limit)
        return True


class DynamicEpoch:
    """The claims of one worker in one epoch. A context manager, which at its end tells the
    store what was delivered and releases the remaining claims.

    Args:
        job: What is read.
        meeting: The iteration.
        epoch: The epoch.
        worker: The worker's name in the store.
        in_step: Whether the worker is one of several ranks that train in step.
        delivery: What is delivered.
        reports: Tells the store of it.
        stats: Metrics.
        is_staged: Whether a file is already in the host's cache; such files are claimed first.
            None: nothing is staged.

    Attributes:
        found_all_done: After the end: whether there was nothing to claim from the beginning.
        quarantined: After the end: the splits that no worker could read.
    """

    def __init__(
        self,
        job: Job,
        meeting: Meeting,
        epoch: int,
        *,
        worker: str,
        in_step: bool,
        delivery: Delivery,
        reports: Reports,
        stats: Stats,
        is_staged: Callable[[DataFile], bool] | None,
    ) -> None:

        self._job, self._meeting, self._epoch, self._in_step = job, meeting, epoch, in_step
        self._delivery, self._reports, self._stats = delivery, reports, stats
        self._has_claimed = self._is_last_sibling = False
        self.found_all_done, self.quarantined = False, list[str]()
        if in_step:
            meeting.left_open.log_unread()
        plan = job.plan(epoch)
        self._size = EpochSize.of(plan, delivery.state.done)
        self._coordinator = Coordinator(
            meeting.address,
            plan=plan,
            prefix=meeting.prefix,
            worker=worker,
            terms=replace(job.terms, in_step=in_step),
            done=delivery.state.done,
            clock=meeting.clock,
            boundaries=self._boundaries,
            is_staged=None if is_staged is None else lambda path: is_staged(job.files[path][0]),
        )
        reports.begin(self._coordinator)

    def rounds(self) -> Iterator[Iterable[Claim]]:
        """Rounds of claims that are made without waiting for other workers. The next round begins
        when all of the last one is delivered, and first waits for what others hold.

        A round of workers that read at one pace is a fair share of what nobody has claimed.
        Otherwise the one that begins first would read far ahead, and claim what is the others'.
        """
        num_left = self._size.num_splits - len(self._size.complete_before)
        while not self._delivery.is_closed and (first := self._awaited()) is not None:
            self._has_claimed = True
            claims = chain([first], self._coordinator.claims(WaitFor.NOTHING))
            yield self._fair(claims, num_left) if self._has_one_pace else claims
            if self._delivery.is_closed:
                break
            if self._delivery.untold("failed"):
                self._reports.settle()  # A failed split is offered again, until it is quarantined.
            num_left = self._coordinator.num_unclaimed() if self._has_one_pace else 0
        if not self._delivery.is_closed:
            self.found_all_done = not self._has_claimed and bool(self._coordinator.found_all_done)
            self.quarantined = self._coordinator.quarantined

    def note_left_open(self) -> None:
        """Notes that the epoch ends for this worker while others may still hold rows of it. Of a
        DataLoader's workers, the last one notes it.
        """
        is_last = not self._meeting.worker.is_dataloader or self._is_last_sibling
        if is_last and not self._delivery.is_closed and not self._coordinator.is_done:
            self._meeting.left_open.note(EpochKeys(self._meeting.prefix, self._epoch))

    def __enter__(self) -> "DynamicEpoch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as ending:  # Runs from the last line to the first.
            ending.callback(self._reports.end)
            ending.callback(self._coordinator.close)
            ending.callback(self._reports.settle_if_it_can)
            if kind is not None:
                ending.callback(self._coordinator.hurry)
            if isinstance(error, Exception):
                # A loop that is behind still gets the batches from before the error.
                self._delivery.wait()

    @property
    def _has_one_pace(self) -> bool:
        """Whether this is one of a known number of workers that are asked for batches in turn, or
        meet at each step.
        """
        meeting = self._meeting
        return meeting.worker.num_workers > 1 and (self._in_step or meeting.worker.is_dataloader)

    def _fair(self, claims: Iterable[Claim], num_left: int) -> Iterator[Claim]:
        """The claims of a worker's fair share of the rows of `num_left` splits."""
        size = self._size
        num_splits = max(1, size.num_splits - len(size.complete_before))
        num_rows = size.num_rows - size.rows_before
        share_rows = num_rows * num_left // (num_splits * self._meeting.worker.num_workers)
        return claims_of_share(claims, share_rows, num_rows // num_splits)

    def _awaited(self) -> Claim | None:
        """Waits for the first claim of a round; None at the end of the epoch.

        The worker holds no claim while it waits: two workers that hold claims and wait for each
        other's leases would wait forever.

        Which leases it waits for depends on the worker. Ranks in step cannot deliver their last
        batches before this one continues, so it waits only for silent ones. A DataLoader asks its
        workers in turn, so only the last of them to end waits for workers elsewhere; the others
        have nothing left to deliver then. Independent workers wait until every lease is final.
        """
        claims = self._coordinator.claims
        if self._meeting.worker.is_dataloader and not self._is_last_sibling:
            claim = next(claims(WaitFor.NOTHING), None)
            self._is_last_sibling = claim is None and self._meeting.is_last_sibling(self._epoch)
            if not self._is_last_sibling:
                return claim
        # In the thread that asks for batches, so the training loop waits, too.
        with self._stats.timed("others_wait_s"), self._stats.timed("wait_s"):
            return next(claims(WaitFor.SILENT if self._in_step else WaitFor.ALL), None)

    def _boundaries(self, split: Split) -> Sequence[int]:
        """The rows at which a split of another worker may be cut. Opens the file. There are none in
        a file that cannot be read; the worker that holds it will report that.
        """
        url = self._job.files[split.path][0].url
        window_rows = self._job.shuffle.split_window_rows if self._job.shuffle else None
        try:
            with closing(OpenFile(source_of(url), split.path)) as file:
                return split_boundaries(split, file.row_group_rows, window_rows)
        except (DataFileError, OSError):
            return ()
