"""For whom and how long a worker waits that finds nothing to claim: what it has seen of the leases
of others, and since when by its own clock.
"""

import logging
import math
import random
import threading
from collections.abc import Callable, Hashable, Iterable

from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.survey import Part
from featstore.dispatch.terms import Clock, Terms, WaitFor

_LOG = logging.getLogger(__name__)
# Looks of an idle worker at leases, if no hint says that something has changed (decision 0030).
# More of them see an expired lease sooner, and cost three exchanges each.
_LOOKS_PER_LEASE = 8
# An idle worker asks for the two hints after 10 ms first, so that a split which is given back at
# once is taken at once, then at doubled pauses up to a second: one exchange per second and worker
# (decision 0030). A quarter of a lease bounds the pause as well.
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
# Pauses between two looks for a renewal, growing by a quarter: so each renewal is noticed
# after at most a quarter of the time waited so far, with eleven looks in the first two seconds.
_FIRST_LOOK_S, _LOOK_GROWTH = 0.05, 1.25


class LeaseWatch:
    """What one observer has seen of the leases of others, and since when by its own clock.

    No clocks of two machines are ever compared. A lease has expired once two reads at least
    `lease_s` apart, and all reads between, found the same life (`Lease.life`). A missing key counts
    as a life, because its claimer may have died between moving the cursor and writing the key.

    How long a holder has done nothing is only known while the observer looks at least once per
    `lease_s`. An observer that slept itself, as ranks do together during an evaluation, cannot
    tell. Not safe for several threads.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        # By part and aspect: the value that was seen, since when, and at which read the last time.
        self._seen: dict[tuple[Part, str], tuple[Hashable, float, float]] = {}
        # The first life of each part since `begin_waiting`, and the parts whose life has changed.
        self._before: dict[Part, Hashable] = {}
        self._living: set[Part] = set()
        self._next_expiry = math.inf

    def begin_waiting(self) -> None:
        """Forgets all signs of life seen so far. Expiry is measured on."""
        self._before.clear()
        self._living.clear()

    def is_expired(self, part: Part, lease: Lease | None, now: float) -> bool:
        """Notes a reading, and returns whether the part may be taken over.

        Args:
            part: The part.
            lease: Its lease as it was read; None for a missing key.
            now: The time of the reading in seconds.
        """
        life = None if lease is None else lease.life
        if self._before.setdefault(part, life) != life:
            self._living.add(part)
        left_s = self._lease_s - self._still_s(part, "life", life, now, longest_gap_s=math.inf)
        if left_s > 0:
            self._next_expiry = min(self._next_expiry, now + left_s)
        return left_s <= 0

    def take_next_expiry(self) -> float:
        """When the next of the parts that were read since the last call expires, if its life does
        not change.
        """
        at, self._next_expiry = self._next_expiry, math.inf
        return at

    def is_living(self, part: Part) -> bool:
        """Whether the part was claimed or renewed between two reads after `begin_waiting`.

        Both reads must lie after it: a change since an earlier read may be the last act of a holder
        that died before the waiting began.
        """
        return part in self._living

    def silent_s(self, part: Part, now: float) -> float:
        """Seconds since the part's life was first seen as it is; 0 if it was never read."""
        _, since, _ = self._seen.get((part, "life"), (None, now, now))
        return now - since

    def standstill_s(self, part: Part, lease: Lease, now: float) -> float:
        """Seconds for which the holder has neither acknowledged nor reserved a row of any split."""
        mark = (lease.worker, lease.nonce, lease.fence, lease.work)
        return self._still_s(part, "work", mark, now, longest_gap_s=self._lease_s)

    def forget(self, part: Part) -> None:
        """Drops what was seen of a part: it is done, or has a new holder."""
        for aspect in ("life", "work"):
            self._seen.pop((part, aspect), None)
        self._before.pop(part, None)
        self._living.discard(part)

    def _still_s(
        self, part: Part, aspect: str, mark: Hashable, now: float, *, longest_gap_s: float
    ) -> float:
        """Notes a mark, and returns for how many seconds it has been the same.

        Starts over if the last reading is more than `longest_gap_s` ago.
        """
        before, since, last = self._seen.get((part, aspect), (mark, now, now))
        if before != mark or now - last > longest_gap_s:
            since = now
        self._seen[part, aspect] = (mark, since, now)
        return now - since


