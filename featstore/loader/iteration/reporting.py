"""Reports to the dispatch store which claims are delivered, how far, and which cannot be read."""

import threading
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress

from featstore.base.errors import DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.loader.batches.bad_files import BadFiles
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery, Kind, Limits, Report

# How often progress within a claim is reported. If the worker dies, another one reads again what it
# delivered since. Chosen, not measured: each report is one write to the store.
_EVERY_S = 0.5


class Reports:
    """Sends the reports of a `Delivery` to the store. Without a coordinator, in the orders in which
    claims are computed, it does nothing.

    Safe to use from any thread. Locks: `_telling` is held while the store is told, so that each
    report is sent once and in order: nothing may be reported of a claim after it is complete. It
    comes before the lock of `Delivery`, which is never held while a store is asked, and is
    reentrant for the same reason as that one.

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
        """Sets the coordinator of the epoch, through which the store is told."""
        with self._telling:
            self.coordinator = coordinator

    def end(self) -> None:
        """Ends reporting for this epoch."""
        if not self._delivery.is_forked:
            with self._telling:
                self.coordinator = None

    def close(self) -> None:
        """Sends all reports, and releases the claims that the coordinator still holds."""
        if (coordinator := self.coordinator) is None:
            return
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
            if not coordinator.start(source.claim_key)
        ]
        for number in lost:
            self._delivery.lose(block.sources[number].claim_key)
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
