"""The lease machine under arbitrary interleavings of workers, against a model that counts each
delivered row.
"""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from featstore.dispatch import lease as leases
from featstore.dispatch.held import Holdings
from featstore.dispatch.lease import FINAL, Lease, LeaseState
from featstore.dispatch.plan import Split, extent, part_extent
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.survey import Survey
from featstore.dispatch.terms import SYSTEM_CLOCK
from featstore.dispatch.waiting import LeaseWatch

LEASE_S, STALL_S, MAX_FAILURES = 10.0, 40.0, 3
NUM_ROWS = 12
ROWS = st.integers(1, NUM_ROWS)
KEYS = EpochKeys("p/", 0)


class Values:
    """A store with `compare_set` only, by which leases are changed."""

    def __init__(self) -> None:
        self.held: dict[Any, Any] = {}

    def compare_set(self, key: Any, expected: Any, desired: Any) -> Any:
        if self.held.get(key, "") == expected:
            self.held[key] = desired
        return self.held.get(key, expected)


class Worker:
    """A process: its leases, what it has seen, and how far it has delivered each claim. Each start
    has a new `nonce`.
    """

    def __init__(self, nonce: Any) -> None:
        self.nonce = nonce
        self.holdings, self.watch, self.survey = (
            Holdings(KEYS, 60.0, SYSTEM_CLOCK),
            LeaseWatch(LEASE_S),
            Survey(frozenset()),
        )
        self.delivered: dict[Any, Any] = {}


