"""How long epochs of workers with known paces take at best."""

import math

import pytest

from makespan_parts import worker
from makespan_parts.paces import Pace, Worker, ideal_s, static_s
from makespan_parts.worker import Steps

FAST, SLOW = Pace(), Pace(slowdown=30.0)
SLOW_FOR_A_WHILE = Pace(slowdown=30.0, slow_until_s=3.0)


@pytest.mark.parametrize(
    ("pace", "begin_s", "end_s", "work_s"),
    [
        (FAST, 2.0, 5.0, 3.0),
        (SLOW, 2.0, 5.0, 0.1),
        (SLOW_FOR_A_WHILE, 0.0, 1.5, 0.05),
        (SLOW_FOR_A_WHILE, 0.0, 5.0, 2.1),
        (SLOW_FOR_A_WHILE, 4.0, 5.0, 1.0),
    ],
)
def test_a_pace_says_what_is_worked_and_when_work_ends(
    pace: Pace, begin_s: float, end_s: float, work_s: float
) -> None:
    assert pace.work_s(begin_s, end_s) == pytest.approx(work_s)
    assert pace.end_s(begin_s, work_s) == pytest.approx(end_s)


@pytest.mark.parametrize(
    ("workers", "work_s", "expected_s"),
    [
        ([Worker(pace=FAST), Worker(pace=FAST), Worker(pace=SLOW)], 20 + 1 / 3, 10.0),
        ([Worker(pace=SLOW), Worker(pace=FAST, begin_s=3.0)], 7 + 1 / 3, 10.0),
        ([Worker(pace=SLOW_FOR_A_WHILE), Worker(pace=FAST)], 17.1, 10.0),
        ([Worker(pace=FAST), Worker(pace=FAST, killed_s=5.0)], 15.0, 10.0),
        ([Worker(pace=FAST, begin_s=6.0, killed_s=5.0), Worker(pace=FAST)], 10.0, 10.0),
    ],
)
def test_the_ideal_is_total_work_over_total_speed(
    workers: list[Worker], work_s: float, expected_s: float
) -> None:
    assert ideal_s(workers, work_s) == pytest.approx(expected_s, abs=1e-3)


def test_work_that_the_workers_cannot_do_has_no_ideal() -> None:
    with pytest.raises(ValueError, match=r"expected workers that finish 2\.0 s of work"):
        ideal_s([Worker(pace=FAST, killed_s=1.0)], 2.0)


def test_static_splitting_ends_with_its_last_worker() -> None:
    works_s = [1.0, 2.0, 3.0, 4.0]
    assert static_s([Worker(pace=FAST), Worker(pace=SLOW)], works_s, 4.0) == 180.0
    both = [Worker(pace=FAST, begin_s=1.0), Worker(pace=FAST)]
    assert static_s(both, works_s, 4.0) == 6.0


@pytest.mark.parametrize(("killed_s", "expected_s"), [(2.5, 10.5), (7.0, 6.5), (math.inf, 6.5)])
def test_a_killed_worker_goes_on_with_its_own_files(killed_s: float, expected_s: float) -> None:
    worker = Worker(pace=FAST, begin_s=0.5, killed_s=killed_s)
    assert static_s([worker], [6.0], 4.0) == expected_s


class Clock:
    """Of a busy machine: each sleep takes 0.03 s longer than it should."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + 0.03 if seconds else 0.0


def test_steps_take_what_their_pace_says_also_after_a_sleep_that_was_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(worker, "time", clock)
    steps = Steps(Pace(slowdown=2.0, slow_until_s=0.2), 0.01, clock.now_s)
    slept_s = [steps.sleep(20), *(steps.sleep(1) for _ in range(20))]
    assert slept_s[0] == pytest.approx(0.3)
    assert sum(slept_s) == pytest.approx(0.5)
    assert clock.now_s - 100.0 == pytest.approx(0.5, abs=0.05)
