"""How fast a worker's loop is, and what idle workers take over from others because of that: from
whom most time is left they take so many rows that both end together.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from featstore.dispatch.lease import Lease, pace_of
from featstore.dispatch.survey import Part

# Rates of shorter times are those of bursts, such as the batches that a DataLoader asks for ahead,
# or the few batches of a claim's end. A worker acknowledges every 1.5 s (`Terms.report_s`).
_LEAST_S = 0.5


class LoopPace:
    """How many rows per second a worker's loop goes through, filtered ones included, by what it
    acknowledged last. Time in which the worker had nothing to deliver does not count, and short
    claims count together. Safe for several threads.

    Attributes:
        rows_per_s: The pace; 0 before it is known.
        begin_s: How long it took last from a claim of a worker that held nothing to its first
            batch: staging and decoding. 0 before it is known.
    """

    def __init__(self) -> None:
        self.rows_per_s = self.begin_s = 0.0
        self._lock = threading.RLock()  # As of `Holdings`.
        self._claimed_at: float | None = None
        self._since: float | None = None
        # Seconds before a pause, and rows in all, that were not enough for a rate.
        self._kept_s, self._num_rows = 0.0, 0

    def restart(self, now: float) -> None:
        """A worker that holds nothing takes a claim. If it lost the last one, nobody knows until
        when its loop had rows.
        """
        with self._lock:
            if self._since is not None:
                self._kept_s, self._num_rows = 0.0, 0
            self._claimed_at, self._since = now, None

    def pause(self, now: float) -> None:
        """All that the worker holds is delivered: it has nothing to do until it takes a claim."""
        with self._lock:
            self.measure(now)
            if self._since is not None:
                self._kept_s, self._since = now - self._since, None

    def begin(self, now: float) -> None:
        """A batch is made. The first one of a claim after a pause begins the time."""
        with self._lock:
            if self._since is None:
                self._since = now - self._kept_s
                self.begin_s = now - (now if self._claimed_at is None else self._claimed_at)

    def deliver(self, num_rows: int) -> None:
        """So many rows more were delivered."""
        with self._lock:
            self._num_rows += num_rows

    def measure(self, now: float) -> None:
        """All that was delivered until now is told. If that is nothing the time goes on: a step may
        take longer than it is between two reports.
        """
        with self._lock:
            if self._since is not None and self._num_rows and now - self._since >= _LEAST_S:
                self.rows_per_s = self._num_rows / (now - self._since)
                self._since, self._num_rows = now, 0

    def ahead(self, num_made: int, seconds: float, now: float) -> float:
        """How many rows the loop will go through in so many seconds. Before its pace is known: as
        many as batches were made of in that time, and at most all that were made so far: they
        may be made faster than the loop takes them.

        Args:
            num_made: The rows of batches that are not delivered.
            seconds: How long.
            now: The time.
        """
        with self._lock:
            if self.rows_per_s or self._since is None:
                return self.rows_per_s * seconds
            num_rows = self._num_rows + num_made
            return num_rows * seconds / max(seconds, now - self._since)

    @property
    def idle_rows_per_s(self) -> float:
        """The pace or, if a worker that holds nothing does not know it, that of the short claims
        that it had: all that it made is delivered.
        """
        with self._lock:
            is_short = self._since is None and self._kept_s > 0
            return self.rows_per_s or (self._num_rows / self._kept_s if is_short else 0.0)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A lease of another worker, as it was read from the store.

    Attributes:
        part: The split or part.
        record: The lease.
        value: Its text in the store, which a compare-and-set must find to take or cut the lease.
        standstill_s: For how long the holder is known to have done nothing.
    """

    part: Part
    record: Lease
    value: str
    standstill_s: float


@dataclass(frozen=True, kw_only=True)
class Taker:
    """What an idle worker knows of itself.

    Attributes:
        salt: A text of its own.
        rows_per_s: Its pace; 0 if that is not known.
        begin_s: Seconds from a claim to the first batch of it: staging and decoding.
        least_rows: Fewer rows are not worth a claim: those of a batch.
    """

    salt: str
    rows_per_s: float = 0.0
    begin_s: float = 0.0
    least_rows: int = 1


