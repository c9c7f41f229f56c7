"""How near the loader comes to a bare loop of `read_row_group`: unshuffled, shuffled, few columns
of many, on one core and two.

There are three workloads: loader_parts/workload.py and, written apart from it, in the cases named
plain-... and dlrm-..., those of loader_parts/plain_workload.py. Each case runs in a process of its
own, on its cores; in it, floor and loader read the same warm files in turn, and every column of
every batch is made. A figure is the median of the ratios of neighbouring runs. Checksums of what
both read must be equal. Each figure is also told as a share of what the machine could do (loader_parts/roofline.py).
Then the training thread's share of the CPU and that of the interpreter and numpy, what it takes to
the first batch, to start and end, and the memory.

    python benchmarks/loader.py [--small] [--directory DIR] [--case NAME ...]
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from featstore.loader.feature_loader import FeatureLoader
from featstore.table.open import open_snapshot
from featstore.table.snapshot import Snapshot
from loader_parts import dataloader, measuring
from loader_parts.cases import (
    DLRM_BATCH_SIZE,
    INTERPRETER,
    SERIAL,
    SPEEDS,
    WINDOW_ROWS,
    Interpreter,
    Serial,
    Source,
    Speed,
)
from loader_parts.interpreter import interpreter_share
from loader_parts.plain_workload import DLRM, PLAIN
from loader_parts.profile import profile
from loader_parts.reading import checksum, columns_of, featstore, floor, from_arrow
from loader_parts.roofline import costs_of, in_units, limit_of_case, part, share
from loader_parts.workload import NARROW
from shared_parts.machine import print_result

BATCH_SIZE = 4096
_FIRST_BATCHES = 61  # pairs; each takes some 40 ms, so single ratios vary much
MAX_FIRST_RATIO, MAX_START_END_S, MAX_EXTRA_BYTES = 1.2, 0.05, 300 << 20
Figures = dict[str, Any]


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded figure is missed."""
    arguments = _parse()
    if arguments.child:
        print(json.dumps(CASES[arguments.child](arguments)))
        return 0
    with tempfile.TemporaryDirectory() as made:
        arguments.directory = arguments.directory or made
        result: Figures = {name: _in_child(name, arguments) for name in arguments.case or CASES}
    result["ok"] = all(figures["ok"] for figures in result.values())
    print_result(result)
    return 0 if result["ok"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="a quarter of the files, fewer repeats, no profiles of speed",
    )
    parser.add_argument("--directory", help="keep the data here, and use it again")
    parser.add_argument("--case", action="append", choices=CASES, help="only this one")
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (3 if arguments.small else 11)
    return arguments


