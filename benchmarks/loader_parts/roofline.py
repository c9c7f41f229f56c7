"""The limit that a case is told against (`featstore.loader.plan.roofline`), and where a reader's time
goes.
"""

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from featstore.loader.plan.roofline import FilePart, Limit, least_s, limit_of
from featstore.reading.open_file import OpenFile
from loader_parts.reading import Columns


def limit_of_case(paths: Sequence[str], columns: Sequence[str], epoch: Iterator[Columns]) -> Limit:
    """The limit of reading these columns of these files. The bytes of all batches are counted."""
    parts = [FilePart(Path(path), tuple(columns)) for path in paths]
    return limit_of(parts, sum(map(_batch_bytes, epoch)))


def part(limit: Limit, rows: float) -> Limit:
    """The limit of this share of the rows, at the same rates."""
    return replace(
        limit,
        stored_bytes=round(limit.stored_bytes * rows),
        raw_bytes=round(limit.raw_bytes * rows),
        tensor_bytes=round(limit.tensor_bytes * rows),
    )


def share(limit: Limit, seconds: float, num_cores: int) -> float:
    """What share of the limit's speed an epoch of so many seconds on so many cores has."""
    return limit.seconds / num_cores / seconds


def in_units(limit: Limit) -> dict[str, Any]:
    """Megabytes, rates in GB/s, and milliseconds of one core."""
    return {
        "stored_mb": round(limit.stored_bytes / 1e6, 1),
        "raw_mb": round(limit.raw_bytes / 1e6, 1),
        "tensor_mb": round(limit.tensor_bytes / 1e6, 1),
        "copy_gb_per_s": round(limit.copy_rate / 1e9, 2),
        "decompress_gb_per_s": round(limit.decompress_rate / 1e9, 2),
        "one_core_ms": {name: round(1e3 * s, 1) for name, s in limit.parts_s.items()},
    }


def costs_of(epoch: Callable[..., Iterator[Columns]], paths: Sequence[str]) -> dict[str, Any]:
    """What the system tells of one epoch in this process.

    Args:
        epoch: `epoch(stats=dict)` reads all batches, and fills `stats` with the loader's own. It is
            run once.
        paths: The files that it reads.

    Returns:
        Milliseconds of: the clock; all threads in user and in system mode; the thread that takes
        batches; opening all files and parsing their footers; the loader's own clocks, which run
        on while a thread waits for a core. And the number of minor page faults, whose time is part
        of the system's.
    """
    stats = dict[str, Any]()
    before, cpu, wall = (
        resource.getrusage(resource.RUSAGE_SELF),
        time.thread_time(),
        time.perf_counter(),
    )
    for _ in epoch(stats=stats):
        pass
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = {
        "clock": wall,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
        "training_thread": cpu,
        "footers": least_s(lambda: _open(paths)),
        **{name: stats[name] for name in ("wait_s", "decode_s", "assemble_s")},
    }
    told = {f"{name.removesuffix('_s')}_ms": round(1e3 * s, 1) for name, s in seconds.items()}
    return {**told, "minor_faults": after.ru_minflt - before.ru_minflt}


def _batch_bytes(batch: Columns) -> int:
    parts = [part for of in batch.values() for part in (of if isinstance(of, tuple) else (of,))]
    return sum(np.asarray(part).nbytes for part in parts)


def _open(paths: Sequence[str]) -> None:
    for path in paths:
        with OpenFile(Path(path)) as footer:
            _ = footer.footer.leaves
