"""One epoch in order `dynamic`: what a worker claims, and which workers it waits for at the end."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from types import TracebackType
from typing import Protocol

from featstore.base.errors import DispatchError, DispatchUnavailableError
from featstore.base.redaction import redact
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Done, Plan
from featstore.dispatch.receipt import EpochSize
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import Claim, Terms, WaitFor
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.rendezvous import Meeting
from featstore.loader.iteration.reports import Reports
from featstore.loader.plan.ordering import claims_of_share

_LOG = logging.getLogger("featstore.loader")


class Shared(Protocol):
    """What the workers of an epoch share: the job of a loader, or the positions of an order."""

    @property
    def terms(self) -> Terms:
        """When leases end."""

    @property
    def least_rows(self) -> int:
        """Fewer rows are not taken from a worker that lives."""

    def plan(self, epoch: int) -> Plan:
        """The splits of an epoch."""


def report_all_done(meeting: Meeting, end: int, *, ends_finished: bool) -> None:
    """Called by a worker that found nothing to claim, as one before it had begun the iteration.

    Args:
        meeting: The iteration.
        end: The epoch after its last one.
        ends_finished: Whether `dispatch.finished` is `end`.

    Raises:
        DispatchError: Unless `ends_finished`.
    """
    first, last = meeting.first_epoch, end - 1
    epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
    text = (
        f"{epochs}: nothing is left to read: in dispatch store {redact(meeting.address.url)} an "
        "earlier start of the run, or another loader with the same selection, has read every row "
        "of it under this run_id; to join the run in a later one, call set_epoch; give each run, "
        "and each loader that is to read all rows itself, its own run_id; to continue after a "
        "checkpoint, call load_state_dict; if a launcher restarts workers that had ended, "
        "dispatch.finished: end lets them end empty"
    )
    if not ends_finished:
        raise DispatchError(text)
    _LOG.warning("%s", text)


def report_quarantined(quarantined: Sequence[str], terms: Terms, *, skips: bool) -> None:
    """Called at the end of an iteration.

    Args:
        quarantined: The splits that no worker could read.
        terms: After how many failures that is so.
        skips: Whether the run goes on without them.

    Raises:
        DispatchUnavailableError: There are some, unless it `skips`. A worker that failed may have
            had no disk or no store, so another run may read them.
    """
    if not quarantined:
        return
    text = (
        "some rows could not be read by any worker: each of these splits failed "
        f"{terms.max_failures} times in a row, or killed its worker: "
        f"{'; '.join(quarantined)}; all other rows were delivered; see the errors of the "
        "workers, and `featstore dispatch receipt`"
    )
    if not skips:
        raise DispatchUnavailableError(text)
    _LOG.warning("%s", text)


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
        is_staged: As of `Coordinator`.
        done: What a restored state had delivered of the epoch. Equal for all workers.

    Attributes:
        found_all_done: After the end: whether there was nothing to claim from the beginning.
        quarantined: After the end: the splits that no worker could read.
    """

    def __init__(
        self,
        job: Shared,
        meeting: Meeting,
        epoch: int,
        *,
        worker: str,
        in_step: bool,
        delivery: Delivery,
        reports: Reports,
        stats: Stats,
        is_staged: Callable[[str], bool] | None,
        done: Done,
    ) -> None:
        self._meeting, self._epoch, self._in_step = meeting, epoch, in_step
        self._delivery, self._reports, self._stats = delivery, reports, stats
        self._has_claimed = self._is_last_sibling = False
        self.found_all_done, self.quarantined = False, list[str]()
        if in_step:
            meeting.left_open.log_unread()
        plan = job.plan(epoch)
        self._size = EpochSize.of(plan, done)
        self._coordinator = Coordinator(
            meeting.address,
            plan=plan,
            prefix=meeting.prefix,
            worker=worker,
            index=meeting.worker.index,
            terms=replace(job.terms, in_step=in_step),
            done=done,
            clock=meeting.clock,
            batch_rows=job.least_rows,
            is_staged=is_staged,
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
            ending.callback(self._reports.settle_if_it_can)
            if kind is not None:
                ending.callback(self._meeting.address.hurry)
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
            claim = next(claims(WaitFor.SILENT if self._in_step else WaitFor.ALL), None)
        self._stats.awaited = self._coordinator.takeovers.awaited
        return claim
