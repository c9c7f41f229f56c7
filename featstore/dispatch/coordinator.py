"""The coordinator: one worker's view of an epoch's leases, kept in a store that all workers share.

There is no server and no leader. A worker takes the next position from a counter and makes the split's key its own by
compare-and-set; the keys of the splits are the only truth. While the process lives, a thread renews what it holds.
"""

import contextlib
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from featstore.dispatch import lease as leases
from featstore.dispatch.keys import EpochKeys
from featstore.dispatch.lease import Lease, LeaseState, Survey, Watch
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.address import Store, StoreAddress, bind
from featstore.errors import DispatchError

Done = Mapping[int, int | Literal["complete"]]

_BEATS_PER_LEASE = 3
_SURVEYS_PER_LEASE = 2
_SURVEY_SPLITS = 64
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to one split: `plan[index]`, from its row `start_row` on (in delivery order; those before are delivered)."""

    index: int
    split: Split
    fence: int
    start_row: int = 0


class Coordinator:
    """Claims splits of one epoch for one worker; a context manager, to be closed by the one that made it.

    Claims may be taken by one thread while another acknowledges and completes. `done` is what a restored state had
    delivered, by position in the plan: "complete", or the rows of a partial split; it must be the same for all workers.
    Every method raises DispatchError when the store is lost, also where only the renewing thread noticed.
    """

    def __init__(
        self,
        store: StoreAddress | str,
        *,
        plan: Plan,
        prefix: str,
        worker: str,
        lease_s: float = 60.0,
        done: Done | None = None,
    ) -> None:
        self._plan, self._worker, self._lease_s = plan, worker, lease_s
        self._keys = EpochKeys(prefix, plan.epoch)
        self._done: Done = done or {}
        self._nonce = uuid.uuid4().hex[:12]
        self._pid = os.getpid()
        self._watch = Watch(lease_s)
        self._survey = Survey(frozenset(i for i, rows in self._done.items() if rows == "complete"))
        self._cursor, self._surveyed_at, self._num_takeovers = 0, time.monotonic(), 0
        self._first_index: int | None = None
        self._held: dict[int, Lease] = {}
        self._lost: set[tuple[int, int]] = set()
        self._claiming, self._holding, self._closed = threading.Lock(), threading.Lock(), threading.Event()
        self._failure: BaseException | None = None
        address = bind(store, timeout_s=lease_s / 4) if isinstance(store, str) else store
        self._store = address.open()
        try:
            self._require_same_plan()
            self._renewer = _Renewer(address.open(), lease_s / _BEATS_PER_LEASE, self._renew_all, self._closed)
        except BaseException:
            self._store.close()
            raise

    def claims(self, *, wait: bool = True, wait_for_living: bool = True) -> Iterator[Claim]:
        """Claims as they can be had: the next of the plan, splits given back, and splits whose lease expired.

        Ends when no split is left but those that this worker holds; waits while others hold some. A worker that loses a
        lease may find it offered again, so iterate anew after completing all: an empty iteration means that all splits
        are done. Ends at once after `close()`. With `wait=False` it ends where it would wait, for a worker that must first
        deliver what it holds: two workers waiting for each other's last rows would wait for ever. With
        `wait_for_living=False` it waits only for splits that were claimed before this worker came, until their holder is
        seen to live, by a renewal, or to be dead.
        """
        pause_s = _FIRST_PAUSE_S
        while not self._closed.is_set():
            claim, is_over = self._next_claim(wait_for_living)
            if claim is not None:
                pause_s = _FIRST_PAUSE_S
                yield claim
            elif is_over or not wait:
                return
            else:
                self._closed.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S, self._lease_s / 4)

    def acknowledge(self, claim: Claim, num_rows: int) -> bool:
        """The first `num_rows` of the split, in delivery order, are delivered: a takeover begins after them.

        One write to the store, on return. False when the lease was taken over.
        """
        return self._change(claim, lambda mine: leases.advance(mine, num_rows))

    def complete(self, claim: Claim) -> bool:
        """The whole split is delivered. False, and nothing changes, when the lease was taken over."""
        return self._change(claim, lambda mine: leases.finish(mine, claim.split.num_rows))

    def is_lost(self, index: int, fence: int) -> bool:
        """Whether a claim of this worker was found to be taken over, by its renewing thread too. Asks no store."""
        return (index, fence) in self._lost

    @property
    def is_done(self) -> bool:
        """Whether all splits were found done when `claims()` ended: False where others still hold some."""
        return not self._survey.pending(len(self._plan), len(self._plan))

    @property
    def num_takeovers(self) -> int:
        """How many expired leases of others this worker took over."""
        return self._num_takeovers

    def close(self) -> None:
        """Wakes `claims()`, joins the renewing thread and gives unfinished splits back, so that nobody waits for them.

        May be called more than once, and from another thread than the one that claims.
        """
        if os.getpid() != self._pid:
            return
        self._closed.set()
        self._renewer.join()
        with self._claiming:
            with contextlib.suppress(DispatchError):
                for index in list(self._held):
                    self._replace(self._store, index, leases.release)
            self._store.close()

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _require_same_plan(self) -> None:
        seed = "\n".join(f"{index} {self._done[index]}" for index in sorted(self._done))
        mine = f"{self._plan.digest}+{hashlib.sha256(seed.encode()).hexdigest()[:16]}"
        found = self._store.compare_set(self._keys.plan, "", mine)
        if found != mine:
            raise DispatchError(
                f"worker {self._worker} has another plan for epoch {self._plan.epoch} than the workers before it: expected "
                f"{found}, found {mine}; table version, selection, seed, row groups and restored state must be the same in "
                "all workers, and each run needs a run_id of its own"
            )

    def _next_claim(self, wait_for_living: bool) -> tuple[Claim | None, bool]:
        """A claim, if one can be had now, and whether nothing is left to wait for."""
        with self._claiming:
            self._require_usable()
            if self._closed.is_set():
                return None, True
            claim = None
            if self._cursor < len(self._plan):
                claim = self._revisit_now_and_then() or self._advance()
            claim = claim or self._revisit(len(self._plan))
            return claim, claim is None and not self._others_pending(wait_for_living)

    def _others_pending(self, count_living: bool) -> bool:
        pending = self._survey.pending(len(self._plan), len(self._plan))
        return any(index not in self._held and (count_living or not self._is_alive(index)) for index in pending)

    def _is_alive(self, index: int) -> bool:
        """Whether the holder of the split was seen to do something since this worker came."""
        return index >= (self._first_index or 0) or self._watch.has_moved(index)

    def _advance(self) -> Claim | None:
        """Takes positions from the cursor until one is free."""
        while (index := self._take_position()) < len(self._plan):
            self._cursor = index + 1
            if self._done.get(index) != "complete" and (claim := self._claim(index, None)) is not None:
                return claim
        self._cursor = len(self._plan)
        return None

    def _take_position(self) -> int:
        index = self._store.add(self._keys.cursor, 1) - 1
        if self._first_index is None:
            self._first_index = index
        return index

    def _revisit_now_and_then(self) -> Claim | None:
        """During the epoch: looks at the oldest splits that are not done, a bounded number, twice per lease time."""
        if time.monotonic() - self._surveyed_at < self._lease_s / _SURVEYS_PER_LEASE:
            return None
        claim = self._revisit(_SURVEY_SPLITS)
        if claim is None:
            self._surveyed_at = time.monotonic()
        return claim

    def _revisit(self, limit: int) -> Claim | None:
        """Takes over the first split, among those not known to be done, that was given back or whose lease expired."""
        for index in self._survey.pending(self._cursor, limit):
            if index not in self._held and (claim := self._revisit_one(index)) is not None:
                return claim
        return None

    def _revisit_one(self, index: int) -> Claim | None:
        value = self._store.get_or_none(self._keys.split(index))
        state = None if value is None else Lease.decode(value).state
        if state is LeaseState.DONE:
            self._survey.settle(index)
            self._watch.forget(index)
            return None
        expired = self._watch.is_expired(index, value, time.monotonic())
        if not expired and state is not LeaseState.FREE:
            return None
        claim = self._claim(index, value)
        self._num_takeovers += claim is not None and state is LeaseState.HELD
        return claim

    def _claim(self, index: int, value: str | None) -> Claim | None:
        """Makes the split this worker's own, if its key still holds `value`."""
        done_rows = self._done.get(index, 0)
        start_row = done_rows if isinstance(done_rows, int) else 0
        current = None if value is None else Lease.decode(value)
        mine = leases.claim(current, worker=self._worker, nonce=self._nonce, start_row=start_row)
        if self._store.compare_set(self._keys.split(index), value or "", mine.encode()) != mine.encode():
            return None
        with self._holding:
            self._held[index] = mine
        self._watch.forget(index)
        return Claim(index=index, split=self._plan[index], fence=mine.fence, start_row=mine.rows)

    def _change(self, claim: Claim, change: Callable[[Lease], Lease]) -> bool:
        self._require_usable()
        mine = self._held.get(claim.index)
        return mine is not None and mine.fence == claim.fence and self._replace(self._store, claim.index, change)

    def _replace(self, store: Store, index: int, change: Callable[[Lease], Lease]) -> bool:
        """Writes the changed record of a held split; False when the lease is lost.

        The consumer and the renewing thread both do this, without waiting for each other: who finds that the other was
        first applies its change to the other's record.
        """
        mine = self._held.get(index)
        while mine is not None:
            changed = change(mine)
            found = store.compare_set(self._keys.split(index), mine.encode(), changed.encode())
            if found == changed.encode():
                self._remember(index, changed)
                return True
            current = Lease.decode(found)
            if not current.same_claim(mine) or current.state is not LeaseState.HELD:
                self._lost.add((index, mine.fence))
                self._remember(index, leases.release(mine))
                return False
            mine = current
        return False

    def _remember(self, index: int, record: Lease) -> None:
        """Keeps what was written as this worker's view, unless the other thread already saw the claim end."""
        with self._holding:
            held = self._held.get(index)
            if held is None or not held.same_claim(record):
                return
            if record.state is LeaseState.HELD:
                self._held[index] = record
            else:
                del self._held[index]

    def _renew_all(self, store: Store) -> None:
        try:
            for index in list(self._held):
                self._replace(store, index, leases.renew)
        except DispatchError as error:
            self._failure = error
            raise

    def _require_usable(self) -> None:
        if os.getpid() != self._pid:
            raise DispatchError(
                "a coordinator cannot be used in another process than the one that made it: make one in each worker"
            )
        if self._failure is not None:
            raise DispatchError(f"leases could not be renewed: {self._failure}") from self._failure


class _Renewer:
    """The thread that renews leases at an even pace with a store handle of its own; ends when `closed` is set."""

    def __init__(self, store: Store, interval_s: float, renew: Callable[[Store], None], closed: threading.Event) -> None:
        self._store, self._interval_s, self._renew, self._closed = store, interval_s, renew, closed
        self._thread = threading.Thread(target=self._run, name="featstore-lease-renewal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.closing(self._store), contextlib.suppress(DispatchError):
            while not self._closed.wait(self._interval_s):
                self._renew(self._store)

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()
