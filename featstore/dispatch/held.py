"""The leases that one worker holds. It changes each by compare-and-set from the value that it wrote
or read last. A thread renews them. And how fast its loop goes through their rows.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from featstore.base.errors import DispatchError
from featstore.dispatch import lease as leases
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store
from featstore.dispatch.survey import Part
from featstore.dispatch.terms import Claim, Clock

# Two renewals may be late or lost before a lease expires. More of them load the store: at 10,000
# workers renewals are a part of 19,000 exchanges per second (benchmarks/dispatch_simulation.md).
_BEATS_PER_LEASE = 3
# At the end of an epoch a rank that trains in step waits for one renewal of each holder: at most
# this long (docs/dispatch.md). No cost was seen (benchmarks/epoch_barrier.md); longer delays each
# epoch's end, shorter writes more often while the last splits are read.
_TAIL_BEAT_S = 0.5
# Rates of shorter times are those of bursts, such as the batches that a DataLoader asks for ahead,
# or the few batches of a claim's end. A worker acknowledges every 1.5 s (`Terms.report_s`).
_LEAST_S = 0.5
# From the worker's record of a lease, and the count of what it has done so far, to the new record.
Change = Callable[[Lease, int], Lease]
ClaimKey = tuple[int, int, int]  # Claim.key


@dataclass(slots=True)
class _Making:
    """How far batches are made of a claim, as `Holdings` says.

    Attributes:
        made: Batches are made of the rows before this one.
        granted: They may be made of those before this one.
        made_at: When the last one was made.
    """

    made: int
    granted: int
    made_at: float


class Holdings:
    """The leases that a worker holds, by part, and how many rows of each it has made into batches.
    Safe for several threads, which may share a store handle or use one each.

    `_lock` guards the writes to the records. It is reentrant, since a signal handler that closes
    may run in the thread that holds it, and is never held during a call of the store, which may
    take until its timeout. Reads of records are single operations of the dict and take no lock.

    A thread may reserve fewer rows of a claim than before while another one makes batches of them.
    So a claim has a `made` row, up to which batches are made and below which nobody reserves, and a
    `granted` row, up to which they may be made without a call of the store. The latter falls before
    the store is told so, and rises after. It holds for a lease after the last batch: a loop that
    stood still for longer asks whether others have taken the claim.
    """

    def __init__(self, keys: EpochKeys, lease_s: float, clock: Clock) -> None:
        self._keys, self._lease_s, self._clock = keys, lease_s, clock
        self._held: dict[Part, Lease] = {}
        self._making: dict[ClaimKey, _Making] = {}
        self._lock = threading.RLock()
        self._work = 0

    def __contains__(self, part: Part) -> bool:
        return part in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, part: Part, fence: int) -> Lease | None:
        """The worker's last record of a claim, or None once the claim has ended."""
        mine = self._held.get(part)
        return mine if mine is not None and mine.fence == fence else None

    def take(self, part: Part, mine: Lease) -> None:
        """Adds a claim that was written to the store."""
        making = _Making(mine.rows, mine.reserved, self._clock.now_s())
        with self._lock:
            if (before := self._held.get(part)) is not None:
                del self._making[*part, before.fence]
            self._held[part], self._making[*part, mine.fence] = mine, making

    def make(self, rows: Iterable[tuple[Claim, int]]) -> bool:
        """Whether the next batch may be made without a call of the store. If so, its rows stay
        reserved.

        Called for each batch: the lock is taken once for all of its claims.

        Args:
            rows: The claims that it has rows of, each with the row up to which it does.
        """
        now, making = self._clock.now_s(), self._making
        with self._lock:
            for claim, through in rows:
                mine = making.get(claim.key)
                if mine is None or through > mine.granted or now - mine.made_at >= self._lease_s:
                    return False
                mine.made_at = now
                if through > mine.made:
                    mine.made = through
            return True

    def keep(self, part: Part, fence: int, through: int) -> None:
        """From now on nobody reserves fewer rows of the claim than those before `through`."""
        with self._lock:
            if (mine := self._making.get((*part, fence))) is not None:
                mine.made, mine.made_at = max(mine.made, through), self._clock.now_s()

    def lower(self, part: Part, fence: int, through: int) -> int:
        """The row to which the claim may be reserved in order to reserve those before `through`:
        more, if more are made. No more than that is made without a call of the store from now on.
        """
        with self._lock:
            if (mine := self._making.get((*part, fence))) is not None:
                through = max(through, mine.made)
                mine.granted = min(mine.granted, through)
            return through

    @property
    def num_delivering(self) -> int:
        """How many of the leases have rows that were made into batches."""
        with self._lock:
            return sum(
                self._making[*part, mine.fence].made > mine.first
                for part, mine in self._held.items()
            )

    @property
    def num_made_rows(self) -> int:
        """How many rows were made into batches and are not acknowledged."""
        making, held = self._making, list(self._held.items())
        made = ((making.get((*part, mine.fence)), mine.rows) for part, mine in held)
        return sum(max(0, claim.made - rows) for claim, rows in made if claim is not None)

    @property
    def num_reserved_rows(self) -> int:
        """How many rows are reserved and not acknowledged."""
        return sum(mine.num_unacknowledged for mine in list(self._held.values()))

    def worked(self) -> None:
        """Counts something that the worker did. Others judge by this count whether it stalls."""
        with self._lock:
            self._work += 1

    def change(self, store: Store, part: Part, fence: int, change: Change) -> Lease | None:
        """Changes the record of a claim, in the store and here.

        `change` is applied again if another worker has cut the lease meanwhile, or another thread
        of this worker has changed it.

        Returns:
            The new record, or None if the claim has ended.
        """
        mine = self.get(part, fence)
        while mine is not None:
            changed = change(mine, self._work)
            text = store.compare_set(self._keys.part(part), mine.encode(), changed.encode())
            if text == changed.encode():
                self._remember(part, changed)
                return changed
            current = Lease.decode(text)
            if not current.same_claim(mine) or current.state is not LeaseState.HELD:
                self._remember(part, leases.release(mine))
                return None
            # The value is newer than this thread's: apply the change to that one. Remembered first,
            # so that the thread that wrote it grants nothing any more by remembering it later.
            self._remember(part, current)
            mine = current
        return None

    def looked_up(self, store: Store) -> dict[Part, Lease]:
        """The held leases as the store has them now: others may have cut them."""
        held = list(self._held.items())
        texts = store.get_many([self._keys.part(part) for part, _ in held])
        current = {
            part: Lease.decode(text)
            for (part, _), text in zip(held, texts, strict=True)
            if text is not None
        }
        return {
            part: current[part]
            for part, mine in held
            if part in current and current[part].same_claim(mine)
        }

    def renew_all(self, store: Store) -> None:
        """Renews every held lease, one write each."""
        for part, mine in list(self._held.items()):
            self.change(store, part, mine.fence, leases.renew)

    def release_all(self, store: Store) -> list[Part]:
        """Gives all leases back. Returns the parts that were not lost before."""
        return [
            part
            for part, mine in list(self._held.items())
            if self.change(store, part, mine.fence, lambda mine, _: leases.release(mine))
            is not None
        ]

    def _remember(self, part: Part, record: Lease) -> None:
        """Keeps a written record, unless another thread saw the claim end or wrote later.

        Threads may arrive here in another order than their writes reached the store. The beat,
        which grows with each write, tells which write was last.
        """
        with self._lock:
            held = self._held.get(part)
            if held is None or not held.same_claim(record):
                return
            if record.state is not LeaseState.HELD:
                del self._held[part], self._making[*part, held.fence]
            elif record.beat > held.beat:
                self._held[part] = record
                self._making[*part, held.fence].granted = record.reserved


