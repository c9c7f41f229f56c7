"""One or a few workers in one process, over both stores."""

import functools
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.terms import Terms, WaitFor
from tests.dispatch.conftest import PREFIX, MakeWorker, WholeClaims, acknowledge, silence
from tests.dispatch.simulated_clock import SimulatedClock
from tests.process import our_threads
from tests.programs import run_python
from tests.threads import beside

LEASE_S = 60.0


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    return bind(
        f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{tmp_path}/x.db"
    )


@pytest.fixture
def make(make_worker: Any) -> Callable[..., Any]:
    return functools.partial(make_worker, seed=1)


def test_one_worker_gets_the_plan_in_its_order(make: Callable[..., Any]) -> None:
    coordinator = make()
    claims = []
    for claim in coordinator.claims():
        claims.append(claim)
        assert coordinator.complete(claim)
    assert [claim.split for claim in claims] == list(coordinator._claims._plan)
    assert [claim.index for claim in claims] == list(range(10))
    assert list(coordinator.claims()) == []


def test_claims_can_be_taken_far_ahead_and_completed_in_any_order(make: Callable[..., Any]) -> None:
    coordinator = make()
    claims = list(coordinator.claims())
    assert len(claims) == 10
    assert all(coordinator.complete(claim) for claim in reversed(claims))


def test_two_workers_share_an_epoch_and_no_split_is_read_twice(make: Callable[..., Any]) -> None:
    one, other = make("one"), make("other")
    seen = []
    iterators = [one.claims(), other.claims()]
    for step in range(10):
        claim = next(iterators[step % 2])
        seen.append(claim.index)
        assert (one, other)[step % 2].complete(claim)
    assert sorted(seen) == list(range(10))
    assert [list(iterator) for iterator in iterators] == [[], []]


def test_many_threads_read_each_split_once(make: Callable[..., Any], clock: SimulatedClock) -> None:
    delivered = []

    def work(name: Any) -> None:
        coordinator = make(name, num_splits=200)
        for claim in coordinator.claims():
            if coordinator.complete(claim):
                delivered.append(claim.index)

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        clock.join(thread)
    assert sorted(delivered) == list(range(200))


def test_a_restored_state_is_not_read_again(make: Callable[..., Any]) -> None:
    done = {0: "complete", 3: "complete", 5: 40}
    one, other = make("one", done=done), make("other", done=done)
    claims = list(one.claims())
    assert [claim.index for claim in claims] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert {claim.index: claim.start_row for claim in claims} == {
        i: 40 if i == 5 else 0 for i in (1, 2, 4, 5, 6, 7, 8, 9)
    }
    assert all(one.complete(claim) for claim in claims)
    assert list(other.claims()) == []


def test_how_many_splits_nobody_has_claimed_is_known_to_all_workers(
    make: Callable[..., Any],
) -> None:
    done = {0: "complete", 3: "complete", 5: 40}
    one, other = make("one", done=done), make("other", done=done)
    assert one.num_unclaimed() == 8
    assert [claim.index for claim in islice(one.claims(), 3)] == [1, 2, 4]
    assert other.num_unclaimed() == 5
    assert len(list(other.claims(WaitFor.NOTHING))) == 5
    assert one.num_unclaimed() == other.num_unclaimed() == 0


def test_a_state_that_delivered_everything_leaves_nothing_to_read(make: Callable[..., Any]) -> None:
    assert list(make(done=dict.fromkeys(range(10), "complete")).claims()) == []


def test_workers_with_different_plans_or_states_get_an_error(make: Callable[..., Any]) -> None:
    make("one")
    for difference in ({"num_splits": 11}, {"seed": 2}, {"done": {1: "complete"}}):
        with pytest.raises(
            DispatchError,
            match="worker other has another plan for epoch 0 than the workers before it",
        ):
            make("other", **difference)


def test_a_worker_that_closes_early_gives_its_splits_back_at_once(make: Callable[..., Any]) -> None:
    early, late = make("early"), make("late")
    claims = early.claims()
    first, second = next(claims), next(claims)
    assert acknowledge(early, first, 30)
    early.close()
    taken = {claim.index: claim for claim in late.claims()}
    assert sorted(taken) == list(range(10))
    assert (taken[first.index].start_row, taken[second.index].start_row) == (30, 0)
    assert taken[first.index].fence == 2
    assert late.takeovers.num_takeovers == 0
    assert not early.complete(first)


