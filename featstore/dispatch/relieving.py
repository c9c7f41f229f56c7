"""What workers take over from others: what was given back or has expired and, once they are idle,
so many rows of those to whom most time is left that all end together.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from featstore.dispatch import lease as leases
from featstore.dispatch.claiming import Claiming
from featstore.dispatch.held import Holdings, LoopPace
from featstore.dispatch.lease import FINAL, Lease, LeaseState, pace_of
from featstore.dispatch.survey import Hints, Part
from featstore.dispatch.terms import Claim, Clock, Terms, WaitFor
from featstore.dispatch.waiting import Waiter

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
# From how many holders a worker takes at once. Chosen, not measured.
_MOST_TOGETHER = 8
# So many rows are worth a claim where a batch may have any number of them, up to a cap on values.
FEW_ROWS = 32


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
        if len(chosen) == _MOST_TOGETHER:
            break
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
        came_late: Whether all leases of which it wanted rows had changed when it came to write.
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
        self._taken = list[Claim]()  # Together with the last claim, and not given out yet.
        self.num_takeovers, self.num_cuts = 0, 0
        self.may_relieve = self.came_late = False
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
        while self._taken:
            waiting = self._taken.pop(0)
            if self._held.get((waiting.index, waiting.part), waiting.fence) is not None:
                return waiting
        self.came_late = False
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
        """Takes rows from other workers. A lease that has changed since it was read stays as it
        is, since leases are written by compare-and-set.
        """
        me = Taker(
            salt=self._claims.claimer.nonce,
            rows_per_s=self._pace.idle_rows_per_s,
            # Ranks in step wait for one that begins: then nobody goes through rows meanwhile.
            begin_s=0.0 if self._terms.in_step else self._pace.begin_s,
            least_rows=self._batch_rows,
        )
        self.may_relieve = any(one.record.num_left for one in seen)
        untried = {one.part: one for one in seen}
        for _ in range(_TAIL_SPLITS):
            if not (found := takings(untried.values(), me)):
                break
            self._taken = [claim for one in found if (claim := self._take(one)) is not None]
            if self._taken:
                self._num_watched = _TAIL_SPLITS
                return self._taken.pop(0)
            self.came_late = True
            for taking in found:
                del untried[taking.lease.part]
        if seen:
            self.awaited = Counter()
            for one in seen:
                self.awaited[one.record.worker] += one.record.limit - one.record.rows
        return None

    def _take(self, taking: Taking) -> Claim | None:
        one = taking.lease
        if taking.at is None:
            return self._claims.claim(one.part, one.value, one.record, relieves=True)
        claim = self._claims.cut(one.part, one.value, one.record, taking.at)
        self.num_cuts += claim is not None
        return claim


def _is_shared(record: Lease) -> bool:
    """Whether others may take rows of the lease: not of one that could not be read the last time,
    until its new holder has read some. Parts of it would fail one by one.
    """
    is_read = not record.failures or record.rows > record.first
    return record.state is LeaseState.HELD and is_read
