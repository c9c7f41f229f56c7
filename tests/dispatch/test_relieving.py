"""What idle workers take over from others: how much of which lease, and what becomes of rows that
move or fail at the end of an epoch.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from featstore.dispatch import lease as leases
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.plan import Extent
from featstore.dispatch.relieving import Seen, Taker, takings
from featstore.dispatch.terms import WaitFor
from tests.dispatch.conftest import acknowledge, silence

NUM_ROWS = 100
PACES = st.integers(1, 10_000)


def _seen(index: int, holder: str, rows: int = 0, **fields: Any) -> Seen:
    standstill_s = fields.pop("standstill_s", 0.0)
    defaults: Any = {"reserved": rows, "end": NUM_ROWS, "turn": index, "rows": rows}
    record = Lease(
        state=LeaseState.HELD, fence=1, worker=holder, nonce=holder, **(defaults | fields)
    )
    value = record.encode()
    return Seen(part=(index, 0), record=record, value=value, standstill_s=standstill_s)


LEASES = st.lists(
    st.builds(
        lambda index, holder, rows, more, left, **fields: _seen(
            index, holder, rows, reserved=rows + more, end=rows + more + left, **fields
        ),
        index=st.integers(0, 99),
        holder=st.sampled_from("abcd"),
        rows=st.integers(0, 50),
        more=st.integers(0, 50),
        left=st.integers(0, 1000),
        pace=st.integers(0, 100),
        work=st.integers(0, 9),
        standstill_s=st.floats(0, 100),
    ),
    max_size=12,
    unique_by=lambda one: one.part,
)
TAKERS = st.builds(
    Taker,
    salt=st.text(max_size=3),
    rows_per_s=st.just(0.0) | st.floats(0.1, 1000),
    begin_s=st.floats(0, 20),
    least_rows=st.integers(1, 60),
)


@given(seen=LEASES, taker=TAKERS)
def test_each_taking_is_one_that_the_lease_allows_of_whole_batches_and_one_of_each_holder(
    seen: list[Seen], taker: Taker
) -> None:
    found = takings(seen, taker)
    holders = [taking.lease.record.nonce for taking in found]
    assert len(holders) == len(set(holders))
    for taking in found:
        record = taking.lease.record
        if taking.at is None:
            assert record.reserved == record.first
            assert record.num_left > 0
            continue
        shorter = leases.cut(record, taking.at)  # ValueError if the lease does not allow it.
        num_rows = record.limit - taking.at
        assert shorter.num_left == 0 or num_rows % taker.least_rows == 0
        assert num_rows >= min(taker.least_rows, record.num_left)


@given(pace=PACES, taker_pace=PACES, rows=st.integers(0, 10**6), begin_s=st.floats(0, 10))
def test_who_takes_and_who_is_relieved_end_together(
    pace: int, taker_pace: int, rows: int, begin_s: float
) -> None:
    taker = Taker(salt="me", rows_per_s=float(taker_pace), begin_s=begin_s)
    found = takings([_seen(0, "a", reserved=1, end=rows + 2, pace=pace)], taker)
    holder_s = (rows + 2) / pace
    if not found:
        assert begin_s + 1 / taker_pace >= holder_s - 2 / pace - 1e-6, "nothing would come sooner"
        return
    [taking] = found
    num_rows = rows + 2 - (taking.at or 0)
    left_s, taken_s = holder_s - num_rows / pace, begin_s + num_rows / taker_pace
    # To within a row of each: or sooner, where the holder has reserved what the taker could have.
    assert taken_s <= left_s + 1e-6
    assert left_s - taken_s <= 1 / pace + 1 / taker_pace + 1e-6 or taking.at == 1


def test_a_claim_that_only_waits_for_its_turn_hides_no_pace() -> None:
    """A renewal is newer than the last acknowledgement, and shows no pace where nothing is
    reserved: the holder is not taken to be as fast as the taker."""
    busy = _seen(0, "busy", rows=60, reserved=70, pace=1, work=5)
    waits = _seen(1, "busy", work=6)
    [taking] = takings([busy, waits], Taker(salt="", rows_per_s=1000.0))
    assert (taking.lease.part, taking.at) == ((1, 0), None), "all of it, and not a half"


def test_without_a_known_pace_half_of_the_rows_is_taken() -> None:
    assert [t.at for t in takings([_seen(0, "a", 20, reserved=30)], Taker(salt="me"))] == [60]
    slow = _seen(0, "a", 20, reserved=30, pace=3)
    assert [t.at for t in takings([slow], Taker(salt="me"))] == [60], "the holder's is assumed"
    taker = Taker(salt="me", rows_per_s=8.0)
    assert [t.at for t in takings([_seen(0, "a", 20, reserved=30)], taker)] == [60]


def test_the_holder_that_needs_longest_is_relieved_first_not_the_one_with_the_most_rows() -> None:
    quick, slow = _seen(0, "quick", pace=1000, reserved=1), _seen(1, "slow", 90, pace=1)
    for salt in "abcdefgh":
        found = takings([quick, slow], Taker(salt=salt, rows_per_s=100.0))
        assert [taking.lease for taking in found] == [slow]


@given(seen=LEASES, taker=TAKERS)
def test_who_has_reserved_all_that_it_holds_does_not_change_whom_others_relieve_first(
    seen: list[Seen], taker: Taker
) -> None:
    stuck = _seen(100, "stuck", reserved=NUM_ROWS, pace=1, standstill_s=10**6)
    assert takings([*seen, stuck], taker) == takings(seen, taker)


def test_all_claims_of_a_holder_count_and_the_one_that_it_delivers_last_is_taken_whole() -> None:
    current = _seen(3, "a", 10, reserved=60, pace=10, work=9)
    queued = [_seen(index, "a") for index in (4, 5)]
    found = takings([current, *queued], Taker(salt="me", rows_per_s=10.0))
    assert [(taking.lease.part, taking.at) for taking in found] == [((5, 0), None)]


def test_a_holder_that_stands_still_is_taken_for_as_slow_as_it_has_stood_still() -> None:
    taker = Taker(salt="me", rows_per_s=10.0)
    moving = takings([_seen(0, "a", reserved=1, pace=10)], taker)
    standing = takings([_seen(0, "a", reserved=1, pace=10, standstill_s=90.0)], taker)
    assert [moving[0].at, standing[0].at] == [50, 10]


def test_a_claim_that_waits_for_its_turn_does_not_show_that_its_holder_stands_still() -> None:
    """Its record changes with renewals only, another one of the holder each second."""
    current = _seen(0, "a", 10, reserved=20, pace=100, work=50, standstill_s=0.5)
    queued = _seen(1, "a", pace=0, work=2, standstill_s=19.0)
    [taking] = takings([current, queued], Taker(salt="me", rows_per_s=100.0, begin_s=1.0))
    assert taking.lease.part == (1, 0)
    assert taking.at == 100 - 44, "both end 1.45 s from now"


def test_who_needs_long_to_begin_takes_nothing_that_is_delivered_sooner() -> None:
    seen = [_seen(0, "a", reserved=1, pace=10)]
    assert takings(seen, Taker(salt="me", rows_per_s=10.0, begin_s=10.0)) == []
    assert takings(seen, Taker(salt="me", rows_per_s=10.0, begin_s=6.0))[0].at == 80


@given(seen=LEASES, taker=TAKERS)
def test_from_a_holder_that_stands_still_everything_but_a_batch_is_taken_in_the_end(
    seen: list[Seen], taker: Taker
) -> None:
    """Nothing is left over for ever because it seems not to be worth it."""
    assume(seen)
    still = [
        Seen(part=one.part, record=one.record, value=one.value, standstill_s=1e7) for one in seen
    ]
    may_give = {one.record.nonce for one in still if one.record.num_left > 2 * taker.least_rows}
    while found := {taking.lease.record.nonce for taking in takings(still, taker)}:
        may_give -= found
        still = [one for one in still if one.record.nonce not in found]
    assert not may_give


def test_who_is_faster_than_several_takes_from_all_of_them_so_that_all_end_together() -> None:
    """And begins once. Each time that it begins the others have more time to share what is left
    among them, from each of whom it would have to take again.
    """
    seen = [_seen(index, f"{index}", reserved=1, end=1000, pace=10) for index in range(3)]
    found = takings(seen, Taker(salt="me", rows_per_s=100.0, begin_s=4.0))
    ends_s = [(taking.at or 0) / 10 for taking in found]
    taken_s = sum(1000 - (taking.at or 0) for taking in found) / 100
    assert ends_s == [pytest.approx(4.0 + taken_s, abs=0.2)] * 3
    assert len(takings(seen, Taker(salt="me", rows_per_s=20.0, begin_s=4.0))) == 2
    assert len(takings(seen, Taker(salt="me", rows_per_s=10.0, begin_s=4.0))) == 1


def test_idle_workers_try_leases_in_different_orders() -> None:
    seen = [_seen(index, f"holder-{index}", pace=1, reserved=1) for index in range(20)]
    first = {takings(seen, Taker(salt=str(number)))[0].lease.part for number in range(20)}
    assert len(first) > 8


@pytest.fixture
def make(make_worker: Any) -> Callable[..., Any]:
    def make(worker: Any, num_splits: int = 1, **options: Any) -> Any:
        return make_worker(worker, num_splits, **{"whole": False, **options})

    return make


def _deliver(coordinator: Any, claim: Any, step: int = 10) -> Any:
    """Reads a claim to its current end, step by step. Returns the delivered rows."""
    row, rows = claim.start_row, set()
    while (through := coordinator.reserve(claim, row + step)) is not None and through > row:
        rows |= {(claim.index, r) for r in range(row, through)}
        row = through
    assert coordinator.complete(claim)
    return rows


def test_an_idle_worker_takes_half_of_the_rows_of_a_busy_one_at_any_row(
    make: Callable[..., Any],
) -> None:
    busy, idle = make("busy"), make("idle")
    first = next(busy.claims())
    assert busy.reserve(first, 20) == 20
    second = next(idle.claims())
    assert (second.index, second.part, second.start_row, second.end_row) == (0, 50, 50, 100)
    rows, more = _deliver(idle, second), _deliver(busy, first)
    assert (len(rows), len(more)) == (50, 50)
    assert not rows & more
    assert list(idle.claims()) == list(busy.claims()) == []
    assert idle.takeovers.num_cuts == 1
    assert idle.takeovers.num_takeovers == 0


def test_a_worker_that_does_not_wait_cuts_leases_too(make: Callable[..., Any]) -> None:
    busy, idle = make("busy"), make("idle")
    busy.reserve(next(busy.claims()), 20)
    assert [claim.part for claim in idle.claims(WaitFor.NOTHING)] == [50]


def test_the_tail_is_cut_repeatedly_and_no_row_is_delivered_twice(make: Callable[..., Any]) -> None:
    workers = [make(f"w{i}") for i in range(4)]
    slow = next(workers[0].claims())
    assert workers[0].reserve(slow, 10) == 10
    rows = [
        _deliver(worker, claim)
        for _ in range(3)
        for worker in workers[1:]
        for claim in worker.claims(WaitFor.NOTHING)
    ]
    rows.append(_deliver(workers[0], slow))
    assert len(rows) > 3
    assert sum(map(len, rows)) == len(set().union(*rows)) == NUM_ROWS


def test_a_split_that_a_slow_worker_has_claimed_but_not_begun_is_taken_whole(
    make: Callable[..., Any],
) -> None:
    slow, idle = make("slow", 2), make("idle", 2)
    begun, ahead = list(slow.claims(WaitFor.NOTHING))
    slow.reserve(begun, NUM_ROWS)
    taken = next(idle.claims())
    assert (taken.index, taken.start_row, taken.end_row) == (ahead.index, 0, NUM_ROWS)
    assert slow.reserve(ahead, 10) is None
    assert slow.start(ahead) is None
    assert slow.start(begun) == NUM_ROWS
    assert len(_deliver(idle, taken)) == NUM_ROWS


def test_reserved_rows_are_left_to_their_holder(make: Callable[..., Any]) -> None:
    busy, idle = make("busy"), make("idle")
    claim = next(busy.claims())
    busy.reserve(claim, NUM_ROWS)
    assert list(idle.claims(WaitFor.NOTHING)) == []
    assert len(_deliver(busy, claim)) == NUM_ROWS


def test_nothing_is_cut_while_the_plan_has_splits_left(make: Callable[..., Any]) -> None:
    busy, other = make("busy", 3), make("other", 3)
    busy.reserve(next(busy.claims()), 10)
    claims = other.claims()
    assert [(claim.index, claim.part) for claim in (next(claims), next(claims))] == [(1, 0), (2, 0)]
    assert other.takeovers.num_cuts == 0


def test_a_part_whose_cutter_died_is_found_and_keeps_its_end(make: Callable[..., Any]) -> None:
    busy, dead, late = (make(name) for name in ("busy", "dead", "late"))
    claim = next(busy.claims())
    busy.reserve(claim, 10)
    part = next(dead.claims())
    dead.reserve(part, 60)
    silence(dead)
    rows = [_deliver(busy, claim), *(_deliver(late, taken) for taken in late.claims())]
    assert (part.part, part.end_row) == (50, NUM_ROWS)
    assert sum(map(len, rows)) == len(set().union(*rows)) == NUM_ROWS
    assert late.takeovers.num_takeovers == 1


def test_rows_that_a_restored_state_delivered_in_the_middle_of_a_split_are_not_read_again(
    make: Callable[..., Any],
) -> None:
    done = {0: ((0, 20), (50, 60), (90, 100))}
    one, other = make("one", done=done), make("other", done=done)
    first, second = next(one.claims()), next(other.claims())
    assert [(c.part, c.start_row, c.end_row) for c in (first, second)] == [
        (0, 20, 50),
        (50, 60, 90),
    ]
    rows = _deliver(one, first) | _deliver(other, second)
    assert rows == {(0, row) for row in (*range(20, 50), *range(60, 90))}
    assert list(one.claims()) == list(other.claims()) == []


def test_a_worker_that_renews_without_working_loses_its_lease(make: Callable[..., Any]) -> None:
    stuck, other = (make(name, stall_s=180.0, whole=True) for name in ("stuck", "other"))
    claim = next(stuck.claims())
    taken = next(other.claims())
    assert taken.index == claim.index
    assert other.takeovers.num_takeovers == 1
    assert not stuck.complete(claim)


def test_a_split_that_fails_again_and_again_is_quarantined_and_named(
    make: Callable[..., Any],
) -> None:
    worker, other = make("w", 2, max_failures=3), make("other", 2, max_failures=3)
    claims, failed = worker.claims(), []
    for claim in claims:
        if claim.index == 0:
            failed.append(claim.fence)
            assert worker.fail(claim)
        else:
            _deliver(worker, claim)
    assert failed == [1, 2, 3]
    assert worker.quarantined == ["0#0- from row 0"]
    assert list(other.claims()) == []
    assert other.quarantined == worker.quarantined
    assert worker.is_done


def test_a_worker_that_joins_at_the_end_does_not_read_every_lease(
    make: Callable[..., Any],
) -> None:
    first = make("first", 1000)
    for claim in first.claims():
        _deliver(first, claim, NUM_ROWS)
    late, looked = make("late", 1000), []
    get = late._store.get_or_none

    def look(key: str) -> Any:
        looked.append(key)
        return get(key)

    late._store.get_or_none = look
    assert list(late.claims()) == []
    assert late.is_done
    assert len(looked) < 20


@pytest.mark.parametrize("options", [{"whole": True}, {"batch_rows": NUM_ROWS}])
def test_a_split_that_kills_its_workers_while_they_read_it_is_quarantined(
    make: Callable[..., Any], options: Any
) -> None:
    for name in ("first", "second"):
        victim = make(name, max_failures=2, **options)
        assert victim.start(next(victim.claims())) == NUM_ROWS
        silence(victim)
    survivor = make("survivor", max_failures=2, **options)
    assert list(survivor.claims()) == []
    assert survivor.quarantined == ["0#0- from row 0"]


def test_a_host_prefers_files_that_it_has_staged(make: Callable[..., Any]) -> None:
    host, other = make("host", 10, is_staged={"3", "7"}.__contains__), make("other", 10)
    claims, others = host.claims(), other.claims()
    assert [next(claims).index for _ in range(3)] == [3, 7, 0]
    assert [next(others).index for _ in range(4)] == [1, 2, 4, 5]


class Tail:
    """The end of an epoch, all splits of which are claimed, in steps of half a second. Idle workers
    look at all leases and try one.
    """

    STEP_S, RESERVE_S = 0.5, 2.0

    def __init__(self, paces: list[int], rows: list[int], begin_s: float, least_rows: int) -> None:
        self.now, self.num_takings = 0.0, 0
        self._paces, self._begin_s, self._least_rows = paces, begin_s, least_rows
        self.leases = dict[tuple[int, int], Lease]()
        self._parts = [list[tuple[int, int]]() for _ in paces]
        self._ready_at = [0.0 for _ in paces]
        for index, num_rows in enumerate(rows[: len(paces)]):
            self._claim(index, (index, 0), num_rows)

    def _claim(self, worker: int, part: tuple[int, int], end: int) -> None:
        extent = Extent(split=f"{part[0]}", start_row=part[1], end=end)
        pace = self._paces[worker] if self.now else 0
        self.leases[part] = leases.claim(extent, worker=f"{worker}", nonce=f"{worker}", pace=pace)
        self._begin(worker, part)

    def _begin(self, worker: int, part: tuple[int, int]) -> None:
        if not self._parts[worker]:
            self._ready_at[worker] = self.now + self._begin_s
        self._parts[worker].append(part)

    def step(self) -> None:
        self.now += self.STEP_S
        for worker, parts in enumerate(self._parts):
            parts[:] = [part for part in parts if self.leases[part].worker == f"{worker}"]
            if not parts:
                self._look(worker)
            elif self._ready_at[worker] <= self.now:
                self._deliver(worker, parts[0])

    def _deliver(self, worker: int, part: tuple[int, int]) -> None:
        pace, mine = self._paces[worker], self.leases[part]
        rows = min(mine.rows + int(pace * self.STEP_S), mine.limit)
        ahead = int(pace * self.RESERVE_S)
        self.leases[part] = leases.reserve(leases.advance(mine, rows), rows + ahead, pace=pace)
        if rows == mine.limit:
            self.leases[part] = leases.finish(self.leases[part])
            self._parts[worker].remove(part)

    def _look(self, worker: int) -> None:
        held = {part: one for part, one in self.leases.items() if one.state is LeaseState.HELD}
        seen = [Seen(part=p, record=r, value="", standstill_s=0.0) for p, r in held.items()]
        me = Taker(
            salt=f"{worker}",
            rows_per_s=float(self._paces[worker]),
            begin_s=self._begin_s,
            least_rows=self._least_rows,
        )
        for taking in takings(seen, me):
            self.num_takings += 1
            part, at = taking.lease.part, taking.at
            if at is None:
                self.leases[part] = leases.claim_again(
                    held[part], worker=f"{worker}", nonce=f"{worker}", relieves=True
                )
                self._begin(worker, part)
                continue
            limit = held[part].limit
            self.leases[part] = leases.cut(held[part], at)
            self._claim(worker, (part[0], at), limit)


@given(
    paces=st.lists(st.integers(20, 1000), min_size=2, max_size=6),
    rows=st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    begin_s=st.floats(0, 4),
    least_rows=st.integers(1, 20),
)
def test_workers_of_any_paces_end_an_epoch_almost_together_after_few_takings(
    paces: list[int], rows: list[int], begin_s: float, least_rows: int
) -> None:
    """Slow workers take rows, too, while the fast one has its own; later it takes from all of them
    at once.
    """
    rows = rows[: len(paces)]
    tail, ideal_s = Tail(paces, rows, begin_s, least_rows), sum(rows) / sum(paces)
    most_s = 1.5 * ideal_s + 3 * begin_s + 8
    while any(one.state is LeaseState.HELD for one in tail.leases.values()):
        tail.step()
        assert tail.now < most_s, "rows are left to a slow worker"
    assert sum(one.rows - one.first for one in tail.leases.values()) == sum(rows)
    assert tail.num_takings <= 6 * len(paces)


def test_a_lease_that_could_not_be_read_is_not_taken_in_parts(make: Callable[..., Any]) -> None:
    """Each part would fail as often. Once its next holder has read some rows, it may be."""
    first, busy, idle = make("first"), make("busy"), make("idle")
    assert first.fail(next(first.claims())) is not None
    claim = next(busy.claims())
    assert list(idle.claims(WaitFor.NOTHING)) == []
    assert busy.reserve(claim, 10) == 10
    assert acknowledge(busy, claim, 10)
    assert next(idle.claims(WaitFor.NOTHING)).start_row >= 10
