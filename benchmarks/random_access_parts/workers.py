"""Forked workers that take random batches all at once, and what they and their parent hold."""

import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from random_access_parts.rows import Rows
from shared_parts.process_tree import pss_bytes


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What workers did together.

    Attributes:
        pss_bytes: The proportional set size of the parent and of all workers: memory that several
            processes share counts once.
        rows_per_s: Rows of all workers together by the clock, from the first one's begin to the
            last one's end.
        cpu_us_per_row: CPU time of the workers for a row, user and system.
    """

    pss_bytes: int
    rows_per_s: float
    cpu_us_per_row: float


def measure(side: Any, rows: Rows, num_workers: int, batch_size: int, run_s: float) -> Measured:
    """Measures a side that was made; `None` is idle workers, which open nothing.

    Args:
        side: The side.
        rows: Its rows.
        num_workers: How many processes are forked.
        batch_size: Rows of a batch.
        run_s: How long they take batches.

    Raises:
        AssertionError: A worker got other rows than there are.
    """
    context = multiprocessing.get_context("fork")
    start = context.Barrier(num_workers + 1)
    workers: list[tuple[Any, Connection]] = []
    for seed in range(num_workers):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(side, rows, batch_size, run_s, seed, start, theirs)
        )
        process.start()
        theirs.close()
        workers.append((process, ours))
    try:
        start.wait(600)  # All have opened the side and checked a batch.
        found = [connection.recv() for _, connection in workers]
        held_bytes = sum(pss_bytes(pid) for pid in (os.getpid(), *(p.pid for p, _ in workers)))
        for _, connection in workers:
            connection.send(None)
    except (EOFError, threading.BrokenBarrierError) as error:
        raise AssertionError("a worker failed: its error is above") from error
    finally:
        for process, _ in workers:
            process.join(60)
    num_rows = sum(count for count, _, _, _ in found)
    # Not the sum of each one's rate: with more workers than cores they do not run all at once.
    wall_s = max(end_s for _, _, end_s, _ in found) - min(begin_s for _, begin_s, _, _ in found)
    return Measured(
        pss_bytes=held_bytes,
        rows_per_s=num_rows / wall_s,
        cpu_us_per_row=1e6 * sum(cpu_s for _, _, _, cpu_s in found) / max(1, num_rows),
    )


def _work(
    side: Any, rows: Rows, batch_size: int, run_s: float, seed: int, start: Any, results: Connection
) -> None:
    torch.set_num_threads(1)  # as a DataLoader does; with more, a forked worker can wait for ever
    try:
        opened = None if side is None else side.open()
        rng = np.random.default_rng(seed)
        if opened is not None:
            for _ in range(2):
                indices = rng.integers(0, rows.num_rows, batch_size)
                assert np.array_equal(opened.take(indices), rows.at(indices))
    except BaseException:
        start.abort()
        raise
    start.wait(600)
    num_rows, begin_s, begin_cpu_s = 0, time.monotonic(), time.process_time()
    while opened is not None:  # At least once, however late a busy machine lets it go on.
        opened.take(rng.integers(0, rows.num_rows, batch_size))
        num_rows += batch_size
        if time.monotonic() - begin_s >= run_s:
            break
    results.send((num_rows, begin_s, time.monotonic(), time.process_time() - begin_cpu_s))
    results.recv()  # The parent looks at what is held.
