"""What a worker tells the dispatch store of its claims: how far they are delivered, that they are done or cannot be read."""

import time
from contextlib import suppress

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.terms import Claim
from featstore.errors import DispatchError
from featstore.loader.batching import Segment
from featstore.loader.spans import Span
from featstore.loader.stats import Stats

_EVERY_S = 0.5
_ClaimKey = tuple[int, int, int]  # Claim.key


class Reports:
    """The claims of one worker in one epoch. Without a coordinator, in an order for which nobody is asked, nothing is told."""

    def __init__(self, stats: Stats, lease_s: float) -> None:
        self._stats = stats
        # A worker that stood still for a whole lease tells the store at its first batch, and so learns of a takeover at once.
        self._every_s, self._reported_at = min(_EVERY_S, lease_s / 4), time.monotonic()
        self.coordinator: Coordinator | None = None
        self.claims: dict[_ClaimKey, Claim] = {}
        self._through: dict[_ClaimKey, int] = {}
        self._unreported: dict[_ClaimKey, int] = {}
        self._lost: set[_ClaimKey] = set()
        self._failed: list[Claim] = []

    @property
    def has_failed(self) -> bool:
        """Whether a claim could not be read and the store does not know of it."""
        return bool(self._failed)

    @property
    def num_rows_left(self) -> int:
        """How many rows of the claims are not delivered."""
        return sum(
            (claim.end_row or claim.split.num_rows) - max(claim.start_row, self._through.get(key, 0))
            for key, claim in self.claims.items()
        )

    def note(self, segment: Segment, *, is_told: bool) -> None:
        """It has been delivered. If it is to be told, how far a claim is delivered is told now and then, that it is done at
        once."""
        key = segment.claim_key
        self._through[key] = segment.through
        if not is_told or key in self._lost:
            return
        self._unreported[key] = segment.through
        if segment.is_complete:
            self._unreported.pop(key)
            self._complete(self.claims.pop(key))

    def tell_now_and_then(self) -> None:
        if time.monotonic() - self._reported_at >= self._every_s:
            self._report()

    def fail(self, claim: Claim) -> None:
        """It cannot be read. From any thread."""
        self._failed.append(claim)

    def is_lost(self, span: Span) -> bool:
        """Whether another worker has the claim that the span is of; counts the rows that are left to it. To be asked before
        the span is delivered: the store learns that the claim has started."""
        key = span.block.origin.claim_key
        if self.coordinator is None or self.coordinator.start(key):
            return False
        self._lose(key)
        self._stats.counts["rows_left_to_others"] += span.block.num_rows - span.begin
        return True

    def settle(self) -> None:
        """Tells all that is not told."""
        assert self.coordinator is not None
        self._report()
        while self._failed:
            self.coordinator.fail(self._failed.pop())

    def settle_if_it_can(self) -> None:
        """As `settle`, on the way out with an error that matters more than the store's."""
        with suppress(DispatchError):
            self.settle()

    def clear(self) -> None:
        """The epoch has ended."""
        for notes in (self.claims, self._through, self._unreported, self._lost):
            notes.clear()

    def _report(self) -> None:
        """Tells the store how far partial splits are delivered: where a takeover would begin."""
        assert self.coordinator is not None
        self._reported_at = time.monotonic()
        for key, through in list(self._unreported.items()):
            if not self.coordinator.acknowledge(self.claims[key], through):
                self._lose(key)
        self._unreported.clear()

    def _complete(self, claim: Claim) -> None:
        assert self.coordinator is not None
        if not self.coordinator.complete(claim):
            self._lose(claim.key)

    def _lose(self, key: _ClaimKey) -> None:
        """Another worker has taken the split over, and delivers what this one has not told the store of."""
        if key not in self._lost:
            self._lost.add(key)
            self._unreported.pop(key, None)
            self._stats.counts["leases_lost"] += 1