def test_a_silent_workers_lease_is_taken_over_from_its_last_acknowledged_row(
    make: Callable[..., Any],
) -> None:
    silent, healthy = (
        make("silent", num_splits=3, lease_s=LEASE_S),
        make("healthy", num_splits=3, lease_s=LEASE_S),
    )
    claim = next(silent.claims())
    assert acknowledge(silent, claim, 70)
    held = silence(silent)
    taken = []
    for mine in healthy.claims():
        taken.append(mine)
        assert healthy.complete(mine)
    assert healthy.takeovers.num_takeovers == 1
    assert {mine.index: (mine.start_row, mine.fence) for mine in taken}[claim.index] == (70, 2)
    silent._held = held
    assert not silent.complete(claim)
    assert not acknowledge(silent, claim, 100)


def test_an_expired_lease_is_taken_over_during_the_epoch(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    silent, healthy = (
        make("silent", num_splits=1000, lease_s=LEASE_S),
        make("healthy", num_splits=1000, lease_s=LEASE_S),
    )
    lost = next(silent.claims())
    silence(silent)
    claims = healthy.claims()
    seen = []
    while healthy.takeovers.num_takeovers == 0:
        seen.append(next(claims).index)
        clock.sleep(LEASE_S / 20)
    assert seen[-1] == lost.index
    assert LEASE_S <= clock.now_s() <= 1.75 * LEASE_S


def test_a_position_whose_claimer_died_before_claiming_is_found(
    make: Callable[..., Any], address: StoreAddress
) -> None:
    address.open().add(EpochKeys(PREFIX, 0).cursor, 1)
    coordinator = make(num_splits=3, lease_s=LEASE_S)
    seen = [claim.index for claim in coordinator.claims() if coordinator.complete(claim)]
    assert sorted(seen) == [0, 1, 2]


def test_a_slow_worker_that_lives_keeps_its_lease(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    slow, other = make("slow", num_splits=2), make("other", num_splits=2)
    claim = next(slow.claims())
    done = threading.Event()

    def work() -> None:
        for mine in other.claims():
            assert other.complete(mine)
        done.set()

    with beside(work):
        assert not clock.wait(done, 10 * LEASE_S)
        assert slow.complete(claim)
        assert clock.wait(done, LEASE_S)
    assert other.takeovers.num_takeovers == 0


def test_close_wakes_a_waiting_worker_and_leaves_no_thread(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    before = our_threads()
    holder, waiting = make("holder", num_splits=1), make("waiting", num_splits=1)
    next(holder.claims())
    ended = threading.Event()

    def wait() -> None:
        assert list(waiting.claims()) == []
        ended.set()

    with beside(wait):
        assert not clock.wait(ended, LEASE_S)
        waiting.close()
        assert clock.wait(ended, LEASE_S)
    holder.close()
    assert our_threads() <= before


def test_a_worker_that_must_not_wait_gets_what_is_free_now(make: Callable[..., Any]) -> None:
    holder, other = make("holder", num_splits=2), make("other", num_splits=2)
    held = next(holder.claims())
    claims = list(other.claims(WaitFor.NOTHING))
    assert [claim.index for claim in claims] == [1 - held.index]
    assert list(other.claims(WaitFor.NOTHING)) == []
    holder.close()
    assert [claim.index for claim in other.claims(WaitFor.NOTHING)] == [held.index]


def test_a_rank_in_step_ends_once_every_holder_has_renewed_since_it_became_idle(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    holder, idle = make("holder", in_step=True), make("idle", in_step=True)
    held = next(holder.claims())
    rest = list(idle.claims(WaitFor.NOTHING))
    assert held.index not in {claim.index for claim in rest}
    clock.await_threads(3)  # The two that renew, too.
    started_s = clock.now_s()
    assert list(idle.claims(WaitFor.SILENT)) == []
    assert clock.now_s() - started_s < 1, "it waited for a third of the lease"
    assert not idle.is_done


def test_a_holder_that_died_before_this_rank_became_idle_is_taken_over_though_its_record_changed(
    make: Callable[..., Any],
) -> None:
    """The dead holder's last beat is newer than what the rank had read while it was busy."""
    holder, idle = make("holder", num_splits=1), make("idle", num_splits=1)
    claim = next(holder.claims())
    assert list(idle.claims(WaitFor.NOTHING)) == []
    holder._held.renew_all(holder._store)
    silence(holder)
    assert [taken.index for taken in idle.claims(WaitFor.SILENT)] == [claim.index]
    assert idle.takeovers.num_takeovers == 1


@pytest.mark.parametrize("wait_for", [WaitFor.SILENT, WaitFor.ALL])
def test_a_lease_claimed_after_this_worker_came_is_taken_over_when_its_holder_dies(
    make: Callable[..., Any], wait_for: Any
) -> None:
    idle, dead = (
        make("idle", num_splits=3, lease_s=LEASE_S),
        make("dead", num_splits=3, lease_s=LEASE_S),
    )
    mine = next(idle.claims())
    theirs = list(dead.claims(WaitFor.NOTHING))
    silence(dead)
    assert idle.complete(mine)
    taken = []
    for claim in idle.claims(wait_for):
        taken.append(claim.index)
        assert idle.complete(claim)
    assert sorted(taken) == sorted(claim.index for claim in theirs)
    assert idle.is_done


def test_an_independent_worker_ends_only_when_every_lease_is_final(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    holder, idle = make("holder", num_splits=2), make("idle", num_splits=2)
    held = next(holder.claims())
    ended = threading.Event()

    def work() -> None:
        for mine in idle.claims(WaitFor.ALL):
            assert idle.complete(mine)
        ended.set()

    with beside(work):
        assert not clock.wait(ended, 10 * LEASE_S), "it ended while a living worker held rows"
        assert holder.complete(held)
        assert clock.wait(ended, LEASE_S)
    assert (idle.is_done, idle.takeovers.num_takeovers) == (True, 0)


def test_a_cut_by_another_worker_is_no_sign_of_life(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    """Two idle workers cut a dead worker's lease. Each cut changes the record, and must not restart
    the lease time.
    """
    dead = make("dead", num_splits=1, whole=False)
    claim = next(dead.claims())
    assert dead.reserve(claim, 10) == 10
    silence(dead)
    died_s = clock.now_s()
    idle = make("idle", num_splits=1, whole=False)
    starts = {}
    for mine in idle.claims():
        starts[mine.part, mine.start_row] = clock.now_s() - died_s
        assert idle.reserve(mine, mine.end_row) is not None
        clock.sleep(LEASE_S / 6)
        idle.complete(mine)
    assert idle.takeovers.num_cuts >= 2, "nothing was cut"
    assert idle.takeovers.num_takeovers == 1
    assert starts[0, 0] <= 1.5 * LEASE_S
    assert idle.is_done


def test_a_living_holder_that_stopped_iterating_is_named_after_the_lease_and_loses_it_after_the_stall_time(
    make: Callable[..., Any], clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    holder, idle = (
        make("holder", num_splits=1, stall_s=180.0),
        make("idle", num_splits=1, stall_s=180.0),
    )
    claim = next(holder.claims())
    (taken,) = [mine for mine in idle.claims() if idle.complete(mine)]
    assert 180 <= clock.now_s() <= 180 + LEASE_S / 4
    assert taken.index == claim.index
    assert not holder.complete(claim)
    named = [
        record.getMessage()
        for record in caplog.records
        if "has not asked for a batch" in record.getMessage()
    ]
    assert len(named) == 1
    assert "worker holder (index 0), which lives" in named[0]
    assert f"rows 0 to 100 of split {claim.split.id}" in named[0]
    assert "dispatch.in_step: true" in named[0]


def test_a_worker_that_lost_a_lease_can_be_offered_the_split_again(
    make: Callable[..., Any],
) -> None:
    coordinator, thief = (
        make("slow", num_splits=1, lease_s=LEASE_S),
        make("thief", num_splits=1, lease_s=LEASE_S),
    )
    claim = next(coordinator.claims())
    held = silence(coordinator)
    stolen = next(thief.claims())
    acknowledge(thief, stolen, 60)
    coordinator._held = held
    assert not coordinator.complete(claim)
    thief.close()
    again = next(coordinator.claims())
    assert (again.index, again.start_row, again.fence) == (claim.index, 60, 3)
    assert not coordinator.complete(claim)
    assert coordinator.complete(again)
    assert list(coordinator.claims()) == []


def test_the_store_records_who_delivered_what(
    make: Callable[..., Any], address: StoreAddress
) -> None:
    coordinator = make("w7", num_splits=1)
    claim = next(coordinator.claims())
    acknowledge(coordinator, claim, 10)
    value = address.open().get_or_none(EpochKeys(PREFIX, 0).split(0))
    assert value is not None
    record = Lease.decode(value)
    assert (record.state, record.worker, record.rows) == (LeaseState.HELD, "w7", 10)
    coordinator.complete(claim)
    value = address.open().get_or_none(EpochKeys(PREFIX, 0).split(0))
    assert value is not None
    record = Lease.decode(value)
    assert (record.state, record.worker, record.rows, record.fence) == (
        LeaseState.DONE,
        "w7",
        100,
        1,
    )


def test_a_store_lost_while_renewing_is_reported_at_the_next_call(
    tmp_path: Path,
) -> None:
    plan = Plan(splits=[Split(path="a", num_rows=1)] * 3)
    coordinator = WholeClaims(
        f"sqlite://{tmp_path}/x.db", plan=plan, prefix=PREFIX, worker="w", terms=Terms(lease_s=0.1)
    )
    claim = next(coordinator.claims())
    store = coordinator._renewer._store
    store.close()
    coordinator._renewer._thread.join(10)
    for act in (
        lambda: coordinator.complete(claim),
        lambda: acknowledge(coordinator, claim, 1),
        lambda: list(coordinator.claims()),
    ):
        with pytest.raises(
            DispatchError,
            match=r"leases could not be renewed: this handle of dispatch store .* is closed",
        ):
            act()
    coordinator.close()


def test_after_close_there_are_no_claims_and_acknowledging_is_refused(
    make: Callable[..., Any],
) -> None:
    coordinator = make()
    claim = next(coordinator.claims())
    coordinator.close()
    coordinator.close()
    assert list(coordinator.claims()) == []
    assert not coordinator.complete(claim)


FORKED = """
import os, sys
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
coordinator = Coordinator(sys.argv[1], plan=Plan(splits=[Split(path="a", num_rows=1)]), prefix="featstore/r/0/0/", worker="w")
claim = next(coordinator.claims())
coordinator.reserve(claim, 1)
pid = os.fork()
if pid == 0:
    try:
        coordinator.complete(claim)
    except RuntimeError as error:
        print(type(error).__name__, error, flush=True)
    coordinator.close()
    os._exit(0)
os.waitpid(pid, 0)
print(coordinator.complete(claim), flush=True)
coordinator.close()
"""


def test_a_forked_copy_of_a_coordinator_refuses_and_gives_nothing_back(tmp_path: Path) -> None:
    done = run_python(FORKED, f"sqlite://{tmp_path}/x.db")
    refusal, parent = done.stdout.splitlines()
    assert refusal.startswith("DispatchError a coordinator cannot be used in a process other"), (
        done.stderr
    )
    assert parent == "True"


def test_a_look_that_finds_nothing_to_cut_costs_the_store_no_more_for_many_leases_than_for_few(
    make_worker: MakeWorker, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanges(num_splits: int, epoch: int) -> int:
        busy, idle = (
            make_worker(name, num_splits, epoch=epoch, whole=False) for name in ("busy", "idle")
        )
        for claim in busy.claims(WaitFor.NOTHING):
            assert busy.reserve(claim, 100) == 100
        asked = Counter[str]()
        for name in ("get_many", "get_or_none", "add", "set", "compare_set"):
            kept = getattr(idle._store, name)

            def counting(*given: Any, _name: str = name, _kept: Any = kept) -> Any:
                asked[_name] += 1
                return _kept(*given)

            monkeypatch.setattr(idle._store, name, counting)
        assert list(idle.claims(WaitFor.NOTHING)) == []
        return asked.total()

    few, many = exchanges(2, epoch=0), exchanges(60, epoch=1)
    assert many <= few + 2


def test_a_reservation_follows_the_pace_of_the_loop_and_falls_when_that_is_slower(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    worker = make(sizes=[10_000], whole=False, batch_rows=10)
    claim = next(worker.claims())
    assert worker.reserve(claim, 50) == 50
    assert worker.reserved(claim) == 50, "nothing is known of the loop: one batch"
    assert worker.reserve(claim, 100) == 100
    assert worker.reserved(claim) == 150, "as much again as was made before"
    clock.sleep(1)
    assert acknowledge(worker, claim, 100)
    assert worker.reserved(claim) == 100 + 2 * 100
    clock.sleep(1)
    assert worker.reserve(claim, 160) == 160
    assert acknowledge(worker, claim, 130)
    assert worker.reserved(claim) == 130 + 2 * 30
    clock.sleep(1)
    assert acknowledge(worker, claim, 131)
    assert worker.reserved(claim) == 160, "those are made into batches"
    assert worker.reserve(claim, 170) == 170
    assert worker.reserved(claim) == 170 + 2, "no more than the loop delivers in two seconds"


def test_a_loop_that_has_its_rows_reserved_asks_the_store_for_nothing(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make(sizes=[10_000], whole=False)
    claim = next(worker.claims())
    assert [worker.reserve(claim, through) for through in (100, 101)] == [100, 101]
    assert worker.reserved(claim) == 201
    monkeypatch.delattr(type(worker._store), "compare_set")
    assert [worker.reserve(claim, through) for through in range(100, 201, 10)] == [
        *range(100, 201, 10)
    ]


def test_who_reports_that_nothing_is_delivered_still_shows_that_it_stands_still(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    """A worker reports each second, also while its loop does nothing."""
    stuck = make("stuck", sizes=[100], stall_s=180.0)
    other = make("other", sizes=[100], stall_s=180.0)
    claim, taken = next(stuck.claims()), threading.Event()

    def wait() -> None:
        assert next(other.claims()).index == claim.index
        taken.set()

    with beside(wait):
        while not clock.wait(taken, 1.0) and clock.now_s() < 1000:
            assert stuck.acknowledge_all([]) == []
        other.close()
    assert 180 <= clock.now_s() <= 180 + LEASE_S


def test_a_pause_in_which_nothing_is_delivered_is_no_pace_of_zero(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    worker = make(sizes=[10_000], whole=False)
    claim = next(worker.claims())
    worker.reserve(claim, 100)
    clock.sleep(1)
    assert acknowledge(worker, claim, 100)
    for _ in range(3):
        clock.sleep(1)
        worker.acknowledge_all([])
    assert worker.reserve(claim, 400) == 400
    assert worker.reserved(claim) == 400 + 2 * 100
    assert acknowledge(worker, claim, 300)
    assert worker.reserved(claim) == 300 + 2 * 200 // 3 + 1


def test_claims_that_are_delivered_together_share_what_the_loop_delivers_soon(
    make: Callable[..., Any], clock: SimulatedClock
) -> None:
    worker = make(sizes=[10_000, 10_000], whole=False)
    claims = list(islice(worker.claims(), 2))
    for claim in claims:
        worker.reserve(claim, 50)
    clock.sleep(1)
    assert worker.acknowledge_all([(claims[0], 30), (claims[1], 10)]) == [True, True]
    assert [worker.reserved(claim) for claim in claims] == [30 + 2 * 30, 50]


def test_a_rank_in_step_looks_again_where_a_lease_changed_while_it_took_rows(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for rows that a living rank holds, and would end without its share."""
    busy, idle = (make(name, sizes=[100], whole=False, in_step=True) for name in "ab")
    claim, cut, tries = next(busy.claims()), idle._claims.cut, list[int]()
    assert busy.reserve(claim, 10) == 10

    def late(*taking: Any) -> Any:
        tries.append(len(tries) + 1)
        if len(tries) < 4:
            assert busy.acknowledge_all([(claim, len(tries))]) == [True]
        return cut(*taking)

    monkeypatch.setattr(idle._claims, "cut", late)
    assert next(idle.claims(WaitFor.SILENT)).start_row > 10
    assert tries == [1, 2, 3, 4]


def test_a_claim_that_was_taken_with_another_one_and_lost_meanwhile_is_not_given_out(
    make: Callable[..., Any],
) -> None:
    worker = make(sizes=[100, 100])
    lost, other = worker.claims(WaitFor.NOTHING)
    assert worker.complete(lost)
    worker.takeovers._taken = [lost, other]
    assert next(worker.claims(WaitFor.NOTHING)) == other


def test_a_rank_that_lost_a_claim_reserves_nothing_of_it_and_says_so_for_each_claim(
    make: Callable[..., Any],
) -> None:
    slow, idle = (make(name, sizes=[100, 100], whole=False) for name in ("slow", "idle"))
    begun, ahead = slow.claims(WaitFor.NOTHING)
    assert slow.reserve(begun, 50) == 50
    taken = next(idle.claims())
    assert (taken.index, taken.start_row, taken.end_row) == (ahead.index, 0, 100)
    assert slow.acknowledge_all([(ahead, 10), (begun, 20)]) == [False, True]
    assert (slow.reserve(ahead, 10), slow.reserved(ahead)) == (None, 0)


def test_a_worker_that_can_take_nothing_asks_for_leases_eight_times_per_lease_only(
    make_worker: MakeWorker, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, idle = (make_worker(name, 1, whole=False) for name in ("busy", "idle"))
    claim, ended, looks = next(busy.claims()), threading.Event(), list[float]()
    assert busy.reserve(claim, 100) == 100
    read = idle._hints.read

    def reading(parts: Any) -> Any:
        looks.append(clock.now_s())
        return read(parts)

    monkeypatch.setattr(idle._hints, "read", reading)

    def wait() -> None:
        assert list(idle.claims()) == []
        ended.set()

    with beside(wait):
        clock.await_threads(4)  # The two that renew, and the one that waits.
        assert not clock.wait(ended, 2 * LEASE_S)
        num_looks = len(set(looks))
        assert busy.complete(claim)
        assert clock.wait(ended, LEASE_S)
    assert 10 <= num_looks <= 40
