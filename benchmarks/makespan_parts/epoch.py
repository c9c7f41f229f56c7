"""Runs an epoch of three worker processes, and counts what they delivered."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from makespan_parts.cells import BATCH_ROWS, IDEAL_S, LEASE_S, SLOW, VICTIM, Cell
from makespan_parts.paces import Worker, ideal_s, static_s
from makespan_parts.worker import Job

LONGEST_S = 4 * IDEAL_S
_BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an epoch runs: the files, the URL at which they are read (None: in place), and an empty
    directory for the store and the workers' notes."""

    table: Path
    url: str | None
    directory: Path


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What an epoch took; times are seconds since it began.

    Attributes:
        finished: Whether the workers ended before they were stopped after `LONGEST_S`.
        took_s: When the last row was delivered.
        ideal_s: When it would have been with workers that never wait.
        static_s: When it would have been with files dealt to the workers.
        limit_s: When it must have been.
        rows_missing: How many rows no worker delivered; none is said of an unfinished epoch.
        rows_twice: How many rows were delivered again.
        rows_of_slow: How many the slow worker delivered.
        fast_idle_s: How long a fast worker was without a step until the last row was delivered, at
            most; the killed one does not count.
    """

    finished: bool
    took_s: float
    ideal_s: float
    static_s: float
    limit_s: float
    rows_missing: int | None
    rows_twice: int
    rows_of_slow: int
    fast_idle_s: float


def first_batch_s(cell: Cell, place: Place) -> float:
    """How long a worker alone takes to its first batch: to stage and decode its first window."""
    with _WorkerProcess(cell, place, VICTIM, first_only=True) as worker:
        worker.is_ready()
        began_s = time.monotonic()
        worker.begin(began_s)
        worker.has_first_batch()
        took_s = time.monotonic() - began_s
        worker.end(LONGEST_S)
    return took_s


def run(cell: Cell, place: Place, window_s: float) -> Epoch:
    """Runs an epoch.

    Args:
        cell: Of which table, and what happens to the workers.
        place: Where.
        window_s: How much longer the epoch may take because files are staged.
    """
    begins_s, finished = _deliver(cell, place)
    steps = [_steps(place.directory / f"{index}.steps") for index in range(3)]
    rows = [np.fromfile(place.directory / f"{index}.rows", np.int64) for index in range(3)]
    workers = cell.workers(begins_s)
    took_s = float(max(step[:, 0].max(initial=0.0) for step in steps)) if finished else LONGEST_S
    missing, twice = count(np.concatenate(rows), cell.form.num_rows)
    least_s = ideal_s(workers, cell.work_s)
    file_work_s = cell.form.file_rows * cell.seconds_per_row
    return Epoch(
        finished=finished,
        took_s=took_s,
        ideal_s=least_s,
        static_s=static_s(workers, [file_work_s] * cell.form.num_files, LEASE_S),
        limit_s=cell.limit_s(least_s, window_s),
        rows_missing=missing if finished else None,
        rows_twice=twice,
        rows_of_slow=len(rows[SLOW]),
        fast_idle_s=idle_s(workers, [float(step[:, 2].sum()) for step in steps], took_s),
    )


def count(rows: np.ndarray, num_rows: int) -> tuple[int, int]:
    """How many of the rows 0 to `num_rows` are missing, and how many came again."""
    times = np.bincount(rows, minlength=num_rows)
    return int((times == 0).sum()), int((times[times > 0] - 1).sum())


def idle_s(workers: Sequence[Worker], slept_s: Sequence[float], end_s: float) -> float:
    """How long a worker that is fast, and was not killed, was without a step, at most."""
    return max(
        end_s - worker.begin_s - step_s
        for worker, step_s in zip(workers, slept_s, strict=True)
        if worker.pace.slowdown == 1.0 and worker.killed_s > end_s
    )


def _deliver(cell: Cell, place: Place) -> tuple[tuple[float, float, float], bool]:
    """When each worker could begin, and whether all ended in time."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_WorkerProcess(cell, place, index)) for index in range(3)]
        began_s, begins_s = _begin(cell, processes)
        if cell.scene == "killed":
            time.sleep(began_s + IDEAL_S / 2 - time.monotonic())
            processes[VICTIM].kill()
        ends = [process.end(began_s + LONGEST_S - time.monotonic()) for process in processes]
    return begins_s, all(ends)


def _begin(
    cell: Cell, processes: Sequence["_WorkerProcess"]
) -> tuple[float, tuple[float, float, float]]:
    """When the epoch began, and when each worker could begin."""
    for process in processes:
        process.is_ready()
    began_s = time.monotonic()
    processes[SLOW].begin(began_s)
    if cell.scene == "slow_first":
        processes[SLOW].has_first_batch()
    other_s = time.monotonic() - began_s if cell.scene == "slow_first" else 0.0
    for process in processes[SLOW + 1 :]:
        process.begin(began_s)
    return began_s, (0.0, other_s, other_s)


class _WorkerProcess:
    """A worker process; it is ended with the block that it is made for."""

    def __init__(self, cell: Cell, place: Place, index: int, *, first_only: bool = False) -> None:
        self._errors = place.directory / f"{index}.errors"
        job = Job(
            table=str(place.table),
            url=place.url,
            options=_options(cell, place.directory),
            pace=asdict(cell.workers()[index].pace),
            seconds_per_row=cell.seconds_per_row,
            first_only=first_only,
            notes=str(place.directory / str(index)),
        )
        paths = [_BENCHMARKS, os.environ.get("PYTHONPATH")]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "makespan_parts.worker", json.dumps(asdict(job))],
                cwd=place.directory,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, paths)))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._was_killed = False

    def __enter__(self) -> "_WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def is_ready(self) -> None:
        """Waits until it has started."""
        self._told("ready")

    def begin(self, began_s: float) -> None:
        """Lets it begin an epoch that began at a time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{began_s}\n")
        self._process.stdin.flush()

    def has_first_batch(self) -> None:
        """Waits for its first batch."""
        self._told("first")

    def kill(self) -> None:
        """Kills it, as the system does."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the victim ended before it could be killed: {self._failure()}")
        self._process.kill()
        self._was_killed = True

    def end(self, timeout_s: float) -> bool:
        """Waits for its end, and says whether it came in time."""
        try:
            code = self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        if code and not self._was_killed:
            raise RuntimeError(f"a worker ended with exit code {code}: {self._failure()}")
        return True

    def _told(self, what: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != f"{what}\n":
            raise RuntimeError(f"expected {what!r}, found {line!r}: {self._failure()}")

    def _failure(self) -> str:
        return self._errors.read_text()[-2000:]


def _options(cell: Cell, directory: Path) -> dict[str, Any]:
    dispatch = {"store": f"sqlite://{directory}/store.sqlite", "run_id": "run"}
    terms = {"in_step": False, "lease_s": LEASE_S, "finished": "end"}
    return {"batch_size": BATCH_ROWS, "shuffle": cell.shuffle, "dispatch": dispatch | terms}


def _steps(path: Path) -> np.ndarray:
    """Of each step: when it ended, its rows, and how long it took by its pace."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return np.array(lines, float).reshape(-1, 3)
