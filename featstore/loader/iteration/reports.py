"""What a worker tells the dispatch store of its claims: what is delivered, and which rows batches
are made of.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from featstore.base.errors import DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.terms import Claim, Terms
from featstore.loader.batches.bad_files import BadFiles
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery, Kind, Limits, Report

_LOST, _NO_LIMITS = -1, dict[int, int]()


class Reports:
    """Sends the reports of a `Delivery` to the store, in a thread of its own, so that a training
    loop asks the store only for rows that are not reserved yet. Without a coordinator, in the
    orders in which claims are computed, it does nothing.

    Safe to use from any thread. Locks: `_telling` is held while reporting to the store, so that
    each report is sent once and in order: nothing may be reported of a claim after it is
    complete. It comes before the lock of `Delivery`, which is never held while a store is asked,
    and is reentrant for the same reason as that one.

    Args:
        delivery: What is delivered.
        stats: Metrics.
        terms: When leases end, and for how long rows are reserved ahead.

    Attributes:
        bad_files: Files that are left out. Those of a failed claim count when it was the last try.
    """

    def __init__(self, delivery: Delivery, stats: Stats, terms: Terms) -> None:
        self._delivery, self._stats = delivery, stats
        self._telling = threading.RLock()
        self._every_s = terms.report_s
        self._told_at = time.monotonic()
        self._is_due, self._thread = threading.Event(), threading.Thread()
        self.coordinator: Coordinator | None = None
        self.bad_files = BadFiles(stats)

    def begin(self, coordinator: Coordinator) -> None:
        """Sets the coordinator of the epoch, through which it reports to the store from now on."""
        self.coordinator = coordinator
        self._thread = threading.Thread(
            target=self._run, args=(coordinator,), name="featstore-reports", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Ends reporting for this epoch, and releases the claims that the coordinator still holds.
        Does nothing in a forked process.
        """
        thread = self._thread  # Read first: the next epoch sets the coordinator before it.
        if self._delivery.is_forked or (coordinator := self.coordinator) is None:
            return
        with self._telling:  # Nothing is reported of claims that are released.
            if self.coordinator is coordinator:  # Another thread may have ended this epoch.
                self.coordinator = None
        self._is_due.set()
        coordinator.close()
        if thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        """Sends all reports, and ends reporting."""
        with ExitStack() as parts:  # Runs from the last line to the first, even if one fails.
            parts.callback(self.end)
            parts.callback(self.settle)

    def limits(self) -> Limits | None:
        """The rows at which the worker's claims end now, as of `Coordinator.limits`; None if no
        store is asked for claims.
        """
        coordinator = self.coordinator  # Read once: another thread may end the epoch.
        return None if coordinator is None else coordinator.limits()

    @property
    def row_counts(self) -> dict[str, int]:
        """As of `Coordinator.row_counts`; empty if no store is asked for claims."""
        coordinator = self.coordinator
        return {} if coordinator is None else coordinator.row_counts

    def tell(self, *, is_complete: bool) -> None:
        """Has complete claims reported soon, if there are any. How far the others are delivered,
        which is where a takeover would begin, is reported from time to time.
        """
        if is_complete:
            self._is_due.set()

    def settle(self) -> None:
        """Sends all reports. Only here are failed claims reported: that ends their lease, so what
        was read of them must be delivered before.
        """
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
        reports complete claims. Claims may be released only after that.
        """
        self._delivery.wait()
        self._tell("complete")

    def reserve(self, block: Block) -> Mapping[int, int]:
        """Reserves the rows of a block, of which a batch is made next: all of mixed ones, otherwise
        those before its end.

        Returns:
            The `limits`, as of `Block.within`, of sources of which other workers have taken rows,
            which are counted as left to them.
        """
        if (coordinator := self.coordinator) is None:
            return _NO_LIMITS
        rows = _rows_of(block)
        if coordinator.make(rows):
            return _NO_LIMITS
        limits = dict[int, int]()
        found = coordinator.reserve_all(rows)
        for number, ((claim, through), row) in enumerate(zip(rows, found, strict=True)):
            if row is None:
                self._delivery.lose(claim.key)
            if row is None or row < through:
                limits[number] = _LOST if row is None else row
        if limits:
            self._stats.counts["rows_left_to_others"] += block.num_rows_beyond(limits)
        return limits

    def reserve_rows(self, claim: Claim, through: int) -> int | None:
        """As of `Coordinator.reserve`. Records if another worker has the claim. None, too, if the
        epoch has ended.
        """
        coordinator = self.coordinator
        row = None if coordinator is None else coordinator.reserve(claim, through)
        if row is None:
            self._delivery.lose(claim.key)
        return row

    def num_promised(self, block: Block, batch_size: int) -> int:
        """How many whole batches after the end of a slice may be promised to other ranks: those
        that the rest of its block holds and that are reserved. They stay reserved.
        """
        num_ahead = (block.num_rows - block.end) // batch_size
        coordinator = self.coordinator
        if coordinator is None or not num_ahead:
            return num_ahead
        [source] = block.sources  # Of mixed rows a block is one batch.
        row = source.row_at(coordinator.reserved(source.claim))
        num_ahead = max(0, min(num_ahead, (row - block.end) // batch_size))
        through = source.through(block.end + num_ahead * batch_size, block.num_rows)
        granted = coordinator.reserve(source.claim, through) if num_ahead else through
        return num_ahead if granted == through else 0

    def _run(self, coordinator: Coordinator) -> None:
        try:
            while self.coordinator is coordinator:
                self._is_due.wait(max(0.0, self._told_at + self._every_s - time.monotonic()))
                self._is_due.clear()
                self._tell_in_turn()
        except DispatchError as error:
            coordinator.note_failure(error)

    def _tell_in_turn(self) -> None:
        """Reports complete claims and, if that is due, how far the others are delivered."""
        is_due = time.monotonic() - self._told_at >= self._every_s
        # Does not wait for a thread that reports: a signal handler in it may end the epoch, which
        # waits for this thread.
        if self._telling.acquire(blocking=False):
            try:
                self._tell(*(("complete", "advanced") if is_due else ("complete",)))
            finally:
                self._telling.release()
        else:
            self._told_at = time.monotonic()

    def _tell(self, *kinds: Kind) -> None:
        with self._telling:
            if (coordinator := self.coordinator) is None:
                return
            reports = self._delivery.untold(*kinds)
            if "advanced" in kinds:
                self._told_at = time.monotonic()
            # Complete claims first: the pace is measured where the others are acknowledged.
            for report in reports:
                if report.kind == "complete":
                    is_mine = coordinator.complete(report.claim)
                    self._delivery.told(report, is_mine=is_mine)
            if "advanced" in kinds:
                advanced = [report for report in reports if report.kind == "advanced"]
                are_mine = coordinator.acknowledge_all(
                    [(report.claim, report.through) for report in advanced]
                )
                for report, is_mine in zip(advanced, are_mine, strict=True):
                    self._delivery.told(report, is_mine=is_mine)
            for report in reports:
                if report.kind == "failed":
                    self._fail(coordinator, report)
                    self._delivery.told(report, is_mine=True)

    def _fail(self, coordinator: Coordinator, report: Report) -> None:
        """Sends the report of a claim that cannot be read."""
        record = coordinator.fail(report.claim)
        if record is not None and coordinator.gives_up(record):
            self.bad_files.give_up(report.claim, record.limit)


def _rows_of(block: Block) -> list[tuple[Claim, int]]:
    """The claims of a block, each with the row up to which it has to be reserved for a batch."""
    if block.draws is not None:
        return [(source.claim, source.end_row) for source in block.sources]
    end, num_rows = block.end, block.num_rows
    return [(source.claim, source.through(end, num_rows)) for source in block.sources]