class Interleavings(RuleBasedStateMachine):
    """Workers claim, begin to read, reserve more rows or fewer, deliver, acknowledge, complete,
    fail, pause for any time, die, cut at any row and take over. A worker acts on its own last
    records, which may be stale: that is how it pauses. It only delivers rows that it has reserved,
    and does not ask the store when it does, like a real consumer that holds a decoded batch.
    """

    @initialize(
        num_splits=st.integers(1, 2), num_workers=st.integers(2, 3), delivered=st.booleans()
    )
    def begin(self, num_splits: Any, num_workers: Any, delivered: Any) -> None:
        self.now, self.cursor, self.num_starts = 0.0, 0, 0
        self.store: Any = Values()
        self.num_splits = num_splits
        self.done = {0: ((0, 2), (6, 8))} if delivered else {}
        self.counts = Counter(
            {(0, row): 1 for first, end in self.done.get(0, ()) for row in range(first, end)}
        )
        self.workers = [self._start() for _ in range(num_workers)]
        self.ends: dict[Any, Any] = {}
        self.final: dict[Any, Any] = {}
        self.num_forced = 0

    def _start(self) -> Worker:
        self.num_starts += 1
        return Worker(f"start-{self.num_starts}")

    def _read(self, part: Any) -> Any:
        value = self.store.held.get(KEYS.part(part))
        record = None if value is None else Lease.decode(value)
        if record is not None:
            self.ends.update({(part[0], first): end for first, end in leases.parts(record)})
        return value, record

    def _parts(self) -> Any:
        """All parts that have a key, or may have one."""
        known = [(index, 0) for index in range(self.cursor)]
        for part in known:
            _, record = self._read(part)
            known += [
                (part[0], first)
                for first in (record.cuts if record else ())
                if (part[0], first) not in known
            ]
        return known

    def _claim(
        self, worker: Any, part: Any, value: Any, record: Any, *, relieves: bool = False
    ) -> None:
        index, first = part
        split = Split(path=str(index), num_rows=NUM_ROWS)
        if record is not None:
            mine = leases.claim_again(
                record, worker=worker.nonce, nonce=worker.nonce, relieves=relieves
            )
            has_failed = not relieves and record.state is LeaseState.HELD and record.started
            if record.rows == record.first or record.state is not LeaseState.HELD:
                assert mine.failures == record.failures + has_failed
        else:
            rows = self.done.get(index, 0)
            whole = (
                part_extent(split, rows, first, self.ends[part]) if first else extent(split, rows)
            )
            mine = leases.claim(whole, worker=worker.nonce, nonce=worker.nonce)
        if self.store.compare_set(KEYS.part(part), value or "", mine.encode()) == mine.encode():
            worker.holdings.take(part, mine)
            worker.delivered[part, mine.fence] = mine.rows
            worker.watch.forget(part)

    def _own(self, data: Any) -> Any:
        """One of the claims that some worker believes it holds, if there is any."""
        owned = [(worker, part) for worker in self.workers for part in worker.holdings._held]
        if not owned:
            return None, None, None
        worker, part = data.draw(st.sampled_from(owned))
        return worker, part, worker.holdings._held[part]

    def _other(self, data: Any) -> Any:
        """A worker, a part that it does not hold, and the part's record in the store."""
        worker = data.draw(st.sampled_from(self.workers))
        part = data.draw(st.sampled_from(self._parts()))
        value, record = self._read(part)
        ours = part in worker.holdings or (record is not None and record.state in FINAL)
        return (None, None, None, None) if ours else (worker, part, value, record)

    @precondition(lambda self: self.cursor < self.num_splits)
    @rule(data=st.data())
    def claim_next(self, data: Any) -> None:
        self.cursor += 1
        self._claim(data.draw(st.sampled_from(self.workers)), (self.cursor - 1, 0), None, None)

    @precondition(lambda self: self.cursor < self.num_splits)
    @rule()
    def die_between_cursor_and_claim(self) -> None:
        self.cursor += 1

    @precondition(lambda self: self.cursor > 0)
    @rule(data=st.data(), waits=st.booleans())
    def take_over(self, data: Any, waits: Any) -> None:
        """A worker looks once, or for a whole lease time during which all others are paused."""
        worker, part, value, record = self._other(data)
        if worker is None:
            return
        if waits:
            worker.watch.is_expired(part, record, self.now)
            self.now += LEASE_S
        expired = worker.watch.is_expired(part, record, self.now)
        stalled = (
            record is not None and worker.watch.standstill_s(part, record, self.now) >= STALL_S
        )
        if not (expired or stalled or (record is not None and record.state is LeaseState.FREE)):
            return
        if record is not None and leases.has_failed(record, MAX_FAILURES):
            self.store.compare_set(KEYS.part(part), value, leases.quarantine(record).encode())
            return
        self.num_forced += record is not None and record.state is LeaseState.HELD
        self._claim(worker, part, value, record)

    @precondition(lambda self: self.cursor > 0)
    @rule(data=st.data())
    def take_a_lease_with_nothing_reserved(self, data: Any) -> None:
        worker, part, value, record = self._other(data)
        if record is not None and _may_be_taken_whole(record):
            self._claim(worker, part, value, record, relieves=True)

    @precondition(lambda self: self.cursor > 0)
    @rule(data=st.data(), at=ROWS, dies=st.booleans())
    def cut(self, data: Any, at: Any, dies: Any) -> None:
        """A worker cuts another's lease, and claims the part, or dies before it can."""
        worker, part, value, record = self._other(data)
        if record is None or not _may_be_cut(record, at):
            return
        shorter = leases.cut(record, at)
        assert self.store.compare_set(KEYS.part(part), value, shorter.encode()) == shorter.encode()
        self._read(part)
        if not dies:
            self._claim(worker, (part[0], at), None, None)

    @rule(data=st.data())
    def start(self, data: Any) -> None:
        worker, part, mine = self._own(data)
        if worker is not None:
            worker.holdings.change(self.store, part, mine.fence, leases.start)

    @rule(data=st.data(), through=ROWS, pace=st.integers(0, 3), delivers=st.booleans())
    def reserve(self, data: Any, through: Any, pace: Any, delivers: Any) -> None:
        """A worker reserves more rows than before, or fewer: those that it has delivered stay."""
        worker, part, _ = self._own(data)
        if worker is not None and self._reserve(worker, part, through, pace) and delivers:
            self._deliver(worker, part, NUM_ROWS)

    def _reserve(self, worker: Any, part: Any, through: Any, pace: int = 0) -> Any:
        worker.holdings.worked()
        fence = worker.holdings._held[part].fence
        through = max(through, worker.delivered[part, fence])
        return worker.holdings.change(
            self.store,
            part,
            fence,
            lambda mine, work: leases.reserve(mine, through, work, pace=pace),
        )

    @rule(data=st.data(), num_rows=st.integers(1, NUM_ROWS))
    def deliver(self, data: Any, num_rows: Any) -> None:
        """Rows reach a consumer. The worker does not check its lease."""
        worker, part, _ = self._own(data)
        if worker is not None:
            self._deliver(worker, part, num_rows)

    def _deliver(self, worker: Any, part: Any, num_rows: Any) -> None:
        mine = worker.holdings._held[part]
        before = worker.delivered[part, mine.fence]
        after = min(before + num_rows, mine.reserved)
        self.counts.update((part[0], row) for row in range(before, after))
        worker.delivered[part, mine.fence] = max(before, after)

    @rule(
        data=st.data(),
        through=ROWS,
        at=ROWS,
        how=st.sampled_from(["cut", "take over", "take whole"]),
    )
    def race(self, data: Any, through: Any, at: Any, how: Any) -> None:
        """Another worker acts between a holder's reservation and its delivery."""
        holder, part, _ = self._own(data)
        if holder is None:
            return
        mine = self._reserve(holder, part, through)
        value, record = self._read(part)
        if mine is None or value != mine.encode():
            return
        self.workers.append(thief := self._start())
        taken = part
        if how == "take over":
            self.num_forced += 1
            self._claim(thief, part, value, record)
        elif how == "take whole" and _may_be_taken_whole(record):
            self._claim(thief, part, value, record, relieves=True)
        elif how == "cut" and _may_be_cut(record, at):
            assert (
                self.store.compare_set(KEYS.part(part), value, leases.cut(record, at).encode())
                != value
            )
            self._read(part)
            taken = (part[0], at)
            self._claim(thief, taken, None, None)
        if taken in thief.holdings:
            self._reserve(thief, taken, NUM_ROWS)
            self._deliver(thief, taken, NUM_ROWS)
        self._deliver(holder, part, NUM_ROWS)
        self.workers.remove(thief)

    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        worker, part, mine = self._own(data)
        if worker is not None:
            rows = worker.delivered[part, mine.fence]
            worker.holdings.change(
                self.store, part, mine.fence, lambda lease, work: leases.advance(lease, rows, work)
            )

    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        """A worker completes a claim after it has delivered all rows that it believes are its own.
        If the lease was cut meanwhile, those cannot include cut rows.
        """
        worker, part, mine = self._own(data)
        if worker is not None and worker.delivered[part, mine.fence] == mine.limit:
            done = worker.holdings.change(
                self.store, part, mine.fence, lambda record, _: leases.finish(record)
            )
            assert done is None or done.rows == mine.limit

    @rule(data=st.data(), fails=st.booleans())
    def give_back(self, data: Any, fails: Any) -> None:
        """A worker closes, or cannot read a split. It acknowledges what it delivered first."""
        worker, part, mine = self._own(data)
        if worker is not None:
            self_delivered = worker.delivered[part, mine.fence]
            end = leases.fail if fails else leases.release
            worker.holdings.change(
                self.store,
                part,
                mine.fence,
                lambda record, _: end(leases.advance(record, self_delivered)),
            )

    @rule(data=st.data())
    def renew(self, data: Any) -> None:
        worker, _, _ = self._own(data)
        if worker is not None:
            worker.holdings.renew_all(self.store)

    @rule(seconds=st.integers(0, 20) | st.sampled_from([3600, 10**6]))
    def time_passes(self, seconds: Any) -> None:
        self.now += seconds

    @rule(data=st.data())
    def die(self, data: Any) -> None:
        """A worker is killed and starts again without its state."""
        place = data.draw(st.integers(0, len(self.workers) - 1))
        self.workers[place] = self._start()

    @invariant()
    def a_final_record_never_changes(self) -> None:
        for key, value in getattr(self, "store", Values()).held.items():
            if self.final.get(key, value) != value:
                raise AssertionError(f"{key} was {self.final[key]} and is {value}")
            if Lease.decode(value).state in FINAL:
                self.final[key] = value

    @invariant()
    def a_row_comes_twice_only_after_a_takeover_and_is_counted(self) -> None:
        if hasattr(self, "store"):
            twice = sum(count - 1 for count in self.counts.values())
            records = [Lease.decode(value) for value in self.store.held.values()]
            assert twice <= sum(record.repeated for record in records)
            assert (
                twice == 0
                or self.num_forced
                or any(record.state is LeaseState.QUARANTINED for record in records)
            )

    @invariant()
    def acknowledged_rows_were_delivered(self) -> None:
        for key, value in getattr(self, "store", Values()).held.items():
            record = Lease.decode(value)
            index = int(key.split("/split/")[1].partition("/")[0])
            assert all(
                self.counts[index, row]
                for share in leases.all_shares(record)
                for row in range(share.first, share.through)
            )

    def teardown(self) -> None:
        """Whatever happened, one late worker finishes the epoch with all cut-off parts, within a
        few lease times.
        """
        if not hasattr(self, "store"):
            return
        self.workers, self.cursor = [late := self._start()], self.num_splits
        missing = set()
        for now in (self.now + turn * LEASE_S for turn in range(4)):
            for part in self._parts():
                value, record = self._read(part)
                expired = late.watch.is_expired(part, record, now)
                if (record is not None and record.state in FINAL) or not (
                    expired or (record is not None and record.state is LeaseState.FREE)
                ):
                    continue
                self._claim(late, part, value, record)
                mine = self._reserve(late, part, NUM_ROWS)
                assert mine is not None
                self.counts.update((part[0], row) for row in range(mine.rows, mine.reserved))
                assert late.holdings.change(
                    self.store, part, mine.fence, lambda mine, _: leases.finish(mine)
                )
        for part in self._parts():
            _, record = self._read(part)
            assert record.state in FINAL
            if record.state is LeaseState.QUARANTINED:
                missing |= {(part[0], row) for row in range(record.rows, record.limit)}
        undelivered = {
            (i, row)
            for i in range(self.num_splits)
            for row in range(NUM_ROWS)
            if not self.counts[i, row]
        }
        assert undelivered <= missing


def _may_be_taken_whole(record: Lease) -> bool:
    return record.state is LeaseState.HELD and record.reserved == record.first


def _may_be_cut(record: Lease, at: int) -> bool:
    return (
        record.state is LeaseState.HELD
        and record.reserved <= at < record.limit
        and at > record.first
    )


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