def renewal_pause_s(lease_s: float) -> float:
    """Seconds between two renewals: a third of a lease, so that a late one does not end it."""
    return lease_s / _BEATS_PER_LEASE


def in_step_pause_s(lease_s: float, *, num_taken: int, num_left: int, elapsed_s: float) -> float:
    """Seconds to the next renewal of a rank that trains in step with others.

    Once the plan is handed out the pause is short, because idle ranks wait for one renewal of each
    holder. Before that it is half of the time that the rest of the plan is expected to take, so
    that the end is not missed and the store is asked rarely.

    Args:
        lease_s: The lease time in seconds.
        num_taken: Positions of the plan that were handed out in the last `elapsed_s`.
        num_left: Positions that are not handed out yet.
        elapsed_s: Seconds since the worker began.
    """
    # Before the first position was handed out, as much time is expected as has passed.
    expected_s = elapsed_s * (num_left / num_taken if num_taken else 1)
    shortest_s = min(_TAIL_BEAT_S, renewal_pause_s(lease_s))
    return (
        shortest_s
        if not num_left
        else max(shortest_s, min(expected_s / 2, renewal_pause_s(lease_s)))
    )


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
            self._claimed_at = None
            if self._since is not None:
                self._kept_s, self._since = now - self._since, None

    def begin(self, now: float) -> None:
        """A batch is made. The first one of a claim after a pause begins the time."""
        with self._lock:
            if self._since is None:
                self._since = now - self._kept_s
                # A claim that was taken just before the last one ended waited for no staging.
                if self._claimed_at is not None:
                    self.begin_s = now - self._claimed_at

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
            short = self._num_rows / max(_LEAST_S, self._kept_s) if is_short else 0.0
            return self.rows_per_s or short