@dataclass(frozen=True, kw_only=True)
class Taking:
    """What an idle worker should try to take.

    Attributes:
        lease: From whom.
        at: The first row to take: the lease is cut there. None: all of the lease, of which nothing
            is reserved.
    """

    lease: Seen
    at: int | None


@dataclass(frozen=True, kw_only=True)
class _Holder:
    """A worker that may be relieved: its leases, how many rows it has to deliver, and how many
    seconds it needs for them. At least as long as it has stood still: who has done nothing for a
    minute will not be back in a second. A lease that waits for its turn shows nothing of what its
    holder does, so the one counts that was seen to move last.
    """

    leases: Sequence[Seen]
    num_rows: int
    left_s: float

    @classmethod
    def of(cls, seen: Sequence[Seen], taker: Taker) -> "_Holder":
        num_rows = sum(one.record.limit - one.record.rows for one in seen)
        known = pace_of(one.record for one in seen) or taker.rows_per_s
        pace = known or 1.0  # Where nobody knows, each takes a half.
        left_s = max(num_rows / pace, min(one.standstill_s for one in seen))
        return cls(leases=seen, num_rows=num_rows, left_s=left_s)

    @property
    def rows_per_s(self) -> float:
        return self.num_rows / self.left_s


def takings(seen: Iterable[Seen], taker: Taker) -> list[Taking]:
    """What an idle worker should take: of one holder or, if it is faster than these together, of
    several, so that all end together, and it begins once. At most one lease of each.

    Holders to whom at least half as much time is left as to the last one come first. Within each of
    the two groups every `salt` gives another order, so that many idle workers do not all try the
    same lease.
    """
    by_holder = defaultdict[str, list[Seen]](list)
    for one in seen:
        if one.record.limit > one.record.rows:
            by_holder[one.record.nonce].append(one)
    holders = [
        holder
        for of in by_holder.values()
        if _taken_together([holder := _Holder.of(of, taker)], taker)
    ]
    most_s = max((holder.left_s for holder in holders), default=0.0)
    holders.sort(
        key=lambda one: (
            one.left_s < most_s / 2,
            crc32(f"{taker.salt} {one.leases[0].part}".encode()),
        )
    )
    chosen, found = list[_Holder](), list[Taking]()
    for holder in holders:
        rows_per_s = sum(one.rows_per_s for one in [*chosen, holder])
        if chosen and (not taker.begin_s or rows_per_s > taker.rows_per_s):
            continue
        if more := _taken_together([*chosen, holder], taker):
            chosen, found = [*chosen, holder], more
    return found


def _taken_together(holders: Sequence[_Holder], taker: Taker) -> list[Taking]:
    """What to take from these holders so that all end together; nothing if that is too little of
    one of them.

    At the end, after `end_s`, the taker has delivered what they would not have: it needs `begin_s`
    before that. A taker that does not know its pace has the holder's.
    """
    own = taker.rows_per_s or holders[0].rows_per_s
    num_rows = sum(one.num_rows for one in holders) + taker.begin_s * own
    end_s = num_rows / (sum(one.rows_per_s for one in holders) + own)
    found = [
        taking for one in holders if (taking := _taking(one, end_s, taker.least_rows)) is not None
    ]
    return found if len(found) == len(holders) else []


def _taking(holder: _Holder, end_s: float, least_rows: int) -> Taking | None:
    """What to take from a holder so that it ends after `end_s`."""
    num_rows = int((holder.left_s - end_s) * holder.rows_per_s)
    # Of several leases that with the most to take; of those that the holder delivers last.
    one = max(
        holder.leases,
        key=lambda one: (min(one.record.num_left, num_rows), one.record.turn, one.part),
    )
    lease = one.record
    if not lease.num_left or num_rows < min(lease.num_left, least_rows):
        return None
    if num_rows < lease.num_left:
        # Whole batches, so that the holder has no short one.
        return Taking(lease=one, at=lease.limit - num_rows // least_rows * least_rows)
    return Taking(lease=one, at=None if lease.reserved == lease.first else lease.reserved)
