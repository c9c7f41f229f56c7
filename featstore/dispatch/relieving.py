"""How fast a worker's loop is, and what workers take over from others: what was given back or has
expired and, once they are idle, so many rows of those to whom most time is left that both end
together.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from featstore.dispatch import lease as leases
from featstore.dispatch.claiming import Claiming
from featstore.dispatch.held import Holdings
from featstore.dispatch.lease import FINAL, Lease, LeaseState
from featstore.dispatch.survey import Hints, Part
from featstore.dispatch.terms import Claim, Clock, Terms, WaitFor
from featstore.dispatch.waiting import Waiter

# Rates of shorter times are those of bursts, such as the batches that a DataLoader asks for ahead,
# or the few batches of a claim's end. A worker acknowledges every 1.5 s (`Terms.report_s`).
_LEAST_S = 0.5
# During the epoch each worker looks at the 64 oldest splits that are not done (decision 0005). An
# expired lease shows in two looks `lease_s` apart, so two looks per lease time find a dead worker's
# split within 1.5 lease times. More looks or splits find more dead workers sooner, at more load.
_SURVEYS_PER_LEASE = 2
_SURVEY_SPLITS = 64
# How many open leases an idle worker looks at. Idle workers look at different ones. Each look that
# finds nothing doubles the number, so that a single idle worker sees all that a cluster of hundreds
# has open within half a lease. In the simulation of 10,000 workers idle ones make 8 % of all
# exchanges (benchmarks/dispatch_simulation.md); larger numbers raise that share.
_TAIL_SPLITS, _MOST_TAIL_SPLITS = 64, 2048


class LoopPace:
    """How many rows per second a worker's loop goes through, filtered ones included, by what it
    acknowledged last. Time in which the worker had nothing to deliver does not count. Safe for
    several threads.

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
        self._num_rows = 0

    def restart(self, now: float) -> None:
        """A worker that holds nothing takes a claim."""
        with self._lock:
            self._claimed_at, self._since, self._num_rows = now, None, 0

    def pause(self, now: float) -> None:
        """All that the worker holds is delivered: it has nothing to do until it takes a claim."""
        with self._lock:
            self.measure(now)
            self._since = None

    def begin(self, now: float) -> None:
        """A batch is made. The first one of a claim after a pause begins the time."""
        with self._lock:
            if self._since is None:
                self._since = now
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


def takings(seen: Iterable[Seen], taker: Taker) -> list[Taking]:
    """What an idle worker may take, in the order in which it should try: at most one lease of each
    holder, beginning with those to whom at least half as much time is left as to the last one.
    Within each of the two groups every `salt` gives another order, so that many idle workers do not
    all try the same lease first.
    """
    by_holder = defaultdict[str, list[Seen]](list)
    for one in seen:
        by_holder[one.record.nonce].append(one)
    found = [
        (left_s, taking)
        for of in by_holder.values()
        if (taking := _taking(of, left_s := _seconds_left(of, taker), taker)) is not None
    ]
    most_s = max((left_s for left_s, _ in found), default=0.0)
    keyed = [
        (left_s < most_s / 2, crc32(f"{taker.salt} {taking.lease.part}".encode()), taking)
        for left_s, taking in found
    ]
    return [taking for *_, taking in sorted(keyed, key=lambda item: item[:2])]


def _seconds_left(of_holder: Sequence[Seen], taker: Taker) -> float:
    """The seconds that a holder needs for its rows, by its pace or, if that is not known, by the
    taker's. At least as long as it has stood still: who has done nothing for a minute will not
    be back in a second. A lease that waits for its turn shows nothing of what its holder does, so
    the one counts that was seen to move last.
    """
    # A renewal of a claim of which nothing is reserved shows no pace.
    paced = [one.record for one in of_holder if one.record.pace]
    known = max(paced, key=lambda record: record.work).pace if paced else taker.rows_per_s
    pace = known or 1.0  # Where nobody knows, each takes a half.
    return max(_num_rows(of_holder) / pace, min(one.standstill_s for one in of_holder))


def _num_rows(of_holder: Sequence[Seen]) -> int:
    return sum(one.record.limit - one.record.rows for one in of_holder)


def _taking(of_holder: Sequence[Seen], left_s: float, taker: Taker) -> Taking | None:
    """What to take from one holder: so many rows that both end together.

    With x rows the taker needs `begin_s + x / rows_per_s`, and the holder, to whom they are left
    off, `left_s - x * left_s / num_rows`. A taker that does not know its pace has the holder's.
    """
    if not (num_of_holder := _num_rows(of_holder)):
        return None
    holder_row_s = left_s / num_of_holder
    taker_row_s = 1 / taker.rows_per_s if taker.rows_per_s else holder_row_s
    num_rows = int((left_s - taker.begin_s) / (holder_row_s + taker_row_s))
    # Of several leases that with the most to take; of those that the holder delivers last.
    one = max(
        of_holder, key=lambda one: (min(one.record.num_left, num_rows), one.record.turn, one.part)
    )
    lease = one.record
    if not lease.num_left or num_rows < min(lease.num_left, taker.least_rows):
        return None
    if num_rows < lease.num_left:
        # Whole batches, so that the holder has no short one.
        at = lease.limit - num_rows // taker.least_rows * taker.least_rows
        return Taking(lease=one, at=at)
    return Taking(lease=one, at=None if lease.reserved == lease.first else lease.reserved)


