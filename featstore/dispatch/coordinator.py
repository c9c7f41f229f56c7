"""The coordinator: one worker's view of an epoch's leases, kept in a store that all workers share.

There is no server and no leader. A worker takes the next position from a counter, and writes its
lease to the split's key by compare-and-set; the keys of the splits are the only source of truth.
While the process lives, a thread renews its leases.
"""

import contextlib
import hashlib
import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from featstore.base.closing import Closing, cleaned_up_on_failure
from featstore.base.errors import DispatchError
from featstore.base.processes import OwnProcess
from featstore.dispatch import lease as leases
from featstore.dispatch.epochs import EpochNote, announce
from featstore.dispatch.held import Holdings
from featstore.dispatch.lease import FINAL, Lease, LeaseState
from featstore.dispatch.plan import Done, Extent, Plan, Split, extent, part_extent
from featstore.dispatch.receipt import EpochSize, quarantine, quarantined
from featstore.dispatch.renewer import InStepPace, Renewer, look_pause_s, renewal_pause_s
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import STORE_WAIT_S, Store, StoreAddress, bind
from featstore.dispatch.survey import (
    Hints,
    LeaseWatch,
    Part,
    StagedSplits,
    StealCandidate,
    Survey,
    victims,
)
from featstore.dispatch.terms import SYSTEM_CLOCK, AnsweredClock, Claim, Clock, Terms, WaitFor

_LOG = logging.getLogger(__name__)
Boundaries = Callable[[Split], Sequence[int]]
# During the epoch each worker looks at the 64 oldest splits that are not done (decision 0005). An
# expired lease shows in two looks `lease_s` apart, so two looks per lease time find a dead worker's
# split within 1.5 lease times. More looks or splits find more dead workers sooner, at more load.
_SURVEYS_PER_LEASE = 2
_SURVEY_SPLITS = 64
# How many open leases an idle worker looks at. Idle workers look at different ones. Each look that
# finds nothing doubles the number, so that a single idle worker sees all that a cluster of hundreds
# has open within half a lease. In the simulation of 10,000 workers idle ones make 32 % of all
# exchanges (benchmarks/dispatch_simulation.md); larger numbers raise that share.
_TAIL_SPLITS, _MOST_TAIL_SPLITS = 64, 2048
# Looks of an idle worker at leases, if no hint says that something has changed (decision 0030).
# More of them see an expired lease sooner, and cost three exchanges each.
_LOOKS_PER_LEASE = 8
# An idle worker asks for the two hints after 10 ms first, so that a split which is given back at
# once is taken at once, then at doubled pauses up to a second: one exchange per second and worker
# (decision 0030). A quarter of a lease bounds the pause as well.
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
# A claim that stands still for a sixtieth of a lease (1 s of 60) without a reserved row was claimed
# ahead and is taken whole (decision 0022). Shorter robs workers that just claimed a split and still
# open its file; longer leaves splits queued at a slow worker while others idle.
_UNBEGUN_PER_LEASE = 60


