"""Leases as data: the record in a split's key, its transitions, and who may take what from whom.

Nothing here has a clock or does I/O. A record is only ever replaced by compare-and-set from the
very value that was read, so a value must be unique to its claim: it names a fence that grows by one
with each claim of the split, and a nonce.

    (no key) --claim--> held --renew, reserve, start, advance--> held --finish--> done
    held --release, fail--> free --claim again--> held (fence + 1)
    held --claim again: expired, stalled, or nothing reserved--> held (fence + 1)
    held --cut, by another worker--> held, ending earlier
    held, free --quarantine: too many failures--> quarantined

A holder delivers no row that it has not reserved, and none before it has started. Only rows beyond
the reserved ones can be cut off or, where nothing is reserved, be taken. So what moves from one
living worker to another is neither delivered twice nor lost, and what a dead one had only read
ahead does not count as delivered.
"""

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from featstore.errors import DispatchError

FORMAT = 2


class LeaseState(enum.StrEnum):
    HELD = "held"
    FREE = "free"
    DONE = "done"
    QUARANTINED = "quarantined"


FINAL = (LeaseState.DONE, LeaseState.QUARANTINED)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one ended claim had acknowledged: rows `first` to `through` of a split, as the worker's
    claim number `turn`.
    """

    worker: str
    turn: int
    first: int
    through: int


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The value of one split's key, or of a part that was cut off one. Rows count in the split's
    delivery order.

    `fence` counts the claims, `nonce` is unique to the claim, `beat` grows with each renewal.
    `rows`: acknowledged through here, by this claim and those before it; `first`: where this claim
    began. `reserved`: the holder may deliver through here; `started`: it may have delivered some of
    that. `end`: where the part ends (None: not said). `cuts`: where parts were cut off, ascending;
    each is a part with a key of its own, ending at the next. `work` counts all that the worker
    acknowledged and reserved, of any split. `turn`: which of the worker's claims this is.
    `failures`: claims in a row that began and came to nothing. `repeated`: rows that may have been
    delivered twice, at most. `shares`: what earlier claims acknowledged. `split`: the split's id.
    """

    state: LeaseState
    fence: int
    worker: str
    nonce: str
    beat: int = 0
    rows: int = 0
    first: int = 0
    reserved: int = 0
    started: bool = False
    end: int | None = None
    cuts: tuple[int, ...] = ()
    work: int = 0
    turn: int = 0
    failures: int = 0
    repeated: int = 0
    shares: tuple[Share, ...] = ()
    split: str = ""

    def encode(self) -> str:
        """The record as JSON with sorted keys: what is written into the store. Later fields are
        left out at their default.
        """
        fields: dict[str, Any] = {
            "format": FORMAT,
            "state": self.state.value,
            "fence": self.fence,
            "worker": self.worker,
        }
        fields |= {"nonce": self.nonce, "beat": self.beat, "rows": self.rows}
        later = ("first", "reserved", "started", "work", "turn", "failures", "repeated", "split")
        fields |= {name: value for name in later if (value := getattr(self, name))}
        fields |= {} if self.end is None else {"end": self.end}
        fields |= {"cuts": list(self.cuts)} if self.cuts else {}
        fields |= (
            {"shares": [[s.worker, s.turn, s.first, s.through] for s in self.shares]}
            if self.shares
            else {}
        )
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "Lease":
        """DispatchError for a value that this version did not write."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            shares = tuple(
                Share(worker=w, turn=t, first=a, through=b)
                for w, t, a, b in fields.pop("shares", ())
            )
            cuts = tuple(fields.pop("cuts", ()))
            return cls(state=LeaseState(fields.pop("state")), cuts=cuts, shares=shares, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DispatchError(
                f"the store holds a lease that this version cannot read: expected format {FORMAT}, "
                f"found {text[:200]!r}; "
                "all workers of a run need the same version of featstore"
            ) from error

    @property
    def limit(self) -> int | None:
        """Where the holder stops: before the first part that was cut off, else at the part's
        end.
        """
        return self.cuts[0] if self.cuts else self.end

    @property
    def is_begun(self) -> bool:
        """Whether rows were reserved that are not acknowledged: they are being read, or
        delivered.
        """
        return self.reserved > self.rows

    @property
    def num_unacknowledged(self) -> int:
        """How many rows may have been delivered without an acknowledgement: none of what was only
        read ahead.
        """
        return max(0, self.reserved - self.rows) if self.started or self.rows > self.first else 0

    @property
    def life(self) -> tuple[int, str, int]:
        """What only the holder changes: its claim and its beat. A cut by another worker leaves it
        as it is.
        """
        return (self.fence, self.nonce, self.beat)

    def same_claim(self, other: "Lease") -> bool:
        """Whether both records belong to one claim of one worker."""
        return self.fence == other.fence and self.nonce == other.nonce


@dataclass(frozen=True, kw_only=True)
class Extent:
    """An unclaimed split or part: it ends at `end`, rows before `start_row` are delivered, parts
    were cut off at `cuts`.
    """

    split: str
    start_row: int
    end: int
    cuts: tuple[int, ...] = ()


def claim(extent: Extent, *, worker: str, nonce: str, turn: int = 0) -> Lease:
    """The record of the first claim on a split or part."""
    start = extent.start_row
    mine = Lease(
        state=LeaseState.HELD,
        fence=1,
        worker=worker,
        nonce=nonce,
        rows=start,
        first=start,
        reserved=start,
    )
    return replace(mine, turn=turn, split=extent.split, end=extent.end, cuts=extent.cuts)


def claim_again(current: Lease, *, worker: str, nonce: str, turn: int = 0) -> Lease:
    """The record of a new claim on what was given back, or is taken from its holder.

    Taking over what another still holds counts what it had begun as rows that may come twice, and
    as a failure where it had acknowledged nothing.
    """
    ended = _ended(current)
    fresh = replace(
        ended,
        state=LeaseState.HELD,
        fence=ended.fence + 1,
        worker=worker,
        nonce=nonce,
        turn=turn,
        beat=0,
        work=0,
    )
    return replace(
        fresh, first=ended.rows, reserved=ended.rows, started=False, shares=all_shares(ended)
    )


def renew(mine: Lease, work: int = 0) -> Lease:
    return replace(mine, beat=mine.beat + 1, work=max(mine.work, work))


def reserve(mine: Lease, through: int, work: int = 0) -> Lease:
    """Rows up to `through`, or up to where the lease was cut, are the holder's to deliver."""
    through = through if mine.limit is None else min(through, mine.limit)
    return replace(renew(mine, work), reserved=max(mine.reserved, through))


