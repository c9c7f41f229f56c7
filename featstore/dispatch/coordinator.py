"""The coordinator: one worker's view of an epoch's leases, kept in a store that all workers share.

There is no server and no leader. A worker takes the next position from a counter, and writes its
lease to the split's key by compare-and-set; the keys of the splits are the only source of truth.
While the process lives, a thread renews its leases.
"""

import contextlib
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

from featstore.base.closing import Closing, cleaned_up_on_failure
from featstore.base.errors import DispatchError
from featstore.base.processes import OwnProcess
from featstore.dispatch import lease as leases
from featstore.dispatch.claiming import Claimer, Claiming
from featstore.dispatch.held import (
    Holdings,
    InStepPace,
    LoopPace,
    Renewer,
    renewal_pause_s,
)
from featstore.dispatch.lease import Lease
from featstore.dispatch.plan import Done, Plan
from featstore.dispatch.receipt import quarantined
from featstore.dispatch.relieving import Takeovers
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import STORE_WAIT_S, Store, StoreAddress, bind
from featstore.dispatch.survey import Hints, Part
from featstore.dispatch.terms import SYSTEM_CLOCK, AnsweredClock, Claim, Clock, Terms, WaitFor
from featstore.dispatch.waiting import Waiter


class Coordinator(Closing):
    """Claims splits of one epoch for one worker. A context manager; whoever made it closes it.
    Workers that have nothing left to do may take what others have not reserved, at any row.

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
        batch_rows: Rows of a batch: fewer are not taken from another worker.
        is_staged: Whether this host has the file of a path in its cache. Such splits are claimed
            first.

    Attributes:
        takeovers: What it takes from other workers, and for whom it waited.
        found_all_done: Whether the first look of `claims` found all splits done; None before it.

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
        batch_rows: int = 1,
        is_staged: Callable[[str], bool] | None = None,
    ) -> None:
        self._terms, self._clock = terms or Terms(), clock
        self._keys, self._process = EpochKeys(prefix, plan.epoch), OwnProcess()
        self.found_all_done: bool | None = None
        self._held, self._pace = Holdings(self._keys, self._terms.lease_s, clock), LoopPace()
        self._claiming, self._closed = threading.Lock(), threading.Event()
        self._failure: DispatchError | None = None
        address = bind(store, timeout_s=STORE_WAIT_S) if isinstance(store, str) else store
        self._address = address.scoped(self._terms.leave_s)
        self._store = self._address.open()
        claimer = Claimer(worker=worker, nonce=uuid.uuid4().hex[:12], index=index)
        self._claims = Claiming(
            self._store, self._keys, plan, done or {}, claimer, self._held, self._pace, is_staged
        )
        answered = AnsweredClock(clock, address.unanswered_s)
        self._waiting = Waiter(worker, self._terms, answered, self._closed)
        self._hints = Hints(self._store, self._keys, self._claims.survey, len(plan))
        self.takeovers = Takeovers(
            self._claims,
            self._held,
            self._hints,
            self._waiting,
            self._pace,
            self._terms,
            clock,
            batch_rows,
        )
        with cleaned_up_on_failure(self._store.close):
            self._claims.begin(self._terms)
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
                may_relieve = self.takeovers.may_relieve
                self._waiting.rest(
                    wait_for, num_looks, self._have_hints_changed, may_relieve=may_relieve
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

    def make(self, rows: Iterable[tuple[Claim, int]]) -> bool:
        """Whether the next batch may be made without asking the store, since its rows are reserved.
        If so, they stay reserved.

        Args:
            rows: The claims that it has rows of, each with the row up to which it does.
        """
        self._require_usable()
        return self._held.make(rows)

    def reserve(self, claim: Claim, through: int) -> int | None:
        """As of `reserve_all`, of one claim."""
        [row] = self.reserve_all([(claim, through)])
        return row

    def reserve_all(self, rows: Iterable[tuple[Claim, int]]) -> list[int | None]:
        """Reserves rows of claims, which other workers can then not take. Batches are made of
        reserved rows only.

        Takes one write to the store for each claim of which they are not reserved yet. It then
        reserves ahead what the loop will deliver in the next `reserve_s`, as of `LoopPace.ahead`:
        of a fast loop's first batches few ask.

        Args:
            rows: Claims, each with the row up to which to reserve.

        Returns:
            Of each claim the row up to which this worker may deliver: less than asked for if the
            rest was cut off. None if the lease was taken over, or is complete.
        """
        self._require_usable()
        granted, due = list[int | None](), dict[int, tuple[Claim, int]]()
        has_more = False
        for number, (claim, through) in enumerate(rows):
            mine = self._held.get(_part(claim), claim.fence)
            granted.append(None if mine is None else min(through, mine.limit))
            if mine is not None and not self._held.make([(claim, min(through, mine.limit))]):
                due[number] = claim, min(through, mine.limit)
                has_more |= through < mine.limit
        if due:
            ahead = self._begin_reserving(due.values(), has_more=has_more)
        for number, (claim, through) in due.items():
            granted[number] = self._reserve(claim, through, through + ahead)
        return granted

    def _begin_reserving(self, rows: Iterable[tuple[Claim, int]], *, has_more: bool) -> int:
        """How many rows of each claim to reserve beyond these. They are kept from now on.

        Args:
            rows: As of `reserve_all`.
            has_more: Whether any claim has rows beyond these. Otherwise nothing is counted, since
                that looks at all leases, of which a worker holds thousands where splits are small.
        """
        self._held.worked()
        self._pace.begin(now := self._clock.now_s())
        num_rows = 0.0
        if has_more:
            num_rows = self._pace.ahead(self._held.num_made_rows, self._terms.reserve_s, now)
        for claim, through in rows:  # Before the write: see `Holdings`.
            self._held.keep(_part(claim), claim.fence, through)
        return math.ceil(num_rows / max(1, self._held.num_delivering)) if num_rows else 0

    def _reserve(self, claim: Claim, through: int, wanted: int) -> int | None:
        """Reserves the rows of a claim before `wanted`. Returns up to which row those before
        `through` are reserved now, as of `reserve_all`.
        """
        mine = self._held.change(
            self._store,
            _part(claim),
            claim.fence,
            lambda mine, work: leases.reserve(
                mine, max(mine.reserved, wanted), work, pace=self._rows_per_s
            ),
        )
        return None if mine is None else min(through, mine.reserved)

    def reserved(self, claim: Claim) -> int:
        """The row up to which a claim is reserved; 0 if it was taken over, or is complete. Does not
        ask the store.
        """
        mine = self._held.get(_part(claim), claim.fence)
        return 0 if mine is None else mine.reserved

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

    def note_failure(self, error: DispatchError) -> None:
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
            return self._claims.num_unclaimed()

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
            holds_nothing, claim = not len(self._held), None
            if not self._claims.is_handed_out:
                claim = self.takeovers.now_and_then() or self._claims.next()
            claim = claim or self.takeovers.at_the_end(wait_for)
            if claim is not None:
                self._waiting.watch.forget(_part(claim))
                if holds_nothing:
                    self._pace.restart(self._clock.now_s())
                return claim, False
            others = (part for part in self._claims.open_parts() if part not in self._held)
            return None, not (self._waiting.must_wait(wait_for, others) or self.takeovers.came_late)

    @property
    def _rows_per_s(self) -> int:
        """The loop's pace as it stands in leases: 0 only if it is not known."""
        return math.ceil(self._pace.rows_per_s)

    def _advance(self, claim: Claim, num_rows: int, ahead: int) -> bool:
        """Acknowledges rows of a claim, and reserves this many more."""
        part = _part(claim)

        def advanced(mine: Lease, work: int) -> Lease:
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
        if (failed := self._failure) is not None:
            raise type(failed)(f"leases could not be renewed: {failed}") from failed


def _part(claim: Claim) -> Part:
    return claim.index, claim.part