class Waiter:
    """How one worker waits for others: until a lease may be taken, or is one that it need not wait
    for. Not safe for several threads, except `rest`, which reads only when a lease expires.

    Args:
        worker: The worker's name in messages.
        terms: When leases end.
        clock: The clock by which leases are judged and waited for.
        closed: Ends a rest once it is set.
    """

    def __init__(self, worker: str, terms: Terms, clock: Clock, closed: threading.Event) -> None:
        self._worker, self._terms, self._clock, self._closed = worker, terms, clock, closed
        self._named, self._expires_at = set[str](), math.inf
        self.watch = LeaseWatch(terms.lease_s)

    def standstill_s(self, part: Part, record: Lease) -> float:
        """As of `LeaseWatch.standstill_s`, now."""
        return self.watch.standstill_s(part, record, self._clock.now_s())

    def may_take(self, part: Part, record: Lease | None, *, is_idle: bool) -> bool:
        """Notes a reading of a lease, None for a missing key. Returns whether it may be taken from
        its holder as a whole: it was given back, has expired or is stalled.

        An idle worker warns of a holder that lives and keeps it waiting.
        """
        now = self._clock.now_s()
        expired = self.watch.is_expired(part, record, now)
        if record is None or record.state is LeaseState.FREE:
            return expired or record is not None
        standstill_s = self.watch.standstill_s(part, record, now)
        if (
            is_idle
            and standstill_s >= self._terms.lease_s
            and self.watch.silent_s(part, now) < self._terms.lease_s / 2
        ):
            self._name(record, standstill_s)
        return expired or standstill_s >= self._terms.stall_s

    def must_wait(self, wait_for: WaitFor, others: Iterable[Part]) -> bool:
        """Whether a worker waits for any of these open parts that others have. Called after each
        look: the rest that follows ends when one of them expires.
        """
        self._expires_at = self.watch.take_next_expiry()
        return any(wait_for is WaitFor.ALL or not self.watch.is_living(part) for part in others)

    def rest(
        self,
        wait_for: WaitFor,
        num_looks: int,
        have_changed: Callable[[], bool],
        *,
        may_relieve: bool,
    ) -> None:
        """Waits until another look at leases may find something.

        With `WaitFor.SILENT`, where the worker looks for signs of life, the pause grows with each
        look. With `WaitFor.ALL` it asks only for the two hint keys meanwhile, and returns when they
        show a change, when a lease may soon be cut, or from time to time. It returns just after a
        lease that it has seen expires, in any case.

        Args:
            wait_for: What the worker waits for.
            num_looks: How many looks have found nothing.
            have_changed: Asks for the hints.
            may_relieve: Whether a lease may soon be cut.
        """
        look_s = self._terms.lease_s / _LOOKS_PER_LEASE
        # A little later, so that the lease has expired.
        expires_s = self._expires_at + _FIRST_PAUSE_S - self._clock.now_s()
        if wait_for is WaitFor.SILENT:
            self._clock.wait(self._closed, min(look_pause_s(num_looks, look_s), expires_s))
            return
        longest_s = min(_LONGEST_PAUSE_S, self._terms.lease_s / 4)
        rest_s = min(look_s * random.uniform(0.5, 1.5), expires_s)
        pause_s, until = _FIRST_PAUSE_S, self._clock.now_s() + rest_s
        while not self._clock.wait(self._closed, min(pause_s * random.uniform(0.5, 1), rest_s)):
            rest_s = until - self._clock.now_s()
            if have_changed() or rest_s <= 0:
                return
            if may_relieve and pause_s >= longest_s:
                return
            pause_s = min(2 * pause_s, longest_s)

    def _name(self, record: Lease, standstill_s: float) -> None:
        """Warns, once for each worker, that it lives and keeps others waiting."""
        if record.nonce not in self._named:
            self._named.add(record.nonce)
            _LOG.warning(
                "worker %s waits for worker %s, which lives and has not asked for a batch for %.0f "
                "s. It holds rows %d to %s of split %s, and loses them after stall_s (%.0f s). "
                "Where the workers train in step, set dispatch.in_step: true",
                self._worker,
                record.holder,
                standstill_s,
                record.rows,
                record.limit,
                record.split,
                self._terms.stall_s,
            )


def look_pause_s(num_looks: int, longest_s: float) -> float:
    """Seconds to wait for a sign of life before the next look, after `num_looks` of them."""
    return min(_FIRST_LOOK_S * _LOOK_GROWTH**num_looks, longest_s)
