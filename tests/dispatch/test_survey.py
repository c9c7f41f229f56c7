"""One worker's view of the leases of others."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.survey import LeaseWatch, Survey

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


def test_a_lease_is_unbegun_while_nothing_is_reserved_beyond_what_is_acknowledged() -> None:
    watch = LeaseWatch(LEASE_S)
    assert not watch.is_unbegun(A, HELD, 0.0, 1.0)
    assert watch.is_unbegun(A, replace(HELD, beat=1), 1.0, 1.0)
    assert not watch.is_unbegun(A, replace(HELD, reserved=5), 2.0, 1.0)
    assert not watch.is_unbegun(A, replace(HELD, reserved=5), 4.0, 1.0)


@given(
    settled=st.frozensets(st.integers(0, 30)),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5))),
)
def test_a_survey_offers_the_oldest_positions_that_are_not_settled(
    settled: Any, steps: list[Any]
) -> None:
    survey, done = Survey(settled), set(settled)
    cursor = 0
    for ahead, limit in steps:
        cursor = max(cursor, ahead)
        pending = survey.pending(cursor, limit)
        open_positions = [(index, 0) for index in range(cursor) if index not in done]
        assert pending[:limit] == open_positions[:limit]
        if pending:
            survey.settle(pending[0])
            done.add(pending[0][0])


@given(low=st.integers(0, 20), done=st.sets(st.integers(0, 20)))
def test_splits_that_another_worker_knows_to_be_done_are_not_looked_at(
    low: int, done: set[int]
) -> None:
    survey = Survey(frozenset())
    survey.pending(10, 100)
    survey.add([(3, 5), (15, 5)])
    for index in done:
        survey.settle((index, 0))
    survey.skip_below(low)
    assert all(index >= low for index, _ in survey.pending(20, 100))
    assert survey.low >= low
    assert survey.low == min((index for index, _ in survey.pending(20, 100)), default=20)


def test_a_look_repeats_until_its_parts_are_settled_and_differs_between_workers() -> None:
    one, others = Survey(frozenset()), [Survey(frozenset()) for _ in range(20)]
    first = one.look(100, 10, salt="one")
    assert (len(first), one.look(100, 10, salt="one")) == (10, first)
    one.settle(first[3])
    assert [part for part in one.look(100, 10, salt="one") if part in first] == [
        *first[:3],
        *first[4:],
    ]
    seen = [
        part
        for number, other in enumerate(others)
        for part in other.look(100, 10, salt=str(number))
    ]
    assert len(set(seen)) > 70
    assert one.look(100, 1000, salt="one") == one.pending(100, 1000)


def test_a_part_is_offered_once_and_never_again_when_settled() -> None:
    survey = Survey(frozenset())
    assert survey.add([(0, 5), (0, 7)]) == [(0, 5), (0, 7)]
    assert survey.add([(0, 5)]) == []
    survey.settle((0, 5))
    assert survey.add([(0, 5)]) == []
    assert survey.pending(1, 10) == [(0, 7), (0, 0)]