class Takeovers:
    """What one worker takes over from others, in one epoch. Not safe for several threads.

    Args:
        claims: Its claims.
        held: The leases that it holds.
        hints: What workers tell each other.
        waiting: What it has seen of the leases of others.
        pace: The pace of its loop.
        terms: When leases end.
        clock: By which it looks at others now and then.
        batch_rows: Rows of a batch: fewer are not taken from a worker that lives.

    Attributes:
        num_takeovers: How many leases it took that their holders had not given back.
        num_cuts: How many it cut.
        may_relieve: Whether others hold rows of which some may soon be taken.
        awaited: For whom it waited last: workers with rows that it could not take.
    """

    def __init__(
        self,
        claims: Claiming,
        held: Holdings,
        hints: Hints,
        waiting: Waiter,
        pace: LoopPace,
        terms: Terms,
        clock: Clock,
        batch_rows: int,
    ) -> None:
        self._claims, self._held, self._hints, self._waiting = claims, held, hints, waiting
        self._pace, self._terms, self._clock, self._batch_rows = pace, terms, clock, batch_rows
        self._surveyed_at, self._num_watched = clock.now_s(), _TAIL_SPLITS
        self.num_takeovers, self.num_cuts, self.may_relieve = 0, 0, False
        self.awaited = Counter[str]()

    def now_and_then(self) -> Claim | None:
        """During the epoch, twice per lease time: looks at a bounded number of the oldest splits
        that are not done.
        """
        if self._clock.now_s() - self._surveyed_at < self._terms.lease_s / _SURVEYS_PER_LEASE:
            return None
        oldest = self._claims.survey.pending(self._claims.cursor, _SURVEY_SPLITS)
        claim = self._revisit(oldest[:_SURVEY_SPLITS])
        if claim is None:
            self._surveyed_at = self._clock.now_s()
        return claim

    def at_the_end(self, wait_for: WaitFor) -> Claim | None:
        """At the end of the plan: looks at all splits that are not known to be done. With
        `WaitFor.ALL` it looks at some of them, and at more as long as it finds some done.
        """
        survey, num_splits = self._claims.survey, self._claims.num_splits
        num_open, claim = -1, None
        limit = self._num_watched if wait_for is WaitFor.ALL else num_splits + survey.num_open + 1
        while claim is None and num_open != (num_open := survey.num_open):
            looked_at = survey.look(self._claims.cursor, limit, self._claims.claimer.nonce)
            claim = self._revisit([*self._hints.given_back(), *looked_at])
            limit *= 2
        self._num_watched = _TAIL_SPLITS if claim else min(2 * self._num_watched, _MOST_TAIL_SPLITS)
        self._hints.read([])  # Learns which splits are done from others, and tells them.
        return claim

    def _revisit(self, todo: list[Part]) -> Claim | None:
        """Claims the first of these parts that was released, or whose lease has expired. At the end
        of the plan, a worker that holds nothing takes from living ones what they will not deliver
        soon.

        Args:
            todo: Parts that are not known to be done.
        """
        seen: list[Seen] = []
        is_idle = not len(self._held) and self._claims.is_handed_out
        while todo:
            for part, value, record in self._hints.read(todo):
                if record is not None:
                    todo += self._claims.learn(part, record)
                    if record.state in FINAL:
                        self._waiting.watch.forget(part)
                if part in self._held or (record is not None and record.state in FINAL):
                    continue
                if (
                    self._waiting.may_take(part, record, is_idle=is_idle)
                    and (claim := self._take_over(part, value, record)) is not None
                ):
                    return claim
                if is_idle and record is not None and value is not None and _is_shared(record):
                    still_s = self._waiting.standstill_s(part, record)
                    seen.append(Seen(part=part, record=record, value=value, standstill_s=still_s))
        return self._relieve(seen) if is_idle else None

    def _take_over(self, part: Part, value: str | None, record: Lease | None) -> Claim | None:
        if record is not None and leases.has_failed(record, self._terms.max_failures):
            self._claims.quarantine(part, value, record)
            return None
        claim = self._claims.claim(part, value, record)
        self.num_takeovers += (
            claim is not None and record is not None and record.state is LeaseState.HELD
        )
        return claim

    def _relieve(self, seen: Sequence[Seen]) -> Claim | None:
        """Takes rows from another worker. A lease that has changed since it was read stays as it
        is, since leases are written by compare-and-set.
        """
        me = Taker(
            salt=self._claims.claimer.nonce,
            rows_per_s=self._pace.rows_per_s,
            # Ranks in step wait for one that begins: then nobody goes through rows meanwhile.
            begin_s=0.0 if self._terms.in_step else self._pace.begin_s,
            least_rows=self._batch_rows,
        )
        found = takings(seen, me)
        self.may_relieve = any(one.record.num_left for one in seen)
        for taking in found[:_TAIL_SPLITS]:
            one = taking.lease
            if taking.at is None:
                claim = self._claims.claim(one.part, one.value, one.record, relieves=True)
            else:
                claim = self._claims.cut(one.part, one.value, one.record, taking.at)
                self.num_cuts += claim is not None
            if claim is not None:
                self._num_watched = _TAIL_SPLITS
                return claim
        if seen:
            self.awaited = Counter()
            for one in seen:
                self.awaited[one.record.worker] += one.record.limit - one.record.rows
        return None


def _is_shared(record: Lease) -> bool:
    """Whether others may take rows of the lease: not of one that could not be read the last time,
    until its new holder has read some. Parts of it would fail one by one.
    """
    is_read = not record.failures or record.rows > record.first
    return record.state is LeaseState.HELD and is_read