class InStepPace:
    """When a rank that trains in step renews next, measured by the plan's cursor.

    Only the renewing thread uses it.

    Args:
        store: A handle to read the cursor with at the beginning.
        keys: The epoch's keys.
        num_splits: Splits of the plan.
        lease_s: The lease time in seconds.
        clock: The clock that rates are measured by.
    """

    def __init__(
        self, store: Store, keys: EpochKeys, num_splits: int, lease_s: float, clock: Clock
    ) -> None:
        self._keys, self._num_splits, self._lease_s, self._clock = keys, num_splits, lease_s, clock
        self._began_s, self._began_at = clock.now_s(), self._num_handed_out(store)

    def pause_s(self, store: Store) -> float:
        """Seconds to the next renewal. Reads one key of the store."""
        at = self._num_handed_out(store)
        return in_step_pause_s(
            self._lease_s,
            num_taken=at - self._began_at,
            num_left=self._num_splits - at,
            elapsed_s=self._clock.now_s() - self._began_s,
        )

    def _num_handed_out(self, store: Store) -> int:
        return min(int(store.get_or_none(self._keys.cursor) or 0), self._num_splits)


class Renewer:
    """A thread that renews leases until `closed` is set, or the store is lost.

    Args:
        store: A handle of the thread's own; the thread closes it.
        pause_s: Returns the seconds to wait before the next renewal.
        renew: Renews all leases that the worker holds.
        on_failure: Called with the error if the store is lost; the thread ends then.
        closed: Ends the thread once it is set.
        clock: The clock to wait by.
    """

    def __init__(
        self,
        store: Store,
        pause_s: Callable[[Store], float],
        renew: Callable[[Store], None],
        on_failure: Callable[[DispatchError], None],
        closed: threading.Event,
        clock: Clock,
    ) -> None:
        self._store, self._pause_s, self._renew = store, pause_s, renew
        self._on_failure, self._closed, self._clock = on_failure, closed, clock
        self._thread = threading.Thread(
            target=self._run, name="featstore-lease-renewal", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Waits for the thread to end. Returns at once if the thread itself calls it."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._store):
            try:
                while not self._clock.wait(self._closed, self._pause_s(self._store)):
                    self._renew(self._store)
            except DispatchError as error:
                self._on_failure(error)
