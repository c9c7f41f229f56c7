"""Runs units in threads of this process, without a JVM."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait

import pyarrow as pa

from featstore.base.host import num_cores
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask, run_unit
from featstore.files.retry import thread_pool


class LocalRunner:
    """Runs units in threads of this process, by default one per core available to it.

    Arrow, snappy, numpy and file I/O release the GIL. Two threads on two cores processed 1.65 times
    the rows of one thread, and more than two processes did: those must import everything first and
    share nothing.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads or num_cores()

    def __call__(
        self, task: UnitTask, units: Sequence[Unit], progress: Progress
    ) -> list[UnitReport]:
        begin, stop = threading.Event(), threading.Event()
        totals = _ProgressTotals(progress, len(units))

        def on_rows(num_rows: int) -> None:
            if stop.is_set():
                raise _StoppedError
            totals.add(num_rows=num_rows)

        def run(unit: Unit) -> list[UnitReport]:
            begin.wait()
            # Stops here if another unit failed before this one began.
            on_rows(0)
            reports = run_unit(task, unit, on_rows=on_rows)
            totals.add(num_files=1)
            return reports

        with kept_memory(), thread_pool(self._num_threads, "featstore-extract") as threads:
            try:
                # An interrupt during submit() can leave a started thread that the pool does not
                # know and cannot join. So no thread writes before all have been submitted.
                futures = [threads.submit(run, unit) for unit in units]
                begin.set()
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                return [report for future in done for report in future.result()]
            except BaseException:
                # Running units stop at their next batch. `begin` is set too, so that threads which
                # still wait for it can end.
                stop.set()
                begin.set()
                threads.shutdown(wait=True, cancel_futures=True)
                raise


class _StoppedError(Exception):
    """Stops a unit because another one failed; never leaves the runner."""


class _ProgressTotals:
    """Adds up the progress of all threads. Thread-safe; calls `progress` under its lock."""

    def __init__(self, progress: Progress, num_files_total: int) -> None:
        self._progress = progress
        self._num_files_total = num_files_total
        self._num_files = 0
        self._num_rows = 0
        self._lock = threading.Lock()

    def add(self, *, num_files: int = 0, num_rows: int = 0) -> None:
        with self._lock:
            self._num_files += num_files
            self._num_rows += num_rows
            # Called under the lock: progress is promised one call at a time, in order.
            self._progress(self._num_files, self._num_files_total, self._num_rows)


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Has Arrow allocate from the C library within the block.

    malloc keeps memory that one batch freed for the next one. Arrow's own pool returns it to the
    system within milliseconds, and the kernel then zeroes each page that it hands out again: one
    sixth of the time of an extraction with 400 slots. The default pool is a setting of the whole
    process; other threads use malloc too while the block runs, which is safe.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
