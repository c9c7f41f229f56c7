"""A process that reads by a peer: `python -m compare_parts.child JSON` prints a line of JSON.

What it does is said by `do`: "convert" writes the peer's own format; "first" reads an epoch in a
fresh process; "rate" reads one to warm up, then times epochs until they took `cpu_s`; "files" reads a shuffled one; "epoch"
is a training process among others, which prints `ready`, begins when a line comes on its standard
input, and may be killed after `stop_after` batches, when it has saved its state and the next batch
has come (`saved`).
"""

import importlib
import json
import math
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from compare_parts.checksum import checksum
from compare_parts.job import Job
from shared_parts.process_tree import spent_s, tree_cpu_s

Asked = dict[str, Any]


def main() -> None:
    asked = json.loads(sys.argv[1])
    job = Job(**asked["job"])
    if asked["do"] != "epoch":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.num_cores])
    module = importlib.import_module(f"compare_parts.peers.with_{asked['peer']}")
    print(json.dumps(DOES[asked["do"]](module, job, asked)), flush=True)


def _convert(module: Any, job: Job, asked: Asked) -> Asked:
    started, before = time.perf_counter(), tree_cpu_s()
    module.convert(job.files, job.folder)
    return {
        "clock_s": time.perf_counter() - started,
        "cpu_s": spent_s(before, tree_cpu_s()),
    }


def _first(module: Any, job: Job, asked: Asked) -> Asked:
    batches = iter(module.Reader(job))
    next(batches)
    told = {"first_s": time.time() - asked["began_s"], "first_cpu_s": spent_s({}, tree_cpu_s())}
    for _ in batches:
        pass
    return told


def _rate(module: Any, job: Job, asked: Asked) -> Asked:
    reader = module.Reader(job)
    told: Asked = {"checksum": checksum(reader), "epochs": 0}
    started, before = time.perf_counter(), tree_cpu_s()
    # The system counts CPU time in hundredths of a second.
    while told.get("cpu_s", 0.0) < asked["cpu_s"]:
        for _ in reader:
            pass
        told["epochs"] += 1
        told["cpu_s"] = spent_s(before, tree_cpu_s())
    return told | {"clock_s": time.perf_counter() - started}


def _files(module: Any, job: Job, asked: Asked) -> Asked:
    rows = [np.asarray(batch["row"]) for batch in module.Reader(job)]
    in_batch = [len(np.unique((of - 1) // asked["file_rows"])) for of in rows]
    return {"files_per_batch": float(np.mean(in_batch))}


def _epoch(module: Any, job: Job, asked: Asked) -> Asked:
    if hasattr(module, "readers"):
        readers = dict(enumerate(module.readers(job)))
    else:
        readers = {job.rank: module.Reader(job)}
    if states := asked["states"]:
        readers[job.rank].load([pickle.loads(Path(path).read_bytes()) for path in states])
    print("ready", flush=True)
    sys.stdin.readline()
    ends = dict[int, tuple[float, float]]()

    def deliver(rank: int, reader: Iterable[Any]) -> None:
        ends[rank] = _deliver(rank, reader, asked)

    threads = [threading.Thread(target=deliver, args=of) for of in readers.items()]
    if len(threads) == 1:
        deliver(*next(iter(readers.items())))
    else:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if len(ends) < len(readers):
        raise SystemExit("a thread of a rank failed")
    return {
        "begin_s": min(begin_s for begin_s, _ in ends.values()),
        "end_s": max(end_s for _, end_s in ends.values()),
    }


def _deliver(rank: int, reader: Any, asked: Asked) -> tuple[float, float]:
    """When the first batch came, and when the last one was delivered. What was delivered until the
    state was saved, or the end, is written down.
    """
    rows: list[np.ndarray] = []
    begin_s = math.inf
    row_s = asked["row_s"] * (asked["slowdown"] if rank == 0 else 1.0)
    overslept_s = 0.0
    for number, batch in enumerate(reader, 1):
        if number - 1 == asked["stop_after"] > 0:
            print("saved", flush=True)
            signal.pause()
        begin_s = min(begin_s, time.monotonic())
        rows.append(np.array(batch["row"]))
        started, work_s = time.monotonic(), len(rows[-1]) * row_s
        time.sleep(max(0.0, work_s - overslept_s))
        overslept_s += time.monotonic() - started - work_s
        if number == asked["stop_after"]:
            Path(asked["saves"], f"{rank}.state").write_bytes(pickle.dumps(reader.state_dict()))
            _save(rows, Path(asked["saves"], f"{rank}.npy"))
    if asked["stop_after"]:
        raise SystemExit(f"the epoch ended after {len(rows)} batches, before it could be killed")
    end_s = time.monotonic()
    _save(rows, Path(asked["saves"], f"{rank}.npy"))
    return begin_s, end_s


def _save(rows: list[np.ndarray], path: Path) -> None:
    np.save(path, np.concatenate([np.empty(0, np.int64), *rows]))


DOES: dict[str, Callable[[Any, Job, Asked], Asked]] = {
    "convert": _convert,
    "first": _first,
    "rate": _rate,
    "files": _files,
    "epoch": _epoch,
}

if __name__ == "__main__":
    main()
