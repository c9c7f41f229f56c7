"""Speeds in one process, readers in turn; and memory, each reader in a process of its own."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

Run = Callable[[], Iterable[Any]]
Clock = Callable[[], float]
Seconds = dict[str, list[float]]


def limit_cores(num_cores: int) -> None:
    """Keeps this process on its first cores, with as many of Arrow's and torch's threads."""
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    os.sched_setaffinity(0, cores)
    pa.set_cpu_count(len(cores))
    torch.set_num_threads(len(cores))


def in_turn(runs: Mapping[str, Run], repeats: int, clock: Clock = time.perf_counter) -> Seconds:
    """Seconds that each run takes, `repeats` times, the runs in turn; one round before is not
    counted.
    """
    return by_clocks(runs, repeats, [clock])[0]


def by_clocks(runs: Mapping[str, Run], repeats: int, clocks: Sequence[Clock]) -> list[Seconds]:
    """The same runs by several clocks at once."""
    taken: list[Seconds] = [{name: [] for name in runs} for _ in clocks]
    for number in range(repeats + 1):
        for name, run in runs.items():
            gc.collect()
            started = [clock() for clock in clocks]
            for _ in run():
                pass
            for seconds, clock, begun in zip(taken, clocks, started, strict=True):
                seconds[name] += [clock() - begun] if number else []
    return taken


def ratios(seconds: Mapping[str, list[float]], over: str) -> dict[str, dict[str, float]]:
    """The speed of each run as a share of the speed of `over`, of neighbouring runs: the median,
    the least and the most.
    """
    shares = {
        name: [f / own for f, own in zip(seconds[over], runs, strict=True)]
        for name, runs in seconds.items()
    }
    return {
        name: {
            "median": round(statistics.median(of), 3),
            "least": round(min(of), 3),
            "most": round(max(of), 3),
        }
        for name, of in shares.items()
        if name != over
    }


def peak_bytes() -> int:
    """The most memory that this process has had at once, since the last `forget_peak`."""
    return _status("VmHWM")


def resident_bytes() -> int:
    return _status("VmRSS")


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
