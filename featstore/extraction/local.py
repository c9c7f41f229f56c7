"""Runs units in threads of this process, without a JVM."""

import contextlib
import threading
from collections import Counter
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
        begin, stop, lock = threading.Event(), threading.Event(), threading.Lock()
        done = Counter[str]()

        def count(**more: int) -> None:
            # Progress is promised one call at a time, in order, so it is called under the lock.
            with lock:
                done.update(more)
                progress(done["files"], len(units), done["rows"])

        def on_rows(num_rows: int) -> None:
            if stop.is_set():
                raise _StoppedError
            count(rows=num_rows)

        def run(unit: Unit) -> list[UnitReport]:
            begin.wait()
            # Stops here if another unit failed before this one began.
            on_rows(0)
            reports = run_unit(task, unit, on_rows=on_rows)
            count(files=1)
            return reports

        with kept_memory(), thread_pool(self._num_threads, "featstore-extract") as threads:
            try:
                # An interrupt during submit() can leave a started thread that the pool does not
                # know and cannot join. So no thread writes before all have been submitted.
                futures = [threads.submit(run, unit) for unit in units]
                begin.set()
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                return [report for future in ended for report in future.result()]
            except BaseException:
                # Running units stop at their next batch. `begin` is set too, so that threads which
                # still wait for it can end.
                stop.set()
                begin.set()
                threads.shutdown(wait=True, cancel_futures=True)
                raise


class _StoppedError(Exception):
    """Stops a unit because another one failed; never leaves the runner."""


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
