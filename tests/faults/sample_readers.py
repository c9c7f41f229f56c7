"""DataLoader workers that read random samples, some of which are killed again and again.

    python tests/faults/sample_readers.py TABLE CACHE --method fork|forkserver|spawn
        [--workers 32] [--rounds 20] [--seed 0] [--waiting] [--removed]

One epoch of a random order is read in rounds. In each but the last one to four workers are killed,
drawn by the seed, whatever they do at that moment; with `--waiting` one that provably waits for its
next batch. The next round starts all workers anew, from the state of what was delivered. With
`--removed` the cache is removed before each round, so workers that are not forked decode its files
again, and are killed while they do. After each round nothing may be left of it: no process, no
descriptor, no memory of a batch, no unfinished entry. Ends with one line of JSON.
"""

import argparse
import gc
import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from featstore.samples.random_order import RandomOrder
from featstore.samples.sample_dataset import SampleDataset
from featstore.staging.cache import Cache, Limits

BATCH_ROWS, MOST_KILLED, MOST_STEPS = 16, 4, 40


def main() -> None:
    options = _options()
    signal.alarm(500)  # Nobody outlives a test that failed.
    context = multiprocessing.get_context(options.method)
    if options.method == "forkserver":
        # Loaded once, and not in each worker: 200 MB and two seconds.
        context.set_forkserver_preload(["featstore.samples.sample_dataset"])
    dataset = _samples(options.table, options.cache)
    order = RandomOrder(len(dataset), seed=options.seed)
    chance = random.Random(options.seed)
    first_entries = _entries(options.cache)
    delivered = list[int]()
    num_killed = num_errors = 0
    state = order.batches(BATCH_ROWS).state_dict()
    held = None
    for number in range(options.rounds):
        if options.removed:
            shutil.rmtree(options.cache)
        batches = order.batches(BATCH_ROWS)
        batches.load_state_dict(state)
        kill_after = chance.randrange(MOST_STEPS)
        if options.waiting:
            # One batch is asked of a worker at a time, so the one whose batch has just come waits.
            victims = [kill_after % options.workers]
        else:
            victims = chance.sample(range(options.workers), chance.randint(1, MOST_KILLED))
        is_last = number == options.rounds - 1
        rows, error = _read(dataset, batches, options, None if is_last else (kill_after, victims))
        assert (error is None) is is_last, error
        delivered += rows
        num_killed += 0 if is_last else len(victims)
        num_errors += error is not None
        state = json.loads(json.dumps(batches.state_dict(-(-len(rows) // BATCH_ROWS))))
        left = _left()
        assert left["processes"] == 0, left
        assert held in (None, left), (held, left)
        held = left
        with _samples(options.table, options.cache) as again:
            assert again[:]["row"].tolist() == list(range(len(again)))
        entries = _entries(options.cache)
        assert len(entries) == len(first_entries)
        assert options.removed or entries == first_entries
        assert not list(Path(options.cache).rglob("*.part"))
    assert delivered == order[:].tolist()
    dataset.close()
    pinned = [entry.is_pinned for entry in Cache(options.cache, Limits(budget_bytes=0)).entries()]
    assert pinned == [False] * len(first_entries)
    print(json.dumps({"killed": num_killed, "errors": num_errors}))  # noqa: T201


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    parser.add_argument("cache")
    parser.add_argument("--method", required=True)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--waiting", action="store_true")
    parser.add_argument("--removed", action="store_true")
    return parser.parse_args()


def _samples(table: str, cache: str) -> SampleDataset:
    return SampleDataset(table, slots=["row", "square"], staging={"directory": cache})


def _entries(cache: str) -> set[tuple[str, int]]:
    found = Cache(cache, Limits(budget_bytes=0)).entries()
    return {(entry.path.name, entry.path.stat().st_ino) for entry in found}


def _read(
    dataset: SampleDataset,
    batches: Iterable[Any],
    options: argparse.Namespace,
    killing: tuple[int, Sequence[int]] | None,
) -> tuple[list[int], str | None]:
    """The rows of whole batches that were delivered, and the error that ended it."""
    started: Any = None

    def kill(victims: Sequence[int]) -> None:
        _kill(started, victims)

    loader: Any = DataLoader(
        dataset,
        batch_sampler=_drawn(batches, options.workers, killing, kill),
        num_workers=options.workers,
        prefetch_factor=1,
        multiprocessing_context=options.method,
    )
    rows = list[int]()
    error = None
    started = iter(loader)
    try:
        for batch in started:
            found = batch["row"].tolist()
            assert batch["square"].tolist() == [row % 1000 for row in found]
            rows += found
    except RuntimeError as raised:
        said = ("exited unexpectedly", "is killed by signal", "died before its batch")
        assert any(each in str(raised) for each in said), raised  # noqa: PT017
        error = str(raised)
    finally:
        # Torch ends its workers at once only if no garbage collection has to find the cycle of
        # loader, sampler and iterator: that closes their queues first.
        started = None
    return rows, error


def _drawn(
    batches: Iterable[Any],
    num_workers: int,
    killing: tuple[int, Sequence[int]] | None,
    kill: Callable[[Sequence[int]], None],
) -> Iterator[Any]:
    """The batches' rows. After the first one of each worker one is drawn when one has come back."""
    for number, rows in enumerate(batches):
        if killing is not None and number == num_workers + killing[0]:
            kill(killing[1])
        yield rows


def _kill(batches: Any, victims: Sequence[int]) -> None:
    """Kills workers while they hold none of the locks that torch shares among all workers: what a
    process holds of these when it is killed stays locked.
    """
    workers = [batches._workers[number] for number in victims]
    with batches._workers_done_event._cond, batches._worker_result_queue._wlock:
        # Torch's handler of this signal raises, also between two kills.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            for worker in workers:
                os.kill(worker.pid, signal.SIGKILL)
            for worker in workers:
                _wait_for_end(worker)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _wait_for_end(worker: Any) -> None:
    """Does not join the worker: torch has to find it dead."""
    try:
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # A child of the fork server.
        assert connection.wait([worker.sentinel], timeout=60)


def _left() -> dict[str, int]:
    """What this process has of rounds that are over."""
    gc.collect()
    # Torch terminates workers that do not end in 5 s, as on a busy machine, without waiting.
    for process in multiprocessing.active_children():
        process.join(60)
    # Each queue has a thread that closes its pipe.
    for thread in threading.enumerate():
        if thread.name.startswith("QueueFeeder"):
            thread.join(60)
    return {
        "processes": len(multiprocessing.active_children()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "batches": Path("/proc/self/maps").read_text().count("featstore-batch"),
    }


if __name__ == "__main__":
    main()
