"""What has to be reported to the dispatch store about a worker's claims. Imports no torch."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import ClaimKey, Segment

Kind = Literal["complete", "advanced", "failed"]
Limits = Mapping[ClaimKey, int | None]


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

    It has no lock: only its `Delivery` uses it, under its own lock.

    Args:
        tells: Whether there is a store to report to; there is none in the orders in which claims
            are computed.
    """

    def __init__(self, tells: bool) -> None:
        self._tells = tells
        self.open: dict[ClaimKey, Claim] = {}
        self._through: dict[ClaimKey, int] = {}
        self._advanced: dict[ClaimKey, int] = {}
        self.complete: dict[ClaimKey, Claim] = {}
        self.failed: dict[ClaimKey, Claim] = {}
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
            begun = ((key, self.open[key].start_row) for key in self._through)
            return num_own_rows - sum(max(0, self._through[key] - row) for key, row in begun)
        num_rows = 0
        for key, claim in self.open.items():
            if limits is not None and key not in limits:
                continue
            end = (limits or {}).get(key) or claim.end_row or claim.split.num_rows
            num_rows += max(0, end - max(claim.start_row, self._through.get(key, 0)))
        return num_rows

    def note(self, segment: Segment) -> None:
        """Records that the segment is delivered."""
        key = segment.claim_key
        self._through[key] = segment.through
        if not self._tells or key in self._lost:
            return
        if segment.is_complete:
            self._advanced.pop(key, None)
            self._through.pop(key)
            self.complete[key] = self.open.pop(key)
        else:
            self._advanced[key] = segment.through

    def untold(self, kind: Kind) -> list[Report]:
        """The reports of this kind that the store has not got."""
        if kind == "advanced":
            return [Report(self.open[key], kind, row) for key, row in self._advanced.items()]
        claims = self.complete if kind == "complete" else self.failed
        return [Report(claim, kind) for claim in claims.values()]

    def told(self, report: Report) -> None:
        """Records that the store has got the report."""
        key = report.claim.key
        if report.kind != "advanced":
            (self.complete if report.kind == "complete" else self.failed).pop(key, None)
        elif self._advanced.get(key) == report.through:
            del self._advanced[key]

    def lose(self, key: ClaimKey) -> bool:
        """Records that another worker has the claim. Returns whether that is new."""
        is_new = key not in self._lost
        self._lost.add(key)
        self._advanced.pop(key, None)
        self.complete.pop(key, None)
        return is_new

    def clear(self) -> None:
        for notes in (self.open, self._through, self._advanced, self.complete, self.failed):
            notes.clear()
        self._lost.clear()
