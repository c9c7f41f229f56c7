"""Leases as data: the record in a split's key, its transitions, and who may take what from whom.

Nothing here has a clock or does I/O. A record is only ever replaced by compare-and-set from the
value that was read, so a value must be unique to its claim. It therefore names a fencing token,
which grows by one with each claim of the split, and a nonce.

    (no key) --claim--> held --renew, start, reserve, advance--> held --finish--> done
    held --release, fail--> free --claim again--> held (fence + 1)
    held --claim again: expired, stalled, or nothing reserved--> held (fence + 1)
    held --cut, by another worker--> held, ending earlier
    held, free --quarantine: too many failures--> quarantined

A holder delivers no row that it has not reserved. Other workers can only cut off rows beyond the
reserved ones or, if nothing is reserved, take the whole lease. So rows that move between living
workers are neither lost nor delivered twice, and rows that a dead worker had only read ahead do not
count as delivered. It reserves what its loop will deliver soon: less again, once the loop is
slower.
"""

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from featstore.base.errors import DispatchError
from featstore.base.processes import cached_property
from featstore.dispatch.plan import Extent

FORMAT = 3
# Fields of a record as they are encoded, beside `state` and `shares`.
_ALWAYS = ("fence", "worker", "nonce", "beat", "rows", "end")
_UNLESS_DEFAULT = (
    "first", "reserved", "started", "work", "pace", "index", "turn", "failures", "repeated",
    "split", "cuts",
)  # fmt: skip
_FORMAT_2 = (
    f"the store holds a lease of format 2, of featstore 0.1: expected format {FORMAT}, since all "
    "workers of a run need the same version of featstore; end the run, and print its receipt, with "
    "that version, or use this one under a new run_id"
)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class LeaseState(enum.StrEnum):
    """The state of a lease. `done` and `quarantined` are final."""

    HELD = "held"
    FREE = "free"
    DONE = "done"
    QUARANTINED = "quarantined"


