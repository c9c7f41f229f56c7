"""The end of an epoch: work stealing, files that a host has staged, failures and quarantine."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.survey import StagedSplits, StealCandidate, victims
from featstore.dispatch.terms import WaitFor
from tests.dispatch.conftest import silence

NUM_ROWS = 100
BOUNDARIES = range(10, NUM_ROWS, 10)


@pytest.fixture
def make(make_worker: Any) -> Callable[..., Any]:
    def make(worker: Any, num_splits: int = 1, **options: Any) -> Any:
        return make_worker(
            worker, num_splits, **{"boundaries": lambda split: BOUNDARIES, **options}
        )

    return make


def _deliver(coordinator: Any, claim: Any, step: int = 10) -> Any:
    """Reads a claim to its current end, step by step. Returns the delivered rows."""
    row, rows = claim.start_row, set()
    while (through := coordinator.reserve(claim, row + step)) is not None and through > row:
        rows |= {(claim.index, r) for r in range(row, through)}
        row = through
    assert coordinator.complete(claim)
    return rows


def test_an_idle_worker_takes_half_of_the_rows_that_a_busy_one_has_not_reserved(
    make: Callable[..., Any],
) -> None:
    busy, idle = make("busy"), make("idle")
    first = next(busy.claims())
    assert busy.reserve(first, 20) == 20
    second = next(idle.claims())
    assert (second.index, second.part, second.start_row, second.end_row) == (0, 60, 60, 100)
    rows, more = _deliver(idle, second), _deliver(busy, first)
    assert (len(rows), len(more)) == (40, 60)
    assert not rows & more
    assert list(idle.claims()) == list(busy.claims()) == []
    assert idle.num_cuts == 1
    assert idle.num_takeovers == 0


def test_a_worker_that_does_not_wait_cuts_leases_too(make: Callable[..., Any]) -> None:
    busy, idle = make("busy"), make("idle")
    busy.reserve(next(busy.claims()), 20)
    assert [claim.part for claim in idle.claims(WaitFor.NOTHING)] == [60]


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
    whole = {"boundaries": lambda split: ()}
    slow, idle = make("slow", 2, **whole), make("idle", 2, **whole)
    begun, ahead = list(slow.claims(WaitFor.NOTHING))
    slow.reserve(begun, NUM_ROWS)
    taken = next(idle.claims())
    assert (taken.index, taken.start_row, taken.end_row) == (ahead.index, 0, NUM_ROWS)
    assert slow.reserve(ahead, 10) is None
    assert not slow.start(ahead.key)
    assert slow.start(begun.key)
    assert len(_deliver(idle, taken)) == NUM_ROWS


def test_reserved_rows_are_left_to_their_holder(make: Callable[..., Any]) -> None:
    busy, idle = make("busy"), make("idle")
    claim = next(busy.claims())
    busy.reserve(claim, 95)
    assert list(idle.claims(WaitFor.NOTHING)) == []
    assert len(_deliver(busy, claim)) == NUM_ROWS


def test_nothing_is_cut_while_the_plan_has_splits_left(make: Callable[..., Any]) -> None:
    busy, other = make("busy", 3), make("other", 3)
    busy.reserve(next(busy.claims()), 10)
    claims = other.claims()
    assert [(claim.index, claim.part) for claim in (next(claims), next(claims))] == [(1, 0), (2, 0)]
    assert other.num_cuts == 0


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
    assert late.num_takeovers == 1


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
    stuck, other = (make(name, stall_s=180.0, boundaries=None) for name in ("stuck", "other"))
    claim = next(stuck.claims())
    taken = next(other.claims())
    assert taken.index == claim.index
    assert other.num_takeovers == 1
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


def test_a_split_that_kills_its_workers_is_quarantined(make: Callable[..., Any]) -> None:
    for name in ("first", "second"):
        victim = make(name, max_failures=2, boundaries=None)
        next(victim.claims())
        silence(victim)
    survivor = make("survivor", max_failures=2, boundaries=None)
    assert list(survivor.claims()) == []
    assert survivor.quarantined == ["0#0- from row 0"]


def test_a_host_prefers_files_that_it_has_staged(make: Callable[..., Any]) -> None:
    host, other = make("host", 10, is_staged={"3", "7"}.__contains__), make("other", 10)
    claims, others = host.claims(), other.claims()
    assert [next(claims).index for _ in range(3)] == [3, 7, 0]
    assert [next(others).index for _ in range(4)] == [1, 2, 4, 5]


def test_staged_files_are_looked_for_in_a_bounded_range_and_once_per_position() -> None:
    plan, asked = (
        Plan(splits=[Split(path=str(i), num_rows=1) for i in range(1000)], shuffle=False),
        [],
    )

    def is_staged(path: Any) -> bool:
        asked.append(int(path))
        return path in {"3", "70", "500"}

    lookahead = StagedSplits(is_staged)
    assert list(lookahead.staged(plan, 0)) == [3]
    assert list(lookahead.staged(plan, 10)) == [70]
    assert list(lookahead.staged(plan, 10)) == []
    assert asked == list(range(74))


def test_staged_files_of_a_later_section_are_not_claimed_ahead() -> None:
    plan = Plan(
        splits=[Split(path=str(index), num_rows=1) for index in range(9)],
        shuffle=False,
        section_sizes=(4, 5),
    )
    lookahead = StagedSplits(lambda path: int(path) % 2 == 1)
    assert list(lookahead.staged(plan, 0)) == [1, 3]
    assert list(lookahead.staged(plan, 3)) == []
    assert list(lookahead.staged(plan, 4)) == [5, 7]
    assert list(lookahead.staged(plan, 9)) == []


LEFT = st.lists(st.integers(0, 1000), max_size=20)


@given(left=LEFT, salt=st.text(max_size=4))
def test_leases_with_the_most_rows_left_are_tried_first(left: Any, salt: str) -> None:
    record: dict[str, Any] = {"state": LeaseState.HELD, "fence": 1, "worker": "w", "nonce": "n"}
    seen = [
        StealCandidate(part=(i, 0), record=Lease(end=rows, **record), value="x")
        for i, rows in enumerate(left)
    ]
    order = [one.num_left for one in victims(seen, salt)]
    assert sorted(order) == sorted(rows for rows in left if rows)
    wanted = sum(rows >= max(left) / 2 for rows in left if rows) if left else 0
    assert all(rows >= max(left) / 2 for rows in order[:wanted])
