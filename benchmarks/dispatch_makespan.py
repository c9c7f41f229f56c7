"""How long an epoch takes on a bad cluster, held against the ideal: total work over total speed.

coordinator: eight processes over one sqlite store, without files; their work is a sleep in
proportion to rows. One is four times slower, one is killed half-way, and file sizes are
heavy-tailed. Strategies:

- featstore: whole files claimed from the plan; an idle worker takes half of what a busy one has not
  reserved.
- dynamic, DLRover-like: splits of at most 100 mini-batches of 512 rows from one queue, taken over
  when a lease ends.
- files: the same, a whole file a task.
- static: file i belongs to worker i % 8; the killed worker is started again after a lease time and
  goes on with its own.

loader: three processes with a FeatureLoader, one of them 30 times slower; each step is a sleep in
proportion to rows. All tables, orders, scenes and places of `makespan_parts/cells.py`, beside
files dealt to the workers (computed).

Counts every delivered row. Ends with one line `RESULT {json}`; exit code 1 if featstore is slower
than demanded (coordinator: 1.05 of the ideal; loader: `Cell.limit_s`), or a row is missing.
"""

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split, SplitSize, splits_of
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.terms import Claim, Terms
from makespan_parts.side import figures, measure
from shared_parts.machine import print_result

NUM_WORKERS, SLOW, VICTIM = 8, 0, 1
SLOWDOWN = 4.0
ROWS_PER_S = 50_000
ROW_GROUP_ROWS = 8_192
TASK_ROWS = 100 * 512
LEASE_S = 2.0
LIMIT = 1.05
STRATEGIES = ("featstore", "dynamic", "files", "static")
PARTS = ("coordinator", "loader")
NOT_MEASURED = {"ok": True, "median_of_ideal": dict.fromkeys(STRATEGIES)}
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One epoch: files as rows, when the victim is killed, the strategy, and where workers note
    what they delivered.
    """

    strategy: str
    file_rows: tuple[int, ...]
    kill_after_s: float
    directory: str

    def splits(self) -> list[Split]:
        """A file is several splits for `dynamic` alone."""
        if self.strategy == "dynamic":
            return [split for i, rows in enumerate(self.file_rows) for split in _splits_of(i, rows)]
        return [Split(path=str(i), num_rows=rows) for i, rows in enumerate(self.file_rows)]


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="shorter epochs, and fewer of them")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these")
    arguments = parser.parse_args()
    small, parts = arguments.small, arguments.parts
    alone = _alone(small) if "coordinator" in parts else NOT_MEASURED
    found = measure(small=small) if "loader" in parts else []
    ok = alone["ok"] and all(one.ok for one in found)
    print_result({**alone, "ok": ok, "loader": figures(found)})
    return 0 if ok else 1


def _alone(small: bool) -> dict[str, Any]:
    """The epochs of the Coordinator alone."""
    ideal_s, num_rounds = (30.0, 1) if small else (40.0, 3)
    ratios: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    missing, twice, hosts = 0, dict.fromkeys(STRATEGIES, 0), []
    for round_ in range(num_rounds):
        file_rows = _heavy_tailed(ideal_s, seed=round_)
        for name in STRATEGIES:
            before = os.times()
            ratio, lacking, repeated = _epoch(name, file_rows, ideal_s)
            after = os.times()
            hosts.append(sum(after[2:4]) - sum(before[2:4]))
            ratios[name].append(round(ratio, 3))
            missing, twice[name] = missing + lacking, twice[name] + repeated
            print(
                f"round {round_}: {name:10} {ratio:.3f} of the ideal, {lacking} rows missing, "
                f"{repeated} twice",
                flush=True,
            )
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    ok = medians["featstore"] <= LIMIT and not missing
    facts = {
        "ratios": ratios,
        "limit": LIMIT,
        "rows_missing": missing,
        "rows_twice": twice,
        "ideal_s": ideal_s,
    }
    return {"ok": ok, "median_of_ideal": medians, **facts, "cpu_s": round(sum(hosts), 1)}


def _heavy_tailed(ideal_s: float, seed: int) -> tuple[int, ...]:
    """Pareto sizes (alpha 1.1), the largest file a tenth of the whole at most; together the work of
    an ideal epoch.
    """
    total = int(_num_speeds() * ideal_s * ROWS_PER_S)
    draw = random.Random(seed)
    weights = [min(draw.paretovariate(1.1), 100.0) for _ in range(300)]
    sizes = [min(int(total * weight / sum(weights)), total // 10) for weight in weights]
    return (*sizes, max(0, total - sum(sizes)))


def _num_speeds() -> float:
    """Speeds of the workers together, in fast ones: the victim works for half of the ideal time."""
    return NUM_WORKERS - 2 + 1 / SLOWDOWN + 0.5


def _splits_of(index: int, num_rows: int) -> Iterator[Split]:
    rows = [min(ROW_GROUP_ROWS, num_rows - first) for first in range(0, num_rows, ROW_GROUP_ROWS)]
    return splits_of(str(index), rows, rows, SplitSize(num_rows=TASK_ROWS))


def _epoch(strategy: str, file_rows: tuple[int, ...], ideal_s: float) -> tuple[float, int, int]:
    """The epoch's time over the ideal, rows missing, and rows that came twice."""
    with tempfile.TemporaryDirectory() as directory:
        scene = Scene(
            strategy=strategy, file_rows=file_rows, kill_after_s=ideal_s / 2, directory=directory
        )
        barrier = SPAWN.Barrier(NUM_WORKERS + 1)
        workers = [
            SPAWN.Process(target=_work, args=(scene, index, barrier))
            for index in range(NUM_WORKERS)
        ]
        for worker in workers:
            worker.start()
        barrier.wait()
        started = time.monotonic()
        _kill(workers[VICTIM], scene.kill_after_s)
        if strategy == "static":
            time.sleep(LEASE_S)
            workers[VICTIM] = SPAWN.Process(target=_work, args=(scene, VICTIM, None))
            workers[VICTIM].start()
        for worker in workers:
            worker.join()
        delivered = list(_delivered(Path(directory)))
    last = max(at for *_, at in delivered)
    lacking, repeated = _count(scene.splits(), delivered)
    return (last - started) / ideal_s, lacking, repeated


