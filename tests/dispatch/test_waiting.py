"""What one observer sees of the leases of others, and how long it rests between two looks."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.terms import Terms, WaitFor
from featstore.dispatch.waiting import LeaseWatch, Waiter
from tests.dispatch.simulated_clock import SimulatedClock

LEASE_S, STALL_S = 10.0, 100.0
A = (0, 0)
HELD = Lease(state=LeaseState.HELD, fence=1, worker="w", nonce="n", end=10)


def _beat(number: Any) -> Any:
    return replace(HELD, beat=number)


def test_a_lease_expires_once_its_life_has_not_changed_for_the_lease_time() -> None:
    watch = LeaseWatch(LEASE_S)
    assert not watch.is_expired(A, _beat(1), 100.0)
    assert not watch.is_expired(A, _beat(1), 109.9)
    assert watch.is_expired(A, _beat(1), 110.0)
    assert not watch.is_expired(A, _beat(2), 111.0)
    assert not watch.is_expired(A, _beat(2), 120.9)
    watch.forget(A)
    assert not watch.is_expired(A, _beat(2), 500.0)


@given(cuts=st.lists(st.integers(1, 9), unique=True), rows=st.integers(0, 5))
def test_a_write_by_another_worker_is_no_sign_of_life(cuts: list[int], rows: int) -> None:
    watch = LeaseWatch(LEASE_S)
    watch.begin_waiting()
    for number in range(len(cuts) + 1):
        record = replace(HELD, cuts=tuple(sorted(cuts[:number])))
        assert not watch.is_expired(A, record, LEASE_S * number / (len(cuts) + 1))
    assert watch.is_expired(A, replace(HELD, cuts=tuple(sorted(cuts))), LEASE_S)
    assert not watch.is_living(A)
    watch.is_expired(A, replace(HELD, beat=1, rows=rows), LEASE_S + 1)
    assert watch.is_living(A)


def test_a_change_before_the_waiting_began_is_no_sign_of_life() -> None:
    watch = LeaseWatch(LEASE_S)
    watch.is_expired(A, _beat(1), 0.0)
    watch.begin_waiting()
    assert not watch.is_expired(A, _beat(2), 5.0)
    assert not watch.is_living(A)
    watch.is_expired(A, _beat(3), 6.0)
    assert watch.is_living(A)
    watch.begin_waiting()
    assert not watch.is_living(A)


def test_a_new_wait_does_not_delay_expiry() -> None:
    watch = LeaseWatch(LEASE_S)
    assert not watch.is_expired(A, _beat(1), 0.0)
    watch.begin_waiting()
    assert watch.is_expired(A, _beat(1), LEASE_S)


def test_a_missing_key_expires_and_is_alive_once_it_is_claimed() -> None:
    watch = LeaseWatch(LEASE_S)
    watch.begin_waiting()
    assert not watch.is_expired(A, None, 0.0)
    assert watch.is_expired(A, None, LEASE_S)
    assert not watch.is_living(A)
    assert not watch.is_expired(A, HELD, LEASE_S)
    assert watch.is_living(A)


def test_a_part_is_watched_apart_from_its_split() -> None:
    watch = LeaseWatch(LEASE_S)
    assert not watch.is_expired(A, HELD, 0.0)
    assert not watch.is_expired((0, 5), HELD, LEASE_S)


def _looks(watch: Any, records: Any, step_s: Any) -> Any:
    return [
        watch.standstill_s(A, record, step * step_s) >= STALL_S
        for step, record in enumerate(records)
    ]


def test_a_holder_that_renews_without_working_has_stalled_after_the_stall_time() -> None:
    beats = [replace(HELD, beat=beat) for beat in range(22)]
    assert _looks(LeaseWatch(LEASE_S), beats, 5.0) == [False] * 20 + [True] * 2


def test_a_holder_that_works_has_not_stalled() -> None:
    beats = [replace(HELD, beat=beat, work=beat // 10) for beat in range(100)]
    assert not any(_looks(LeaseWatch(LEASE_S), beats, 5.0))


def test_an_observer_that_slept_itself_cannot_tell_a_stalled_holder() -> None:
    watch = LeaseWatch(LEASE_S)
    assert not watch.standstill_s(A, HELD, 0.0)
    assert not watch.standstill_s(A, HELD, 1000.0)
    assert not watch.standstill_s(A, HELD, 1009.0) >= STALL_S


def _waiter(clock: SimulatedClock) -> Waiter:
    return Waiter("me", Terms(lease_s=60.0), clock, threading.Event())


def test_a_rest_ends_when_a_hint_changes_and_the_first_one_is_asked_for_at_once(
    clock: SimulatedClock,
) -> None:
    asked = list[float]()

    def have_changed() -> bool:
        asked.append(clock.now_s())
        return len(asked) == 3

    _waiter(clock).rest(WaitFor.ALL, 0, have_changed, may_relieve=False)
    assert len(asked) == 3
    assert asked[0] <= 0.01
    assert clock.now_s() < 0.1


@pytest.mark.parametrize(
    ("may_relieve", "at_least", "at_most"), [(True, 0.5, 3.0), (False, 3.0, 12.5)]
)
def test_who_may_take_rows_soon_looks_again_after_a_second_and_others_eight_times_per_lease(
    clock: SimulatedClock, may_relieve: bool, at_least: float, at_most: float
) -> None:
    _waiter(clock).rest(WaitFor.ALL, 0, lambda: False, may_relieve=may_relieve)
    assert at_least <= clock.now_s() <= at_most


@pytest.mark.parametrize("wait_for", [WaitFor.ALL, WaitFor.SILENT])
def test_a_rest_ends_when_a_lease_of_the_last_look_expires_and_no_earlier_for_others(
    clock: SimulatedClock, wait_for: WaitFor
) -> None:
    waiter, other = _waiter(clock), (1, 0)
    waiter.may_take(other, HELD, is_idle=True)
    clock.sleep(1.0)
    waiter.may_take(A, HELD, is_idle=True)
    waiter.must_wait(wait_for, [A, other])
    clock.sleep(57.0)
    waiter.may_take(A, HELD, is_idle=True)
    waiter.must_wait(wait_for, [A, other])
    waiter.rest(wait_for, 99, lambda: False, may_relieve=False)
    assert clock.now_s() == pytest.approx(61.01), "the other one is not looked at any more"
    assert waiter.may_take(A, HELD, is_idle=True)


def test_signs_of_life_are_looked_for_at_pauses_that_grow(clock: SimulatedClock) -> None:
    waiter, pauses = _waiter(clock), list[float]()
    for num_looks in range(30):
        before = clock.now_s()
        waiter.rest(WaitFor.SILENT, num_looks, lambda: False, may_relieve=True)
        pauses.append(clock.now_s() - before)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.05)
    assert pauses[-1] == pytest.approx(60.0 / 8)
