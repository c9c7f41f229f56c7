"""Units in threads of this process, without a JVM."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import pyarrow as pa

from featstore.extraction.raw import Unit
from featstore.extraction.unit import Progress, UnitReport, UnitTask, run_unit


class LocalRunner:
    """Runs units in threads of this process, by default one per core that it may use.

    Arrow, snappy, numpy and file I/O release the interpreter's lock: two threads on two cores did
    1.65 times the rows of one, and more than two processes, which start with imports and end with
    nothing shared.
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

        def run(unit: Unit) -> UnitReport:
            begin.wait()
            on_rows(0)
            report = run_unit(task, unit, on_rows=on_rows)
            totals.add(num_files=1)
            return report

        with kept_memory(), ThreadPoolExecutor(self._num_threads, "featstore-extract") as threads:
            try:
                # An interrupt while a thread starts would leave it unknown to the pool; so none
                # writes before all are known.
                futures = [threads.submit(run, unit) for unit in units]
                begin.set()
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                return [future.result() for future in done]
            except BaseException:
                stop.set()
                begin.set()
                threads.shutdown(wait=True, cancel_futures=True)
                raise


def num_cores() -> int:
    """The cores that this process may use; all of the machine's where the system does not say
    (macOS).
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _StoppedError(Exception):
    """A unit gives up because another one failed; never seen outside the runner."""


class _ProgressTotals:
    """Adds up what threads report, and passes the sums on, one call at a time."""

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
            self._progress(self._num_files, self._num_files_total, self._num_rows)


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Within the block Arrow takes memory from the C library, which keeps what one batch freed for
    the next.

    Arrow's own pool returns it to the system within milliseconds, and the system clears each page
    that it gives again: a sixth of an extraction of 400 slots. Of a process's threads all are
    concerned, and none is harmed.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
