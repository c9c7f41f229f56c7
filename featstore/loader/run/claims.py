"""What the dispatch store is to be told of a worker's claims. Without torch."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from featstore.dispatch.terms import Claim
from featstore.loader.batches.progress import ClaimKey, Segment

Kind = Literal["complete", "advanced", "failed"]
Limits = Mapping[ClaimKey, int | None]


class Report(NamedTuple):
    """What the store is to be told of a claim: it is delivered `through` this row, to its end
    (`complete`), or cannot be read (`failed`)."""

    claim: Claim
    kind: Kind
    through: int = 0


class Claims:
    """What is delivered of one worker's claims of an epoch, and what the store is not told of it.

    It has no lock of its own: its `Delivery` uses it under that one's, and nobody else does. Where
    it does not `tell`, in an order for which nobody is asked, there is nothing to be told.
    """

    def __init__(self, tells: bool) -> None:
        self._tells = tells
        self.open: dict[ClaimKey, Claim] = {}
        self._through: dict[ClaimKey, int] = {}
        self._advanced: dict[ClaimKey, int] = {}
        self.complete: dict[ClaimKey, Claim] = {}
        self.failed: dict[ClaimKey, Claim] = {}
        self._lost: set[ClaimKey] = set()

    def num_rows_left(self, limits: Limits | None) -> int:
        """How many rows of the claims are not delivered.

        `limits`: where claims end now, as others may have cut off rows, or None where it was not
        said; those that are not among them have ended or are lost. None where nobody is asked for
        claims.
        """
        num_rows = 0
        for key, claim in self.open.items():
            if limits is not None and key not in limits:
                continue
            end = (limits or {}).get(key) or claim.end_row or claim.split.num_rows
            num_rows += max(0, end - max(claim.start_row, self._through.get(key, 0)))
        return num_rows

    def note(self, segment: Segment) -> None:
        """It is delivered."""
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
        if kind == "advanced":
            return [Report(self.open[key], kind, row) for key, row in self._advanced.items()]
        claims = self.complete if kind == "complete" else self.failed
        return [Report(claim, kind) for claim in claims.values()]

    def told(self, report: Report) -> None:
        key = report.claim.key
        if report.kind != "advanced":
            (self.complete if report.kind == "complete" else self.failed).pop(key, None)
        elif self._advanced.get(key) == report.through:
            del self._advanced[key]

    def lose(self, key: ClaimKey) -> bool:
        """Returns whether that is new."""
        is_new = key not in self._lost
        self._lost.add(key)
        self._advanced.pop(key, None)
        self.complete.pop(key, None)
        return is_new

    def clear(self) -> None:
        for notes in (self.open, self._through, self._advanced, self.complete, self.failed):
            notes.clear()
        self._lost.clear()