def _kill(victim: "multiprocessing.context.SpawnProcess", after_s: float) -> None:
    time.sleep(after_s)
    assert victim.pid is not None
    assert victim.is_alive(), "the victim ended before it could be killed"
    os.kill(victim.pid, signal.SIGKILL)


def _work(scene: Scene, index: int, barrier: Barrier | None) -> None:
    """A worker process: delivers what it may, row group by row group, and notes each in a file of
    its own.
    """
    seconds_per_row = (SLOWDOWN if index == SLOW else 1.0) / ROWS_PER_S
    with (Path(scene.directory) / f"{index}.log").open("a", buffering=1) as log:
        work = (
            _own(scene, index, barrier)
            if scene.strategy == "static"
            else _claimed(scene, index, barrier)
        )
        overslept_s = 0.0
        for split, first, end in work:
            started, work_s = time.monotonic(), (end - first) * seconds_per_row
            time.sleep(max(0.0, work_s - overslept_s))
            ended = time.monotonic()
            # The host is busy, and a sleep too long is none of the dispatcher's: it is taken off
            # the next.
            overslept_s += ended - started - work_s
            log.write(f"{split} {first} {end} {ended}\n")


def _own(scene: Scene, index: int, barrier: Barrier | None) -> Iterator[tuple[int, int, int]]:
    """Static: the worker's own files, after what an earlier process of it has noted."""
    done = {
        (split, first) for split, first, _, _ in _delivered(Path(scene.directory), f"{index}.log")
    }
    if barrier is not None:
        barrier.wait()
    for split in range(index, len(scene.file_rows), NUM_WORKERS):
        for first in range(0, scene.file_rows[split], ROW_GROUP_ROWS):
            if (split, first) not in done:
                yield split, first, min(first + ROW_GROUP_ROWS, scene.file_rows[split])


def _claimed(scene: Scene, index: int, barrier: Barrier | None) -> Iterator[tuple[int, int, int]]:
    plan = Plan(splits=scene.splits(), seed=1)
    store = f"sqlite://{scene.directory}/store.sqlite"
    with Coordinator(
        store,
        plan=plan,
        prefix=run_prefix("run"),
        worker=str(index),
        terms=Terms(lease_s=LEASE_S),
        batch_rows=ROW_GROUP_ROWS,
    ) as coordinator:
        if barrier is not None:
            barrier.wait()
        for claim in coordinator.claims():
            if scene.strategy != "featstore":  # Idle workers take nothing of it.
                coordinator.reserve(claim, claim.end_row)
            yield from _row_groups(coordinator, claim)


def _row_groups(coordinator: Coordinator, claim: Claim) -> Iterator[tuple[int, int, int]]:
    row, is_mine = claim.start_row, coordinator.start(claim) is not None
    while is_mine:
        through = coordinator.reserve(claim, min(row + ROW_GROUP_ROWS, claim.split.num_rows))
        if through is None:
            return
        if through <= row:
            coordinator.complete(claim)
            return
        yield claim.index, row, through
        row = through
        [is_mine] = coordinator.acknowledge_all([(claim, row)])


def _delivered(directory: Path, pattern: str = "*.log") -> Iterator[tuple[int, int, int, float]]:
    for path in directory.glob(pattern):
        for line in path.read_text().splitlines():
            split, first, end, at = line.split()
            yield int(split), int(first), int(end), float(at)


def _count(splits: list[Split], delivered: list[tuple[int, int, int, float]]) -> tuple[int, int]:
    """Rows missing, and rows delivered more than once."""
    through: dict[int, int] = {}
    num_distinct = 0
    for split, first, end, _ in sorted(delivered):
        begin = max(first, through.get(split, 0))
        num_distinct += max(0, end - begin)
        through[split] = max(end, through.get(split, 0))
    num_delivered = sum(end - first for _, first, end, _ in delivered)
    return sum(split.num_rows for split in splits) - num_distinct, num_delivered - num_distinct


if __name__ == "__main__":
    sys.exit(main())
