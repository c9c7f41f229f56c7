"""The coordinator: one worker's view of an epoch's leases, kept in a store that all workers share.

There is no server and no leader. A worker takes the next position from a counter, and writes its
lease to the split's key by compare-and-set; the keys of the splits are the only source of truth.
While the process lives, a thread renews its leases.
"""

import contextlib
import hashlib
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from featstore.base.closing import Closing, cleaned_up_on_failure
from featstore.base.errors import DispatchError
from featstore.base.processes import OwnProcess
from featstore.dispatch import lease as leases
from featstore.dispatch.claiming import Claimer, Claiming
from featstore.dispatch.epochs import EpochNote, announce
from featstore.dispatch.held import Holdings, InStepPace, Renewer, renewal_pause_s
from featstore.dispatch.lease import FINAL, Lease, LeaseState
from featstore.dispatch.plan import Done, Plan
from featstore.dispatch.receipt import EpochSize, quarantined
from featstore.dispatch.relieving import LoopPace, Seen, Taker, Taking, takings
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import STORE_WAIT_S, Store, StoreAddress, bind
from featstore.dispatch.survey import Hints, Part
from featstore.dispatch.terms import SYSTEM_CLOCK, AnsweredClock, Claim, Clock, Terms, WaitFor
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


class Coordinator(Closing):
    """Claims splits of one epoch for one worker. A context manager; whoever made it closes it.

    One thread may take claims while others reserve, acknowledge and complete them. Every method
    raises DispatchError once the store is lost, even if only the renewing thread has noticed.

    Locks: `_claiming` is held during a look for a claim, and guards what the worker knows of the
    leases of others. Under it only the store is asked. `Holdings` and `LoopPace` have locks of
    their own, which come after it.

    Args:
        store: The store of the epoch's keys.
        plan: The splits; equal for all workers.
        prefix: Prefix of the keys of this run and loader.
        worker: The worker's name in messages and receipts.
        index: The worker's number in the job. A worker that replaces another one has its number.
        terms: When leases end; equal for all workers.
        done: What a restored state had delivered, by position in the plan: "complete", a number of
            first rows, or ranges. Equal for all workers.
        clock: The clock by which leases are judged, renewed and waited for.
        shares_claims: Whether workers that have nothing left to do may take what this one has not
            reserved, at any row. Claims then begin with nothing reserved, and no row may be
            delivered before `reserve`. Otherwise claims are reserved whole.
        batch_rows: Rows of a batch: fewer are not taken from another worker.
        is_staged: Whether this host has the file of a path in its cache. Such splits are claimed
            first.

    Raises:
        DispatchError: The store cannot be reached, or has another plan for the epoch.
    """

    def __init__(
        self,
        store: StoreAddress | str,
        *,
        plan: Plan,
        prefix: str,
        worker: str,
        index: int = 0,
        terms: Terms | None = None,
        done: Done | None = None,
        clock: Clock = SYSTEM_CLOCK,
        shares_claims: bool = False,
        batch_rows: int = 1,
        is_staged: Callable[[str], bool] | None = None,
    ) -> None:
        self._plan, self._worker, self._terms, self._clock = plan, worker, terms or Terms(), clock
        self._shares_claims, self._batch_rows = shares_claims, batch_rows
        self._keys, self._done = EpochKeys(prefix, plan.epoch), done or {}
        self._nonce = uuid.uuid4().hex[:12]
        self._process = OwnProcess()
        self._surveyed_at = self._clock.now_s()
        self._num_watched, self._may_relieve = _TAIL_SPLITS, False
        self._taken = list[Claim]()  # Together with the last claim, and not given out yet.
        self._came_late = False  # All leases of which it wanted rows had changed meanwhile.
        self.num_takeovers, self.num_cuts = 0, 0
        # For whom it waited last: workers with rows that it could not take.
        self.awaited = Counter[str]()
        # Whether the first look of `claims` found all splits done; None before it.
        self.found_all_done: bool | None = None
        self._held, self._pace = Holdings(self._keys, self._terms.lease_s, clock), LoopPace()
        self._claiming, self._closed = threading.Lock(), threading.Event()
        self._failure: BaseException | None = None
        address = bind(store, timeout_s=STORE_WAIT_S) if isinstance(store, str) else store
        self._address = address.scoped(self._terms.leave_s)
        self._store = self._address.open()
        claimer = Claimer(worker=worker, nonce=self._nonce, index=index, shares=shares_claims)
        self._claims = Claiming(
            self._store, self._keys, plan, self._done, claimer, self._held, self._pace, is_staged
        )
        answered = AnsweredClock(clock, address.unanswered_s)
        self._waiting = Waiter(worker, self._terms, answered, self._closed)
        self._hints = Hints(self._store, self._keys, self._claims.survey, len(plan))
        with cleaned_up_on_failure(self._store.close):
            self._require_same_plan()
            self._claims.begin()
            self._beats = InStepPace(self._store, self._keys, len(plan), self._terms.lease_s, clock)
            self._renewer = Renewer(
                self._address.open(),
                self._renewal_pause_s,
                self._held.renew_all,
                self.note_failure,
                self._closed,
                clock,
            )

    def claims(self, wait_for: WaitFor = WaitFor.ALL) -> Iterator[Claim]:
        """Claims splits one after the other: the next one of the plan, splits that were released,
        splits whose lease has expired, and, at the end, what a worker that holds nothing can take
        over from others.

        Ends after `close`; when no split is left except those that this worker holds; and when
        there is nothing more to wait for. A lease that this worker loses may be offered again, so
        iterate again after completing all claims: an empty iteration with `WaitFor.ALL` means that
        all splits are done.

        Args:
            wait_for: What to wait for if there is nothing to claim. A worker that has claims to
                deliver must not wait: two workers would wait for each other's last rows forever.
        """
        num_looks = 0
        self._begin_waiting()
        while not self._closed.is_set():
            claim, is_over = self._next_claim(wait_for)
            if self.found_all_done is None:
                self.found_all_done = claim is None and self.is_done
            if claim is not None:
                yield claim
                num_looks = 0
                self._begin_waiting()
            elif is_over or wait_for is WaitFor.NOTHING:
                return
            else:
                self._waiting.rest(
                    wait_for, num_looks, self._have_hints_changed, may_relieve=self._may_relieve
                )
                num_looks += 1

    def start(self, claim: Claim) -> int | None:
        """Records that rows of a claim are about to be read: a worker that the first of them kills
        has failed at it. Takes one write to the store for each claim.

        Returns:
            The row at which the claim ends, as far as this worker knows: others may have cut off
            rows. None if the lease was taken over.
        """
        mine = self._held.get(part := _part(claim), claim.fence)
        if mine is not None and not mine.started:
            self._require_usable()
            mine = self._held.change(self._store, part, claim.fence, leases.start)
        return None if mine is None else mine.limit

    def reserve(self, claim: Claim, through: int) -> int | None:
        """Reserves rows of a claim, which another worker can then not take. Batches are made of
        reserved rows only.

        Takes one write to the store if they are not reserved yet. It then reserves ahead what the
        loop will deliver in the next `reserve_s`, as of `LoopPace.ahead`: of a fast loop's first
        batches few ask.

        Args:
            claim: The claim.
            through: The row up to which to reserve.

        Returns:
            The row up to which this worker may deliver: less than `through` if the rest was cut
            off. None if the lease was taken over, or is complete.
        """
        self._require_usable()
        part = _part(claim)
        mine = self._held.get(part, claim.fence)
        if mine is None:
            return None
        through = min(through, mine.limit)
        if self._held.make(part, claim.fence, through):
            return through
        self._held.worked()
        self._pace.begin(now := self._clock.now_s())
        num_rows = self._pace.ahead(self._held.num_made_rows, self._terms.reserve_s, now)
        self._held.keep(part, claim.fence, through)  # Before the write: see `Holdings`.
        ahead = math.ceil(num_rows / max(1, self._held.num_delivering))
        mine = self._held.change(
            self._store,
            part,
            claim.fence,
            lambda mine, work: leases.reserve(
                mine, max(mine.reserved, through + ahead), work, pace=self._rows_per_s
            ),
        )
        return None if mine is None else min(through, mine.reserved)

    def reserved(self, claim: Claim) -> int:
        """The row up to which a claim is reserved; 0 if it was taken over, or is complete. Does not
        ask the store.
        """
        mine = self._held.get(_part(claim), claim.fence)
        return 0 if mine is None else mine.reserved

    def acknowledge(self, claim: Claim, num_rows: int) -> bool:
        """As `acknowledge_all`, of one claim.

        Returns:
            False if the lease was taken over.
        """
        return self.acknowledge_all([(claim, num_rows)])[0]

    def acknowledge_all(self, delivered: Sequence[tuple[Claim, int]]) -> list[bool]:
        """Records of each claim that the split's first rows, in the order of delivery, are
        delivered: a takeover begins after them. Reserves as many more as the loop will deliver in
        the next `reserve_s`: where it has become slower, fewer than before. Takes one write to the
        store for each claim.

        Args:
            delivered: Claims, each with a number of rows: all of which rows were delivered since
                the last call. Complete ones are told before, so that the loop's pace shows.

        Returns:
            Of each claim, whether it is still this worker's.
        """
        self._require_usable()
        held = [self._held.get(_part(claim), claim.fence) for claim, _ in delivered]
        advanced = [
            0 if mine is None else max(0, num_rows - mine.rows)
            for mine, (_, num_rows) in zip(held, delivered, strict=True)
        ]
        if any(advanced):
            self._held.worked()
        self._pace.deliver(sum(advanced))
        self._pace.measure(self._clock.now_s())
        ahead = self._pace.rows_per_s * self._terms.reserve_s / max(1, sum(advanced))
        return [
            mine is not None and self._advance(claim, num_rows, math.ceil(ahead * num_more))
            for mine, (claim, num_rows), num_more in zip(held, delivered, advanced, strict=True)
        ]

    def complete(self, claim: Claim) -> bool:
        """Records that the whole claim is delivered.

        Returns:
            False if the lease was taken over; nothing changes then.
        """
        self._held.worked()
        if (mine := self._held.get(_part(claim), claim.fence)) is not None:
            self._pace.deliver(mine.limit - mine.rows)
        record = self._changed(claim, lambda mine, _: leases.finish(mine))
        if not len(self._held):
            self._pace.pause(self._clock.now_s())
        return record is not None

    def fail(self, claim: Claim) -> Lease | None:
        """Releases a claim that could not be read. After too many failures the split is
        quarantined.

        Returns:
            Its record now; None if the lease was taken over.
        """
        record = self._changed(claim, lambda mine, _: leases.fail(mine))
        if record is not None:
            self._hints.gave_back([_part(claim)])
        return record

    def gives_up(self, record: Lease) -> bool:
        """Whether enough claims in a row have failed for nobody to claim the lease again."""
        return leases.has_failed(record, self._terms.max_failures)

    def note_failure(self, error: BaseException) -> None:
        """Keeps an error of a thread that talks to the store, to be raised by the next call in any
        other one.
        """
        self._failure = error

    @property
    def is_done(self) -> bool:
        """Whether all splits were done when `claims` ended. False if others still hold some."""
        return not self._claims.open_parts()

    @property
    def row_counts(self) -> dict[str, int]:
        """How many rows of the claims are made into batches, and how many are reserved, that are
        not acknowledged. Does not ask the store.
        """
        held = self._held
        return {"made_rows": held.num_made_rows, "reserved_rows": held.num_reserved_rows}

    def num_unclaimed(self) -> int:
        """How many splits of the plan no worker has come to yet. One read of the store."""
        with self._claiming:
            self._require_usable()
            cursor = int(self._store.get_or_none(self._keys.cursor) or 0)
        complete = sum(i >= cursor and rows == "complete" for i, rows in self._done.items())
        return max(0, len(self._plan) - cursor - complete)

    @property
    def quarantined(self) -> list[str]:
        """The splits of the epoch, or parts of them, that are quarantined, each as `{split id} from
        row {rows}`.
        """
        return sorted(
            f"{record.split} from row {record.rows}"
            for record in quarantined(self._store, self._keys)
        )

    def limits(self) -> dict[tuple[int, int, int], int]:
        """The rows at which this worker's claims end now, by `Claim.key`, without lost ones."""
        self._require_usable()
        return {
            (*part, mine.fence): mine.limit
            for part, mine in self._held.looked_up(self._store).items()
        }

    def close(self) -> None:
        """Wakes `claims`, joins the renewing thread, and releases unfinished splits so that no
        worker has to wait for their leases to expire.

        May be called more than once, and from any thread.
        """
        if not self._process.is_this():
            return
        self._closed.set()
        self._address.hurry()
        self._renewer.join()
        with self._claiming:
            with contextlib.suppress(DispatchError):
                self._hints.gave_back(self._held.release_all(self._store))
            self._store.close()

    def _require_same_plan(self) -> None:
        seed = "\n".join(f"{index} {self._done[index]}" for index in sorted(self._done))
        mine = f"{self._plan.digest}+{hashlib.sha256(seed.encode()).hexdigest()[:16]}"
        if self._plan.window_rows is not None:
            mine += f"+{self._plan.window_rows}"
        found = self._store.compare_set(self._keys.plan, "", mine)
        if found != mine:
            raise DispatchError(
                f"worker {self._worker} has another plan for epoch {self._plan.epoch} than the "
                f"workers before it: expected {found}, found {mine}; table version, selection, "
                "seed, shuffle, row groups and restored state must be the same in all workers, and "
                "each run needs its own run_id"
            )
        self._store.set(self._keys.size, EpochSize.of(self._plan, self._done).encode())
        note = EpochNote.of(
            self._keys, self._plan, self._done, terms=self._terms, started_unix_s=time.time()
        )
        announce(self._store, note)

    def _begin_waiting(self) -> None:
        with self._claiming:
            self._waiting.watch.begin_waiting()

    def _have_hints_changed(self) -> bool:
        with self._claiming:
            self._require_usable()
            return self._closed.is_set() or self._hints.have_changed()

    def _next_claim(self, wait_for: WaitFor) -> tuple[Claim | None, bool]:
        """A claim, if there is one now, and whether nothing is left to wait for."""
        with self._claiming:
            self._require_usable()
            if self._closed.is_set():
                return None, True
            holds_nothing = not len(self._held)
            claim = self._taken.pop(0) if self._taken else None
            if claim is None and not self._claims.is_handed_out:
                claim = self._revisit_now_and_then() or self._claims.next()
            self._came_late = False
            claim = claim or self._look(wait_for)
            if claim is not None:
                self._waiting.watch.forget(_part(claim))
                if holds_nothing:
                    self._pace.restart(self._clock.now_s())
                return claim, False
            others = (part for part in self._claims.open_parts() if part not in self._held)
            return None, not (self._waiting.must_wait(wait_for, others) or self._came_late)

    def _revisit_now_and_then(self) -> Claim | None:
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

    def _look(self, wait_for: WaitFor) -> Claim | None:
        """At the end of the plan: looks at all splits that are not known to be done. With
        `WaitFor.ALL` it looks at some of them, and at more as long as it finds some done.
        """
        survey = self._claims.survey
        num_open, claim = -1, None
        limit = (
            self._num_watched if wait_for is WaitFor.ALL else len(self._plan) + survey.num_open + 1
        )
        while claim is None and num_open != (num_open := survey.num_open):
            claim = self._revisit(
                [*self._hints.given_back(), *survey.look(self._claims.cursor, limit, self._nonce)]
            )
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
        may_relieve = is_idle and self._shares_claims
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
                if may_relieve and value is not None and _is_shared(record):
                    assert record is not None
                    still_s = self._waiting.standstill_s(part, record)
                    seen.append(Seen(part=part, record=record, value=value, standstill_s=still_s))
        return self._relieve(seen) if may_relieve else None

    def _take_over(self, part: Part, value: str | None, record: Lease | None) -> Claim | None:
        if record is not None and self.gives_up(record):
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
            salt=self._nonce,
            rows_per_s=self._pace.idle_rows_per_s,
            # Ranks in step wait for one that begins: then nobody goes through rows meanwhile.
            begin_s=0.0 if self._terms.in_step else self._pace.begin_s,
            least_rows=self._batch_rows,
        )
        self._may_relieve = any(one.record.num_left for one in seen)
        untried = {one.part: one for one in seen}
        for _ in range(_TAIL_SPLITS):
            if not (found := takings(untried.values(), me)):
                break
            self._taken = [claim for one in found if (claim := self._take(one)) is not None]
            if self._taken:
                self._num_watched = _TAIL_SPLITS
                return self._taken.pop(0)
            self._came_late = True
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

    @property
    def _rows_per_s(self) -> int:
        """The loop's pace as it stands in leases: 0 only if it is not known."""
        return math.ceil(self._pace.rows_per_s)

    def _advance(self, claim: Claim, num_rows: int, ahead: int) -> bool:
        """Acknowledges rows of a claim, and reserves this many more."""
        part = _part(claim)

        def advanced(mine: Lease, work: int) -> Lease:
            if not self._shares_claims:
                return leases.advance(mine, num_rows, work)
            through = self._held.lower(part, claim.fence, num_rows + ahead)
            mine = leases.advance(mine, num_rows, work)
            return leases.reserve(mine, through, work, pace=self._rows_per_s)

        return self._held.change(self._store, part, claim.fence, advanced) is not None

    def _changed(self, claim: Claim, change: Callable[[Lease, int], Lease]) -> Lease | None:
        self._require_usable()
        return self._held.change(self._store, _part(claim), claim.fence, change)

    def _renewal_pause_s(self, store: Store) -> float:
        if self._terms.in_step:
            return self._beats.pause_s(store)
        return renewal_pause_s(self._terms.lease_s)

    def _require_usable(self) -> None:
        if not self._process.is_this():
            raise DispatchError(
                "a coordinator cannot be used in a process other than the one that made it: make "
                "one in each worker"
            )
        if self._failure is not None:
            raise DispatchError(f"leases could not be renewed: {self._failure}") from self._failure


def _is_shared(record: Lease | None) -> bool:
    """Whether others may take rows of the lease: not of one that could not be read the last time,
    until its new holder has read some. Parts of it would fail one by one.
    """
    if record is None or record.state is not LeaseState.HELD:
        return False
    return not record.failures or record.rows > record.first


def _part(claim: Claim) -> Part:
    return claim.index, claim.part
