"""Tells the dispatch store how far a worker's claims are delivered, and which cannot be read."""

import threading
import time
from contextlib import ExitStack, suppress

from featstore.dispatch.coordinator import Coordinator
from featstore.errors import DispatchError
from featstore.loader.batches.blocks import Block
from featstore.loader.run.claims import Kind, Limits, Report
from featstore.loader.run.delivery import Delivery
from featstore.loader.stats import Stats

_EVERY_S = 0.5


class Reports:
    """Tells the store what it does not know yet of what was delivered. Without a coordinator, in an
    order for which nobody is asked, nothing is told.

    Safe to use from any thread. Locks: `_telling` is held while the store is told, so that each
    thing is told once and in order: a claim that is complete must not be heard of again. It comes
    before the lock of `Delivery`, which nobody holds while a store is asked, and is reentrant for
    the same reason as that one.
    """

    def __init__(self, delivery: Delivery, stats: Stats, lease_s: float) -> None:
        self._delivery, self._stats = delivery, stats
        self._telling = threading.RLock()
        # A worker that stood still for a whole lease tells the store at its first batch, and so
        # learns of a takeover at once.
        self._every_s, self._reported_at = min(_EVERY_S, lease_s / 4), time.monotonic()
        self.coordinator: Coordinator | None = None

    def begin(self, coordinator: Coordinator) -> None:
        """The store to tell is that of this epoch's coordinator."""
        with self._telling:
            self.coordinator = coordinator

    def end(self) -> None:
        """Nothing more is told."""
        if not self._delivery.is_forked:
            with self._telling:
                self.coordinator = None

    def close(self) -> None:
        """Tells what is not told, and gives back what the coordinator still holds."""
        if (coordinator := self.coordinator) is None:
            return
        with ExitStack() as parts:  # From the last line to the first, whatever fails.
            parts.callback(coordinator.close)
            parts.callback(self.end)
            parts.callback(self.settle)

    def limits(self) -> Limits | None:
        """Where the worker's claims end now, as of `Coordinator.limits`; None where no store is
        asked for claims.
        """
        return None if self.coordinator is None else self.coordinator.limits()

    def tell(self, *, is_complete: bool) -> None:
        """Tells what is complete, if anything is, and now and then how far the other claims are
        delivered: where a takeover would begin."""
        if self.coordinator is None:
            return
        with self._telling:
            if time.monotonic() - self._reported_at >= self._every_s:
                self._tell("complete", "advanced")
            elif is_complete:
                self._tell("complete")

    def settle(self) -> None:
        """Tells all that is not told. That a claim cannot be read is told only here: its lease ends
        with it, so what was read of it must be delivered before."""
        with self._telling:
            self._tell("complete", "advanced", "failed")

    def settle_if_it_can(self) -> None:
        """As `settle`, on the way out with an error that matters more than the store's."""
        if not self._delivery.is_forked:
            with suppress(DispatchError):
                self.settle()

    def await_delivery(self) -> None:
        """Waits until all that was added is delivered, or the run closed, and the store knows of
        it: claims may only be given up then.
        """
        self._delivery.wait()
        self.tell(is_complete=True)

    def is_lost(self, block: Block) -> bool:
        """Whether another worker has a claim that the block is of; counts the rows that are left to
        it. To be asked before the block is delivered: the store learns that the claim has started.
        """
        coordinator = self.coordinator
        if coordinator is None:
            return False
        is_lost = False
        for source in block.sources:
            if not coordinator.start(source.claim_key):
                self._delivery.lose(source.claim_key)
                is_lost = True
        if is_lost:
            self._stats.counts["rows_left_to_others"] += block.num_rows - block.begin
        return is_lost

    def _tell(self, *kinds: Kind) -> None:
        if self.coordinator is None:
            return
        if (reports := self._delivery.untold(*kinds)) and "advanced" in kinds:
            self._reported_at = time.monotonic()
        for report in reports:
            self._delivery.told(report, is_mine=_tell(self.coordinator, report))


def _tell(coordinator: Coordinator, report: Report) -> bool:
    """Whether the claim is still this worker's."""
    if report.kind == "advanced":
        return coordinator.acknowledge(report.claim, report.through)
    if report.kind == "complete":
        return coordinator.complete(report.claim)
    coordinator.fail(report.claim)
    return True
