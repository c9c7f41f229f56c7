"""Workers whose steps take known times, and how long an epoch takes with them at best.

Work is measured in the seconds that a fast worker takes for it, times in seconds since the epoch
began.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a worker is.

    Attributes:
        slowdown: How many times as long its steps take as those of a fast worker.
        slow_until_s: When it becomes a fast one.
    """

    slowdown: float = 1.0
    slow_until_s: float = math.inf

    def work_s(self, begin_s: float, end_s: float) -> float:
        """What it works between two times."""
        slow_s = max(0.0, min(end_s, self.slow_until_s) - begin_s)
        return slow_s / self.slowdown + max(0.0, end_s - begin_s - slow_s)

    def end_s(self, begin_s: float, work_s: float) -> float:
        """When work that begins at a time is done."""
        slow_s = max(0.0, self.slow_until_s - begin_s)
        if work_s * self.slowdown <= slow_s:
            return begin_s + work_s * self.slowdown
        return begin_s + slow_s + work_s - slow_s / self.slowdown


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker of an epoch: its pace, when it could begin, and when it was killed."""

    pace: Pace
    begin_s: float = 0.0
    killed_s: float = math.inf

    def work_s(self, end_s: float) -> float:
        """What it works until a time."""
        return self.pace.work_s(self.begin_s, max(self.begin_s, min(end_s, self.killed_s)))


def ideal_s(workers: Sequence[Worker], work_s: float) -> float:
    """When the workers are done if nobody ever waits: total work over total speed."""
    begin_s, end_s = 0.0, 1.0
    while sum(worker.work_s(end_s) for worker in workers) < work_s:
        if end_s > 1e9:
            raise ValueError(f"expected workers that finish {work_s} s of work, found {workers}")
        end_s *= 2
    for _ in range(60):
        middle_s = (begin_s + end_s) / 2
        is_done = sum(worker.work_s(middle_s) for worker in workers) >= work_s
        begin_s, end_s = (begin_s, middle_s) if is_done else (middle_s, end_s)
    return end_s


def static_s(workers: Sequence[Worker], file_works_s: Sequence[float], restart_s: float) -> float:
    """When the workers are done if file i is worker i's, modulo their number.

    A killed worker goes on with its own files `restart_s` later.
    """
    return max(
        _alone_s(worker, sum(file_works_s[index :: len(workers)]), restart_s)
        for index, worker in enumerate(workers)
    )


def _alone_s(worker: Worker, work_s: float, restart_s: float) -> float:
    end_s = worker.pace.end_s(worker.begin_s, work_s)
    if end_s <= worker.killed_s:
        return end_s
    rest_s = work_s - worker.work_s(worker.killed_s)
    return worker.pace.end_s(worker.killed_s + restart_s, rest_s)