FINAL = (LeaseState.DONE, LeaseState.QUARANTINED)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one claim acknowledged.

    Attributes:
        worker: The worker that made the claim.
        index: The worker's number in the job.
        turn: As of `Lease`.
        first: The first acknowledged row.
        through: The row after the last acknowledged one.
    """

    worker: str
    index: int = 0
    turn: int
    first: int
    through: int


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The value in the key of a split, or of a part that was cut off one.

    Rows count in the split's delivery order, and ends are excluded.

    Attributes:
        state: Held by a worker, free, done or quarantined.
        fence: The fencing token: counts the claims.
        worker: The name of the worker that claimed last.
        index: Its number in the job, which workers that follow one another have in common.
        nonce: A text that is unique to the claiming worker's coordinator.
        beat: The heartbeat: grows with each renewal and each other write of the holder.
        rows: Rows before this one are acknowledged, by this claim or earlier ones.
        first: The row at which this claim began.
        reserved: The holder may deliver the rows before this one.
        started: The holder has begun to read the rows of this claim.
        end: The row at which the part ends.
        cuts: The rows at which parts were cut off, ascending. Each part has a key of its own, and
            ends where the next one begins.
        work: Counts everything that the worker acknowledged or reserved, of any split.
        pace: How many rows per second the worker's loop goes through, of all of its claims, and
            counting those that filters leave out; 0 as long as that is not known.
        turn: Orders the claims of all workers of the index.
        failures: Claims in a row that started and acknowledged nothing.
        repeated: An upper bound of the rows that may have been delivered twice.
        shares: What earlier claims acknowledged.
        split: The split's id.
    """

    state: LeaseState
    fence: int
    worker: str
    nonce: str
    index: int = 0
    beat: int = 0
    rows: int = 0
    first: int = 0
    reserved: int = 0
    started: bool = False
    end: int = 0
    cuts: tuple[int, ...] = ()
    work: int = 0
    pace: int = 0
    turn: int = 0
    failures: int = 0
    repeated: int = 0
    shares: tuple[Share, ...] = ()
    split: str = ""

    def encode(self) -> str:
        """The value in the store: JSON with sorted keys. Most fields are left out at their default,
        which keeps values short: a store keeps 200 bytes per file (dispatch_simulation.md).
        """
        return self._text  # Once: each change of a lease needs the text before it and after it.

    @cached_property
    def _text(self) -> str:
        fields: dict[str, Any] = {"format": FORMAT, "state": self.state.value}
        fields |= {name: getattr(self, name) for name in _ALWAYS}
        fields |= {name: value for name in _UNLESS_DEFAULT if (value := getattr(self, name))}
        if self.shares:
            fields["shares"] = [
                [s.worker, s.index, s.turn, s.first, s.through] for s in self.shares
            ]
        return _ENCODER.encode(fields)

    @classmethod
    def decode(cls, text: str) -> "Lease":
        """Reads what `encode` wrote.

        Raises:
            DispatchError: The value has another format, or is damaged.
        """
        try:
            fields = json.loads(text)
            if (found := fields.pop("format")) == 2:
                raise DispatchError(_FORMAT_2)
            if found != FORMAT:
                raise ValueError("another format")
            shares = tuple(
                Share(worker=w, index=i, turn=t, first=a, through=b)
                for w, i, t, a, b in fields.pop("shares", ())
            )
            cuts = tuple(fields.pop("cuts", ()))
            return cls(state=LeaseState(fields.pop("state")), cuts=cuts, shares=shares, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DispatchError(
                f"the store holds a lease that this version cannot read: expected format {FORMAT}, "
                f"found {text[:200]!r}; all workers of a run need the same version of featstore"
            ) from error

    @property
    def holder(self) -> str:
        """The worker and its index, for messages."""
        return f"{self.worker} (index {self.index})"

    @property
    def limit(self) -> int:
        """The row before which the holder stops: the first cut, or else the part's end."""
        return self.cuts[0] if self.cuts else self.end

    @property
    def num_unacknowledged(self) -> int:
        """How many rows may have been delivered without an acknowledgement: those that are
        reserved. Rows that were only read ahead do not count.
        """
        return self.reserved - self.rows

    @property
    def num_left(self) -> int:
        """Rows that the holder has not reserved, and that others may therefore take."""
        return self.limit - self.reserved

    @property
    def life(self) -> tuple[int, str, int]:
        """What only the holder changes: its claim and its beat.

        An observer watches this for signs of life. A cut by another worker does not change it.
        """
        return (self.fence, self.nonce, self.beat)

    def same_claim(self, other: "Lease") -> bool:
        """Whether both records belong to one claim of one worker."""
        return self.fence == other.fence and self.nonce == other.nonce


def claim(
    extent: Extent, *, worker: str, nonce: str, index: int = 0, turn: int = 0, pace: int = 0
) -> Lease:
    """The record of the first claim on a split or part.

    Args:
        extent: The rows of the split or part.
        worker: The worker's name.
        nonce: A text that is unique to the worker's coordinator.
        index: The worker's number in the job.
        turn: Orders the claims of all workers of the index.
        pace: As of `Lease`: else a slow worker takes a claim for as slow as itself until its first
            batch is made.
    """
    start = extent.start_row
    return Lease(
        state=LeaseState.HELD,
        fence=1,
        worker=worker,
        nonce=nonce,
        index=index,
        turn=turn,
        pace=pace,
        rows=start,
        first=start,
        reserved=start,  # Nothing yet: until the holder begins, idle workers may take all of it.
        split=extent.split,
        end=extent.end,
        cuts=extent.cuts,
    )


def claim_again(
    current: Lease,
    *,
    worker: str,
    nonce: str,
    index: int = 0,
    turn: int = 0,
    pace: int = 0,
    relieves: bool = False,
) -> Lease:
    """The record of a new claim on a lease that was given back, or is taken from its holder.

    Taking a held lease counts the holder's unacknowledged rows as repeated, and its claim as failed
    if it had started and acknowledged nothing.

    Args:
        current: The lease.
        worker, nonce, index, turn, pace: As of `claim`.
        relieves: Whether the holder lives and has reserved nothing, so that its claim did not fail.
    """
    ended = current if relieves else _ended(current)
    return replace(
        ended,
        state=LeaseState.HELD,
        fence=ended.fence + 1,
        worker=worker,
        nonce=nonce,
        index=index,
        turn=turn,
        beat=0,
        work=0,
        pace=pace,
        first=ended.rows,
        reserved=ended.rows,
        started=False,
        shares=all_shares(ended),
    )


def renew(mine: Lease, work: int = 0, **changes: Any) -> Lease:
    """The holder is alive, has done `work` things so far, and changes these fields."""
    # A beat with every write makes each value unique, so that a compare-and-set of an older record
    # cannot succeed.
    return replace(mine, beat=mine.beat + 1, work=max(mine.work, work), **changes)


def start(mine: Lease, work: int = 0) -> Lease:
    """The holder is about to read rows of the claim."""
    return renew(mine, work, started=True)


def reserve(mine: Lease, through: int, work: int = 0, *, pace: int = 0) -> Lease:
    """The holder may deliver the rows before `through`, or before the lease's limit: more than
    before, or fewer. It must not have delivered what it no longer reserves.
    """
    reserved = max(mine.rows, min(through, mine.limit))
    return renew(mine, work, reserved=reserved, pace=pace or mine.pace)


def advance(mine: Lease, num_rows: int, work: int = 0) -> Lease:
    """The first `num_rows` rows of the split are acknowledged. Never takes an acknowledgement
    back.
    """
    rows = max(mine.rows, num_rows)
    return renew(mine, work, rows=rows, reserved=max(mine.reserved, rows))


def release(mine: Lease) -> Lease:
    """The holder gives the lease back. It has not delivered what it did not acknowledge."""
    return replace(mine, state=LeaseState.FREE)


def fail(mine: Lease) -> Lease:
    """The holder gives the lease back because reading failed. Progress resets the count."""
    return replace(release(mine), failures=1 if mine.rows > mine.first else mine.failures + 1)


def finish(mine: Lease) -> Lease:
    """All rows before the limit are acknowledged.

    Raises:
        ValueError: The holder has not reserved all of them.
    """
    if mine.reserved < mine.limit:
        raise ValueError(
            f"split {mine.split}: finished at {mine.limit}, but reserved only to {mine.reserved}"
        )
    return replace(mine, state=LeaseState.DONE, rows=mine.limit)


def quarantine(current: Lease) -> Lease:
    """No worker claims the lease any more. The receipt names it."""
    return replace(_ended(current), state=LeaseState.QUARANTINED)


def has_failed(current: Lease, max_failures: int) -> bool:
    """Whether `max_failures` claims in a row have failed, so that nobody should claim it again."""
    return _ended(current).failures >= max_failures


def cut(current: Lease, at: int) -> Lease:
    """The holder's record after the rows from `at` on were cut off as a part of their own.

    Raises:
        ValueError: The lease is not held, or `at` is not among the rows that are not reserved, or
            nothing would be left of the claim.
    """
    is_held = current.state is LeaseState.HELD
    if not is_held or not current.reserved <= at < current.limit or at == current.first:
        raise ValueError(
            f"no cut at {at} of a lease that is {current.state}, reserved to {current.reserved} of "
            f"{current.limit}"
        )
    # The beat stays as it is: a cut by another worker is no sign of life of the holder.
    return replace(current, cuts=(at, *current.cuts))


def parts(current: Lease) -> list[tuple[int, int]]:
    """The parts that were cut off: the first row and the end of each."""
    ends = [*current.cuts[1:], current.end]
    return list(zip(current.cuts, ends, strict=False))  # Without cuts there is one end too many.


def pace_of(records: Iterable[Lease]) -> int:
    """A worker's pace by its leases; 0 if it is not known. A claim of which nothing is reserved
    shows the one of when it was made, though a renewal may be the newest that the worker did.
    """
    known = ((one.reserved > one.first, one.work, one.pace) for one in records if one.pace)
    return max(known, default=(False, 0, 0))[-1]


def all_shares(current: Lease) -> tuple[Share, ...]:
    """What each claim acknowledged, including the last one."""
    if current.rows == current.first:
        return current.shares
    last = Share(
        worker=current.worker,
        index=current.index,
        turn=current.turn,
        first=current.first,
        through=current.rows,
    )
    return (*current.shares, last)


def _ended(current: Lease) -> Lease:
    """The record after its claim has ended, also if the holder never gave it back.

    Then the holder's unacknowledged rows may be delivered twice, and the claim has failed if it
    had started and acknowledged nothing.
    """
    if current.state is not LeaseState.HELD:
        return current
    came_to_nothing = current.started and current.rows == current.first
    failures = 0 if current.rows > current.first else current.failures + came_to_nothing
    return replace(
        current, failures=failures, repeated=current.repeated + current.num_unacknowledged
    )