def _in_child(name: str, arguments: argparse.Namespace) -> Figures:
    command = [sys.executable, __file__, "--child", name, "--directory", arguments.directory]
    command += ["--repeats", str(arguments.repeats), *(["--small"] if arguments.small else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} if name.endswith("-1") else None
    out = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout
    figures: Figures = json.loads(out.splitlines()[-1])
    print(f"{name}: {figures}", flush=True)
    return figures


def _sized(of: Source, arguments: argparse.Namespace) -> Source:
    return of.smaller(4) if arguments.small else of


def _files(of: Source, arguments: argparse.Namespace) -> tuple[list[str], list[str], Snapshot]:
    """Paths, columns and table of a workload."""
    paths = _sized(of, arguments).write(Path(arguments.directory))
    return paths, of.columns, open_snapshot(str(Path(paths[0]).parent))


def _speed(arguments: argparse.Namespace, case: Speed) -> Figures:
    """The speed of the loader as a share of the floor's."""
    measuring.limit_cores(case.num_cores)
    paths, columns, table = _files(case.workload, arguments)
    reader = featstore(table, shuffle_rows=case.shuffle_rows)
    one_epoch = partial(reader, paths, columns, case.batch_size)
    is_equal = checksum(one_epoch()) == checksum(from_arrow(floor(paths, columns, 0)))
    runs: dict[str, measuring.Run] = {
        "floor": partial(floor, paths, columns, 0, use_threads=case.num_cores > 1),
        "featstore": one_epoch,
    }
    seconds, cpu_seconds = measuring.by_clocks(
        runs, arguments.repeats, [time.perf_counter, time.process_time]
    )
    shares = measuring.ratios(seconds, over="floor")
    limit = limit_of_case(paths, columns, one_epoch())
    return {
        **shares,
        "share_of_limit": {
            name: round(share(limit, statistics.median(taken), case.num_cores), 3)
            for name, taken in seconds.items()
        },
        "share_of_limit_by_cpu_time": {
            name: round(share(limit, statistics.median(taken), num_cores=1), 3)
            for name, taken in cpu_seconds.items()
        },
        "limit": in_units(limit),
        "costs": costs_of(one_epoch, paths),
        **({} if arguments.small else {"profile": profile(one_epoch)}),
        "by_cpu_time": {
            name: share["median"]
            for name, share in measuring.ratios(cpu_seconds, over="floor").items()
        },
        "floor_rows_per_s": round(
            _sized(case.workload, arguments).num_rows / statistics.median(seconds["floor"])
        ),
        "required": case.required,
        "equal_checksums": is_equal,
        "ok": is_equal and shares["featstore"]["median"] >= case.required,
    }


def _dataloader(
    arguments: argparse.Namespace, workload: Source, batch_size: int = BATCH_SIZE
) -> Figures:
    """Rows per second of a DataLoader with two workers that persist, as a share of the floor's on
    two cores.
    """
    measuring.limit_cores(2)
    paths, columns, _ = _files(workload, arguments)
    limit = limit_of_case(paths, columns, from_arrow(floor(paths, columns, 0)))
    found = dataloader.compare(paths, columns, batch_size, repeats=arguments.repeats)
    return found | {"share_of_limit": round(share(limit, found["median_s"], 2), 3)}


def _serial(arguments: argparse.Namespace, case: Serial) -> Figures:
    """The CPU time of the thread that takes batches, per batch and as a share of the process's, in
    order; what is named `mixed` is of rows that are shuffled.

    What that thread does cannot be done by more decoding threads. So one training thread, itself
    doing nothing else, can use 1 / share threads, itself included.
    """
    measuring.limit_cores(2)
    paths, columns, table = _files(case.workload, arguments)
    in_order = _serial_share(partial(featstore(table), paths, columns, case.batch_size), arguments)
    mixed = featstore(table, shuffle_rows=WINDOW_ROWS)
    found = _serial_share(partial(mixed, paths, columns, case.batch_size), arguments)
    return {
        **in_order,
        **{f"mixed_{name}": figure for name, figure in found.items()},
        "most": case.most,
        "ok": in_order["share"] <= case.most,
    }


def _serial_share(read: Callable[[], Iterator[object]], arguments: argparse.Namespace) -> Figures:
    own, every, num_batches = [], [], 0
    for number in range(arguments.repeats + 1):
        started, all_started = time.thread_time(), time.process_time()
        num_batches = sum(1 for _ in read())
        if number:  # The first epoch warms up.
            own.append(time.thread_time() - started)
            every.append(time.process_time() - all_started)
    shares = [mine / whole for mine, whole in zip(own, every, strict=True)]
    share = statistics.median(shares)
    return {
        "share": round(share, 4),
        "least_to_most": [round(min(shares), 4), round(max(shares), 4)],
        "thread_ms_per_batch": round(1e3 * statistics.median(own) / num_batches, 3),
        "process_ms_per_batch": round(1e3 * statistics.median(every) / num_batches, 3),
        "usable_threads": round(1 / share, 1),
    }


def _interpreter(arguments: argparse.Namespace, case: Interpreter) -> Figures:
    """The share of the CPU that the interpreter and numpy take, and where the rest goes."""
    measuring.limit_cores(2)
    _, columns, table = _files(case.workload, arguments)
    return interpreter_share(
        table,
        columns,
        batch_size=case.batch_size,
        shuffle_rows=case.shuffle_rows,
        most=case.most,
        cpu_s=1.0 if arguments.small else 4.0,
    )


def _first_batch(
    arguments: argparse.Namespace, workload: Source, batch_size: int = BATCH_SIZE
) -> Figures:
    """Seconds from the iteration's begin to the first batch, over those of opening the first file
    and its first row group.
    """
    paths, columns, table = _files(workload, arguments)
    bare, own = [], []
    for number in range(_FIRST_BATCHES + 1):
        gc.collect()
        started = time.perf_counter()
        next(floor(paths, columns, 0))
        bare.append(time.perf_counter() - started)
        with FeatureLoader(
            table, slots=columns[:-1], labels=columns[-1:], batch_size=batch_size
        ) as loader:
            started = time.perf_counter()
            columns_of(next(iter(loader)))
            own.append(time.perf_counter() - started)
        if not number:  # What is imported and compiled at first use is a start's, not a batch's.
            bare.clear()
            own.clear()
    ratio = statistics.median(
        seconds / of_floor for seconds, of_floor in zip(own, bare, strict=True)
    )
    limit = limit_of_case(paths[:1], columns, from_arrow(floor(paths[:1], columns, 0)))
    with pq.ParquetFile(paths[0]) as file:
        rows = file.metadata.row_group(0).num_rows / file.metadata.num_rows
    return {
        "floor": round(statistics.median(bare), 4),
        "featstore": round(statistics.median(own), 4),
        "share_of_limit": round(
            share(part(limit, rows), statistics.median(own), os.cpu_count() or 1), 3
        ),
        "ratio": round(ratio, 3),
        "most": MAX_FIRST_RATIO,
        "ok": ratio <= MAX_FIRST_RATIO,
    }


def _start_end(arguments: argparse.Namespace) -> Figures:
    """Seconds to make a loader of an open table, ask it for one batch, and close it, less the first
    row group's decoding.
    """
    paths, columns, table = _files(NARROW, arguments)
    seconds = []
    for _ in range(3 * arguments.repeats):
        started = time.perf_counter()
        next(floor(paths, columns, 0))
        decoded = time.perf_counter()
        with FeatureLoader(
            table, slots=columns[:-1], labels=columns[-1:], batch_size=BATCH_SIZE
        ) as loader:
            next(iter(loader))
        seconds.append(time.perf_counter() - decoded - (decoded - started))
    found = statistics.median(seconds)
    return {"seconds": round(found, 4), "most": MAX_START_END_S, "ok": found <= MAX_START_END_S}


def _memory(
    arguments: argparse.Namespace,
    workload: Source,
    shuffle_rows: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> Figures:
    """The loader's peak above the floor's, both in this process, the floor first; and what ten
    epochs add.
    """
    paths, columns, table = _files(workload, arguments)
    read = featstore(table, shuffle_rows=shuffle_rows)
    peaks = []
    for run in (lambda: floor(paths, columns, 0), *[lambda: read(paths, columns, batch_size)] * 10):
        measuring.forget_peak()
        for _ in run():  # type: ignore[no-untyped-call]
            pass
        peaks.append(measuring.peak_bytes())
    extra, growth = max(peaks) - peaks[0], max(peaks[6:]) - max(peaks[1:6])
    return {
        "floor_bytes": peaks[0],
        "extra_bytes": extra,
        "most": MAX_EXTRA_BYTES,
        "growth_bytes": growth,
        "most_growth": 20 << 20,
        "ok": extra <= MAX_EXTRA_BYTES and growth <= 20 << 20,
    }


CASES: dict[str, Callable[[argparse.Namespace], Figures]] = {
    **{name: partial(_speed, case=case) for name, case in SPEEDS.items()},
    "dataloader": partial(_dataloader, workload=NARROW),
    "plain-dataloader": partial(_dataloader, workload=PLAIN),
    "dlrm-dataloader": partial(_dataloader, workload=DLRM, batch_size=DLRM_BATCH_SIZE),
    **{name: partial(_serial, case=case) for name, case in SERIAL.items()},
    **{name: partial(_interpreter, case=case) for name, case in INTERPRETER.items()},
    "first-batch": partial(_first_batch, workload=NARROW),
    "plain-first-batch": partial(_first_batch, workload=PLAIN),
    "dlrm-first-batch": partial(_first_batch, workload=DLRM, batch_size=DLRM_BATCH_SIZE),
    "start-end": _start_end,
    "memory": partial(_memory, workload=NARROW),
    "memory-shuffled": partial(_memory, workload=NARROW, shuffle_rows=WINDOW_ROWS),
    "plain-memory": partial(_memory, workload=PLAIN),
    "plain-memory-shuffled": partial(_memory, workload=PLAIN, shuffle_rows=WINDOW_ROWS),
    "dlrm-memory": partial(_memory, workload=DLRM, batch_size=DLRM_BATCH_SIZE),
    "dlrm-memory-shuffled": partial(
        _memory, workload=DLRM, shuffle_rows=WINDOW_ROWS, batch_size=DLRM_BATCH_SIZE
    ),
}

if __name__ == "__main__":
    sys.exit(main())