class Coordinator(Closing):
    """Claims splits of one epoch for one worker. A context manager; whoever made it closes it.

    One thread may take claims while another one acknowledges and completes them. Every method
    raises DispatchError once the store is lost, even if only the renewing thread has noticed.

    Locks: `_claiming` is held during a look for a claim, and guards what the worker knows of the
    leases of others. Under it only the store is asked. Boundaries, for which a remote file may be
    opened, are looked up between two looks. `Holdings` has its own lock, which comes after it.

    Args:
        store: The store of the epoch's keys.
        plan: The splits; equal for all workers.
        prefix: Prefix of the keys of this run and loader.
        worker: The worker's name in messages and receipts.
        terms: When leases end; equal for all workers.
        done: What a restored state had delivered, by position in the plan: "complete", a number of
            first rows, or ranges. Equal for all workers.
        clock: The clock by which leases are judged, renewed and waited for.
        boundaries: Gives the rows at which a split may be cut, for a worker that has nothing left
            to do. Claims then begin with nothing reserved, and no row may be delivered before
            `reserve`. Without it, splits are never cut.
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
        terms: Terms | None = None,
        done: Done | None = None,
        clock: Clock = SYSTEM_CLOCK,
        boundaries: Boundaries | None = None,
        is_staged: Callable[[str], bool] | None = None,
    ) -> None:
        self._plan, self._worker, self._terms, self._clock = plan, worker, terms or Terms(), clock
        # Boundaries by position in the plan, and the position whose boundaries the last look
        # lacked.
        self._boundaries, self._known_boundaries = boundaries, dict[int, Sequence[int]]()
        self._wants_boundaries_of: int | None = None
        self._relieved = deque[StealCandidate]()  # Leases to cut or claim, from the last look.
        self._keys = EpochKeys(prefix, plan.epoch)
        self._done: Done = done or {}
        self._nonce = uuid.uuid4().hex[:12]
        self._process = OwnProcess()
        self._watch = LeaseWatch(self._terms.lease_s)
        self._survey = Survey(frozenset(i for i, rows in self._done.items() if rows == "complete"))
        self._cursor, self._surveyed_at, self._num_turns = 0, self._clock.now_s(), 0
        self._lookahead = StagedSplits(is_staged)
        self._num_watched, self._named = _TAIL_SPLITS, set[str]()
        self.num_takeovers, self.num_cuts = 0, 0
        # Whether the first look of `claims` found all splits done; None before it.
        self.found_all_done: bool | None = None
        self._extents: dict[Part, int] = {}
        self._may_relieve = False
        self._held = Holdings(self._keys)
        self._claiming, self._closed = threading.Lock(), threading.Event()
        self._failure: BaseException | None = None
        self._address = bind(store, timeout_s=STORE_WAIT_S) if isinstance(store, str) else store
        self._store = self._address.open()
        self._hints = Hints(self._store, self._keys, self._survey, len(plan))
        with cleaned_up_on_failure(self._store.close):
            self._require_same_plan()
            self._pace = InStepPace(self._store, self._keys, len(plan), self._terms.lease_s, clock)
            self._renewer = Renewer(
                self._address.open(),
                self._renewal_pause_s,
                self._held.renew_all,
                self._note_failure,
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
            if claim is None and self._look_up_boundaries():
                continue
            if self.found_all_done is None:
                self.found_all_done = claim is None and self.is_done
            if claim is not None:
                yield claim
                num_looks = 0
                self._begin_waiting()
            elif is_over or wait_for is WaitFor.NOTHING:
                return
            else:
                self._rest(wait_for, num_looks)
                num_looks += 1

    def reserve(self, claim: Claim, through: int, *, delivered: int = 0) -> int | None:
        """Reserves rows of a claim, which another worker can then not cut off.

        Takes one write to the store, or none if the rows are reserved already and nothing is
        acknowledged.

        Args:
            claim: The claim.
            through: The row up to which to reserve.
            delivered: Also acknowledges rows before this one.

        Returns:
            The row up to which this worker may deliver: less than `through` if the rest was cut
            off. None if the lease was taken over.
        """
        self._require_usable()
        part = (claim.index, claim.part)
        mine = self._held.get(part, claim.fence)
        if mine is None:
            return None
        if mine.reserved < through or mine.rows < delivered:
            self._held.worked()
            mine = self._held.change(
                self._store,
                part,
                lambda mine, work: leases.reserve(leases.advance(mine, delivered), through, work),
            )
        return None if mine is None else min(through, mine.reserved)

    def start(self, claim_key: tuple[int, int, int]) -> bool:
        """Records that rows of a claim are about to be delivered. To be called before the first of
        them; further calls do nothing.

        Takes one write to the store for each claim, so that a receipt counts only what may have
        been delivered.

        Returns:
            False if the lease was taken over. None of its rows may be delivered then.
        """
        index, part, fence = claim_key
        mine = self._held.get((index, part), fence)
        if mine is None or mine.started:
            return not self._held.is_lost((index, part), fence)
        self._require_usable()
        return self._held.change(self._store, (index, part), leases.start) is not None

    def acknowledge(self, claim: Claim, num_rows: int) -> bool:
        """Records that the split's first `num_rows` rows, in the order of delivery, are delivered.
        A takeover then begins after them. Takes one write to the store.

        Returns:
            False if the lease was taken over.
        """
        self._held.worked()
        record = self._changed(claim, lambda mine, work: leases.advance(mine, num_rows, work))
        return record is not None

    def complete(self, claim: Claim) -> bool:
        """Records that the whole claim is delivered.

        Returns:
            False if the lease was taken over; nothing changes then.
        """
        self._held.worked()
        return self._changed(claim, lambda mine, _: leases.finish(mine)) is not None

    def fail(self, claim: Claim) -> Lease | None:
        """Releases a claim that could not be read. After too many failures the split is
        quarantined.

        Returns:
            Its record now; None if the lease was taken over.
        """
        record = self._changed(claim, lambda mine, _: leases.fail(mine))
        if record is not None:
            self._hints.gave_back([(claim.index, claim.part)])
        return record

    def gives_up(self, record: Lease) -> bool:
        """Whether enough claims in a row have failed for nobody to claim the lease again."""
        return leases.has_failed(record, self._terms.max_failures)

    @property
    def is_done(self) -> bool:
        """Whether all splits were done when `claims` ended. False if others still hold some."""
        return not self._survey.pending(len(self._plan), len(self._plan))

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

    def limits(self) -> dict[tuple[int, int, int], int | None]:
        """The rows at which this worker's claims end now, by `Claim.key`; None: at their original
        end. Lost claims are left out.
        """
        self._require_usable()
        return {
            (*part, mine.fence): mine.limit
            for part, mine in self._held.looked_up(self._store).items()
        }

    def hurry(self) -> None:
        """Lets this worker wait a quarter of a lease more for a store that does not answer, since
        it is about to end. After that every call raises where it would wait.
        """
        self._store.wait_at_most(self._terms.lease_s / 4)
        self._renewer.hurry(self._terms.lease_s / 4)

    def close(self) -> None:
        """Wakes `claims`, joins the renewing thread, and releases unfinished splits so that no
        worker has to wait for their leases to expire.

        May be called more than once, and from any thread.
        """
        if not self._process.is_this():
            return
        self._closed.set()
        self.hurry()
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
        now, lease_s = time.time(), self._terms.lease_s
        announce(
            self._store,
            EpochNote.of(self._keys, self._plan, self._done, lease_s=lease_s, started_unix_s=now),
        )

    def _begin_waiting(self) -> None:
        with self._claiming:
            self._watch.begin_waiting()
            self._relieved.clear()

    def _rest(self, wait_for: WaitFor, num_looks: int) -> None:
        """Waits until another look at leases may find something.

        With `WaitFor.SILENT`, where the worker looks for signs of life, the pause grows with each
        look. With `WaitFor.ALL` it asks only for the two hint keys meanwhile, and returns when they
        show a change, when a lease may soon be cut, or from time to time.
        """
        if wait_for is WaitFor.SILENT:
            self._clock.wait(
                self._closed, look_pause_s(num_looks, self._terms.lease_s / _LOOKS_PER_LEASE)
            )
            return
        longest_s = min(_LONGEST_PAUSE_S, self._terms.lease_s / 4)
        pause_s, until = (
            _FIRST_PAUSE_S,
            self._clock.now_s() + self._terms.lease_s / _LOOKS_PER_LEASE * random.uniform(0.5, 1.5),
        )
        while not self._clock.wait(self._closed, pause_s * random.uniform(0.5, 1)):
            with self._claiming:
                self._require_usable()
                if (
                    self._closed.is_set()
                    or self._hints.have_changed()
                    or self._clock.now_s() >= until
                ):
                    return
            if self._may_relieve and pause_s >= longest_s:
                return
            pause_s = min(2 * pause_s, longest_s)

    def _next_claim(self, wait_for: WaitFor) -> tuple[Claim | None, bool]:
        """A claim, if there is one now, and whether nothing is left to wait for."""
        with self._claiming:
            self._require_usable()
            if self._closed.is_set():
                return None, True
            # Where the last look stopped for boundaries, which are known now.
            claim = self._relieve_next()
            if claim is None and self._wants_boundaries_of is None:
                if self._cursor < len(self._plan):
                    claim = self._revisit_now_and_then() or self._claim_staged() or self._advance()
                claim = claim or self._look(wait_for)
            return claim, claim is None and not self._must_wait(wait_for)

    def _look_up_boundaries(self) -> bool:
        """Looks up the boundaries of the lease that is to be cut next. Called without a lock, since
        it may open a remote file. Returns whether there is such a lease.
        """
        index, self._wants_boundaries_of = self._wants_boundaries_of, None
        if index is None or self._boundaries is None:
            return False
        self._known_boundaries[index] = self._boundaries(self._plan[index])
        return True

    def _must_wait(self, wait_for: WaitFor) -> bool:
        """Whether other workers hold leases for which this one waits."""
        pending = self._survey.pending(len(self._plan), len(self._plan))
        is_for_all = wait_for is WaitFor.ALL
        return any(
            part not in self._held and (is_for_all or not self._watch.is_living(part))
            for part in pending
        )

    def _claim_staged(self) -> Claim | None:
        """Claims a split a little ahead of the cursor whose file this host has. The worker that
        comes to its position finds it claimed.
        """
        for index in self._lookahead.staged(self._plan, self._cursor):
            if (
                self._done.get(index) != "complete"
                and (claim := self._claim((index, 0), None, None)) is not None
            ):
                return claim
        return None

    def _advance(self) -> Claim | None:
        """Takes positions from the shared cursor until it can claim one."""
        while (index := self._store.add(self._keys.cursor, 1) - 1) < len(self._plan):
            self._cursor = index + 1
            if (
                self._done.get(index) != "complete"
                and (claim := self._claim((index, 0), None, None)) is not None
            ):
                return claim
        self._cursor = len(self._plan)
        return None

    def _revisit_now_and_then(self) -> Claim | None:
        """During the epoch, twice per lease time: looks at a bounded number of the oldest splits
        that are not done.
        """
        if self._clock.now_s() - self._surveyed_at < self._terms.lease_s / _SURVEYS_PER_LEASE:
            return None
        claim = self._revisit(self._survey.pending(self._cursor, _SURVEY_SPLITS)[:_SURVEY_SPLITS])
        if claim is None:
            self._surveyed_at = self._clock.now_s()
        return claim

    def _look(self, wait_for: WaitFor) -> Claim | None:
        """At the end of the plan: looks at all splits that are not known to be done. With
        `WaitFor.ALL` it looks at some of them, and at more as long as it finds some done.
        """
        num_open, claim = -1, None
        limit = (
            self._num_watched
            if wait_for is WaitFor.ALL
            else len(self._plan) + self._survey.num_open + 1
        )
        while claim is None and num_open != (num_open := self._survey.num_open):
            claim = self._revisit(
                [*self._hints.given_back(), *self._survey.look(self._cursor, limit, self._nonce)]
            )
            if self._wants_boundaries_of is not None:
                break
            limit *= 2
        self._num_watched = _TAIL_SPLITS if claim else min(2 * self._num_watched, _MOST_TAIL_SPLITS)
        self._hints.read([])  # Learns which splits are done from others, and tells them.
        return claim

    def _revisit(self, todo: list[Part]) -> Claim | None:
        """Claims the first of these parts that was released, or whose lease has expired. At the end
        of the plan, a worker that holds nothing takes over what a living one has not begun, or cuts
        off half of what it holds.

        Args:
            todo: Parts that are not known to be done.
        """
        seen: list[StealCandidate] = []
        while todo:
            for part, value, record in self._hints.read(todo):
                if record is not None:
                    todo += self._found(part, record)
                if part in self._held or (record is not None and record.state in FINAL):
                    continue
                if (
                    self._may_take(part, record)
                    and (claim := self._take_over(part, value, record)) is not None
                ):
                    return claim
                if record is not None and value is not None:
                    seen.append(StealCandidate(part=part, record=record, value=value))
        return self._relieve(seen)

    def _found(self, part: Part, record: Lease) -> list[Part]:
        """Learns from a lease record. Returns parts of the split that were not known before."""
        if record.state in FINAL:
            self._survey.settle(part)
            self._watch.forget(part)
        self._extents.update(
            {(part[0], first): end for first, end in leases.parts(record) if end is not None}
        )
        return self._survey.add((part[0], first) for first in record.cuts)

    def _may_take(self, part: Part, record: Lease | None) -> bool:
        now = self._watch_now_s()
        expired = self._watch.is_expired(part, record, now)
        if record is None or record.state is LeaseState.FREE:
            return expired or record is not None
        standstill_s = self._watch.standstill_s(part, record, now)
        is_idle = not len(self._held) and self._cursor >= len(self._plan)
        if (
            is_idle
            and standstill_s >= self._terms.lease_s
            and self._watch.silent_s(part, now) < self._terms.lease_s / 2
        ):
            self._name(record, standstill_s)
        return expired or standstill_s >= self._terms.stall_s

    def _name(self, record: Lease, standstill_s: float) -> None:
        """Warns, once for each worker, that it lives and keeps others waiting."""
        if record.nonce not in self._named:
            self._named.add(record.nonce)
            _LOG.warning(
                "worker %s waits for worker %s, which lives and has not asked for a batch for %.0f "
                "s. It holds rows %d to %s of split %s, and loses them after stall_s (%.0f s). "
                "Where the workers train in step, set dispatch.in_step: true",
                self._worker,
                record.worker,
                standstill_s,
                record.rows,
                record.limit,
                record.split,
                self._terms.stall_s,
            )

    def _take_over(self, part: Part, value: str | None, record: Lease | None) -> Claim | None:
        if record is not None and self.gives_up(record):
            quarantine(self._store, self._keys, part)
            if self._write(part, value, leases.quarantine(record)):
                self._found(part, leases.quarantine(record))
            return None
        claim = self._claim(part, value, record)
        self.num_takeovers += (
            claim is not None and record is not None and record.state is LeaseState.HELD
        )
        return claim

    def _relieve(self, seen: Sequence[StealCandidate]) -> Claim | None:
        if self._boundaries is None or len(self._held) or self._cursor < len(self._plan):
            return None
        relieved = victims(seen, self._nonce)
        self._may_relieve = bool(relieved)
        self._relieved = deque(relieved[:_TAIL_SPLITS])
        return self._relieve_next()

    def _relieve_next(self) -> Claim | None:
        """Claims or cuts the first of the leases that the last look found, where it can; stops at
        one whose boundaries are unknown. One that has changed since stays as it is, since leases
        are written by compare-and-set.
        """
        for_s = self._terms.lease_s / _UNBEGUN_PER_LEASE
        while self._relieved:
            one, claim = self._relieved[0], None
            if self._watch.is_unbegun(one.part, one.record, self._watch_now_s(), for_s):
                claim = self._claim(one.part, one.value, one.record)
            elif one.part[0] in self._known_boundaries:
                claim = self._cut(one)
            else:
                self._wants_boundaries_of = one.part[0]
                return None
            self._relieved.popleft()
            if claim is not None:
                self._num_watched = _TAIL_SPLITS
                return claim
        return None

    def _cut(self, one: StealCandidate) -> Claim | None:
        """Cuts a lease in two and claims the second part."""
        index, _ = one.part
        at = leases.choose_cut(one.record, self._known_boundaries[index])
        if at is None or not self._write(
            one.part, one.value, shorter := leases.cut(one.record, at)
        ):
            return None
        self.num_cuts += 1
        self._found(one.part, shorter)
        return self._claim((index, at), None, None)

    def _claim(self, part: Part, value: str | None, record: Lease | None) -> Claim | None:
        """Claims the part if its key still has `value`."""
        split = self._plan[part[0]]
        named: dict[str, Any] = {
            "worker": self._worker,
            "nonce": self._nonce,
            "turn": self._num_turns,
        }
        mine = (
            leases.claim(self._extent(part), **named)
            if record is None
            else leases.claim_again(record, **named)
        )
        if self._boundaries is None:
            mine = leases.start(leases.reserve(mine, split.num_rows))
        if not self._write(part, value, mine):
            return None
        self._num_turns += 1
        self._held.take(part, mine)
        new = self._found(part, mine)
        if record is None:
            self._offer(new)
        self._watch.forget(part)
        limit = split.num_rows if mine.limit is None else mine.limit
        return Claim(
            index=part[0],
            split=split,
            fence=mine.fence,
            start_row=mine.rows,
            part=part[1],
            end_row=limit,
        )

    def _extent(self, part: Part) -> Extent:
        index, first = part
        split, rows = self._plan[index], self._done.get(index, 0)
        return (
            part_extent(split, rows, first, self._extents[part]) if first else extent(split, rows)
        )

    def _offer(self, parts: Sequence[Part]) -> None:
        """Writes free leases for further parts of a split, in the middle of which a restored state
        had delivered rows.
        """
        for part in parts:
            free = leases.release(
                leases.claim(self._extent(part), worker=self._worker, nonce=self._nonce)
            )
            self._write(part, None, free)

    def _write(self, part: Part, value: str | None, record: Lease) -> bool:
        return (
            self._store.compare_set(self._keys.part(part), value or "", record.encode())
            == record.encode()
        )

    def _changed(self, claim: Claim, change: Callable[[Lease, int], Lease]) -> Lease | None:
        self._require_usable()
        part = (claim.index, claim.part)
        if self._held.get(part, claim.fence) is None:
            return None
        return self._held.change(self._store, part, change)

    def _watch_now_s(self) -> float:
        """The time by which leases of others are judged."""
        return AnsweredClock(self._clock, self._address.unanswered_s).now_s()

    def _renewal_pause_s(self, store: Store) -> float:
        if self._terms.in_step:
            return self._pace.pause_s(store)
        return renewal_pause_s(self._terms.lease_s)

    def _note_failure(self, error: DispatchError) -> None:
        """Keeps an error of the renewing thread, to be raised by the next call in any other one."""
        self._failure = error

    def _require_usable(self) -> None:
        if not self._process.is_this():
            raise DispatchError(
                "a coordinator cannot be used in a process other than the one that made it: make "
                "one in each worker"
            )
        if self._failure is not None:
            raise DispatchError(f"leases could not be renewed: {self._failure}") from self._failure
