"""How fast a worker's loop is, from what it reports."""

import pytest

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.held import LoopPace
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import WaitFor
from tests.dispatch.conftest import acknowledge
from tests.dispatch.simulated_clock import SimulatedClock


def test_a_step_that_takes_longer_than_it_is_between_two_reports_does_not_stop_the_pace() -> None:
    pace = LoopPace()
    pace.begin(0.0)
    for second in range(1, 13):  # A batch of 90 rows is delivered every third second.
        pace.deliver(90 if second % 3 == 0 else 0)
        pace.measure(float(second))
        assert pace.rows_per_s in ([0] if second < 3 else [30])


def test_the_end_of_a_claim_is_no_burst() -> None:
    """Before the rest of a claim is reported, nothing is, of any other claim."""
    pace = LoopPace()
    pace.begin(0.0)
    pace.deliver(1000)
    pace.measure(1.0)
    pace.deliver(0)
    pace.measure(1.5)
    pace.deliver(500)
    pace.measure(1.5)
    pace.deliver(500)
    pace.measure(2.0)
    assert pace.rows_per_s == 1000


def test_claims_that_are_complete_count_together_with_those_that_go_on() -> None:
    """Of two claims the loop reads 500 rows a second each; one is complete at 1.2 s."""
    clock = SimulatedClock()
    plan = Plan(
        splits=[Split(path=f"{size}", num_rows=size) for size in (4000, 600)], shuffle=False
    )
    with Coordinator(
        bind("memory://pace"), plan=plan, prefix="p/", worker="w", clock=clock
    ) as worker:
        long, short = worker.claims(WaitFor.NOTHING)
        assert (worker.reserve(long, 750), worker.reserve(short, 600)) == (750, 600)
        clock.sleep(1.2)
        assert worker.complete(short)
        clock.sleep(0.3)
        assert acknowledge(worker, long, 750)
        assert worker._pace.rows_per_s == pytest.approx(900)


def test_a_worker_that_waits_for_a_claim_keeps_the_pace_that_it_had() -> None:
    clock = SimulatedClock()
    plan = Plan(splits=[Split(path="a", num_rows=600)], shuffle=False)
    with Coordinator(
        bind("memory://kept"), plan=plan, prefix="p/", worker="w", clock=clock
    ) as worker:
        [claim] = worker.claims(WaitFor.NOTHING)
        assert worker.reserve(claim, 600) == 600
        clock.sleep(1.0)
        assert worker.complete(claim)
        clock.sleep(5.0)
        worker.acknowledge_all([])
        assert worker._pace.rows_per_s == pytest.approx(600)


def test_before_its_pace_is_known_as_much_as_a_loop_made_is_reserved_or_less() -> None:
    """Rows of earlier claims count, too: not each claim begins with one batch."""
    pace = LoopPace()
    pace.begin(10.0)
    assert pace.ahead(0, 2.0, 10.0) == 0, "one batch"
    assert pace.ahead(100, 2.0, 10.1) == 100
    pace.deliver(100)
    assert pace.ahead(20, 2.0, 10.4) == 120
    assert pace.ahead(20, 0.05, 10.4) == pytest.approx(120 / 0.4 * 0.05), "it made 300 a second"
    pace.measure(11.0)
    assert pace.ahead(20, 2.0, 11.0) == 200


def test_claims_that_are_each_too_short_for_a_rate_have_one_together() -> None:
    pace = LoopPace()
    for second, expected in ((0.0, 120), (50.0, 200)):
        pace.restart(second)
        pace.begin(second + 1)
        pace.deliver(60)
        assert pace.rows_per_s == 0
        pace.pause(second + 1.3)
        assert pace.idle_rows_per_s == pytest.approx(expected)
    assert pace.rows_per_s == pytest.approx(200)


def test_a_burst_is_no_pace() -> None:
    pace = LoopPace()
    pace.begin(0.0)
    pace.deliver(64)
    pace.pause(0.003)
    assert pace.idle_rows_per_s == pytest.approx(128), "over half a second"


def test_a_claim_that_is_taken_while_the_last_one_ends_did_not_wait_for_its_files() -> None:
    """Whether the worker holds something is looked at before that."""
    pace = LoopPace()
    pace.restart(0.0)
    pace.begin(0.5)
    pace.pause(600.0)
    pace.begin(600.7)
    assert pace.begin_s == 0.5


def test_the_time_of_a_claim_that_was_lost_is_no_time_of_the_loop() -> None:
    pace = LoopPace()
    pace.begin(0.0)
    pace.deliver(10)
    pace.restart(100.0)
    pace.begin(100.0)
    pace.deliver(60)
    pace.pause(100.5)
    assert pace.rows_per_s == pytest.approx(120)


def test_a_pace_is_that_of_the_rows_delivered_since_the_last_time() -> None:
    pace = LoopPace()
    pace.restart(0.0)
    pace.begin(3.0)
    assert (pace.rows_per_s, pace.begin_s) == (0, 3)
    pace.deliver(100)
    pace.measure(4.0)
    assert pace.rows_per_s == 100
    pace.begin(4.0)
    pace.deliver(30)
    pace.measure(5.0)
    assert (pace.rows_per_s, pace.begin_s) == (30, 3)


def test_a_loop_of_seconds_a_batch_is_not_taken_for_one_that_stands_or_runs() -> None:
    """Acknowledgements come each second, batches each five."""
    pace, found = LoopPace(), []
    pace.begin(0.0)
    for second in range(1, 21):
        pace.deliver(100 if second % 5 == 0 else 0)
        pace.measure(float(second))
        found.append(pace.rows_per_s)
    assert found == [0] * 4 + [20] * 16


def test_a_burst_of_batches_is_counted_with_the_time_that_follows_it() -> None:
    pace = LoopPace()
    pace.begin(0.0)
    for _ in range(8):
        pace.deliver(100)
        pace.measure(0.01)
    assert pace.rows_per_s == 0
    pace.deliver(200)
    pace.measure(10.0)
    assert pace.rows_per_s == 100


def test_time_without_a_claim_is_no_time_of_the_loop() -> None:
    pace = LoopPace()
    pace.begin(0.0)
    pace.deliver(100)
    pace.pause(1.0)
    pace.measure(1.5)
    pace.restart(61.0)
    assert pace.rows_per_s == 100
    pace.begin(63.0)
    pace.deliver(100)
    pace.measure(64.0)
    assert (pace.rows_per_s, pace.begin_s) == (100, 2)