def start(mine: Lease, work: int = 0) -> Lease:
    """The first of the reserved rows is about to be delivered."""
    return replace(renew(mine, work), started=True)


def advance(mine: Lease, num_rows: int, work: int = 0) -> Lease:
    """`num_rows` of the split are acknowledged; what was acknowledged before is never taken
    back.
    """
    rows = max(mine.rows, num_rows)
    return replace(renew(mine, work), rows=rows, reserved=max(mine.reserved, rows))


def release(mine: Lease) -> Lease:
    """Given back in good order: what was not acknowledged was not delivered."""
    return replace(mine, state=LeaseState.FREE)


def fail(mine: Lease) -> Lease:
    """Given back because reading it failed; a failure after some progress is the first in a row."""
    return replace(release(mine), failures=1 if mine.rows > mine.first else mine.failures + 1)


def finish(mine: Lease) -> Lease:
    """All rows up to the limit are acknowledged. ValueError where the holder had not reserved
    them.
    """
    if mine.limit is None or mine.reserved < mine.limit:
        raise ValueError(
            f"split {mine.split}: finished at {mine.limit}, but reserved only to {mine.reserved}"
        )
    return replace(mine, state=LeaseState.DONE, rows=mine.limit)


def quarantine(current: Lease) -> Lease:
    """Offered to nobody any more; named in the receipt."""
    return replace(_ended(current), state=LeaseState.QUARANTINED)


def has_failed(current: Lease, max_failures: int) -> bool:
    """Whether a new claim would be one too many."""
    return _ended(current).failures >= max_failures


def cut(current: Lease, at: int) -> Lease:
    """The holder's record once rows from `at` on are a part of their own. ValueError where they are
    not to be had.
    """
    if (
        current.state is not LeaseState.HELD
        or current.limit is None
        or not current.reserved < at < current.limit
    ):
        raise ValueError(
            f"no cut at {at} of a lease that is {current.state}, reserved to {current.reserved} of "
            f"{current.limit}"
        )
    return replace(current, cuts=(at, *current.cuts))


def parts(current: Lease) -> list[tuple[int, int | None]]:
    """The parts that were cut off: where each begins and ends."""
    ends = [*current.cuts[1:], current.end]
    return list(zip(current.cuts, ends, strict=False))


def choose_cut(current: Lease, boundaries: Sequence[int]) -> int | None:
    """Where a worker with nothing to do cuts a lease: the boundary that halves what is not
    reserved, or None.
    """
    if current.state is not LeaseState.HELD or current.limit is None:
        return None
    start = max(current.reserved, current.rows)
    inside = [at for at in boundaries if start < at < current.limit]
    middle = (start + current.limit) / 2
    return min(inside, key=lambda at: (abs(at - middle), at), default=None)


def all_shares(current: Lease) -> tuple[Share, ...]:
    """What each claim acknowledged, the last one included."""
    if current.rows == current.first:
        return current.shares
    last = Share(
        worker=current.worker, turn=current.turn, first=current.first, through=current.rows
    )
    return (*current.shares, last)


def _ended(current: Lease) -> Lease:
    """A record whose claim is over. If still held: what was begun may come twice, and if nothing
    came of it, it failed.
    """
    if current.state is not LeaseState.HELD:
        return current
    came_to_nothing = current.is_begun and current.rows == current.first
    failures = 0 if current.rows > current.first else current.failures + came_to_nothing
    return replace(
        current, failures=failures, repeated=current.repeated + current.num_unacknowledged
    )
