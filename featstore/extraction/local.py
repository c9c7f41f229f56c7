"""Runs units in threads of this process, without a JVM."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from typing import TypeVar

import pyarrow as pa

from featstore.base.host import num_cores
from featstore.base.telemetry import span
from featstore.extraction.units.blocks import Blocks
from featstore.extraction.units.buckets import (
    Bucket,
    block_schema,
    cut_unit,
    plan_buckets,
    require_all,
    write_bucket,
)
from featstore.extraction.units.history_rows import cut_events, event_schema, row_times
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import OnRows, Progress, UnitReport, UnitTask, run_unit
from featstore.files.retry import thread_pool

_Item = TypeVar("_Item")


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
        if task.spec.cluster_by is not None:
            return self._run_by_key(task, units, progress)
        count = _counting(progress, len(units))

        def write(unit: Unit, on_rows: OnRows) -> list[UnitReport]:
            with span("extract.unit", unit=unit.index, rows_read=unit.num_rows):
                return run_unit(task, unit, on_rows=on_rows)

        with kept_memory():
            return self._run(units, write, partial(count, 0), partial(count, 1, 0))

    def _run_by_key(
        self, task: UnitTask, units: Sequence[Unit], progress: Progress
    ) -> list[UnitReport]:
        """Runs the passes of `cluster_by`, of which the first counts rows, the second files; and
        between them reads the events of histories that rows may see.
        """
        cuts, buckets = plan_buckets(units, task.spec.output.rows_per_file)
        count = _counting(progress, len(buckets))
        histories = {history.name: history for history in task.spec.histories}
        with contextlib.ExitStack() as stack:
            blocks = stack.enter_context(Blocks(block_schema(task.spec)))
            events = {
                name: stack.enter_context(Blocks(event_schema(history)))
                for name, history in histories.items()
            }

            def cut(item: tuple[Unit, range], on_rows: OnRows) -> list[UnitReport]:
                unit, numbers = item
                rows = cut_unit(task, unit, numbers)
                for block in rows:
                    blocks.add(block)
                    on_rows(block.rows.num_rows)
                return [rows.report(unit.partition)]

            def cut_log(item: tuple[str, Unit], on_rows: OnRows) -> list[UnitReport]:
                name, unit = item
                log = cut_events(histories[name], unit, times[name])
                for block in log:
                    events[name].add(block)
                    on_rows(0)
                return [log.report()]

            def write(bucket: Bucket, on_rows: OnRows) -> list[UnitReport]:
                return write_bucket(task, bucket, blocks, on_rows=on_rows, events=events)

            logs = [(name, unit) for name, units in task.events.items() for unit in units]
            with kept_memory():
                found = self._run(cuts, cut, partial(count, 0))
            times = {name: row_times(history, blocks) for name, history in histories.items()}
            # Not in kept memory: of blocks of many megabytes malloc keeps all, and reuses little.
            found += self._run(logs, cut_log)
            with kept_memory():
                written = self._run(buckets, write, on_item=partial(count, 1, 0))
                return require_all([*found, *written])

    def _run(
        self,
        items: Sequence[_Item],
        work: Callable[[_Item, OnRows], list[UnitReport]],
        count_rows: OnRows = lambda num_rows: None,
        on_item: Callable[[], None] = lambda: None,
    ) -> list[UnitReport]:
        """Does the work of each item in threads, and returns all reports.

        Args:
            items: What to work on.
            work: Calls the function that it is given with the rows of each batch, which counts them
                and ends it if another item failed.
            count_rows: Counts rows.
            on_item: Called after each item.
        """
        begin, stop = threading.Event(), threading.Event()

        def on_rows(num_rows: int) -> None:
            if stop.is_set():
                raise _StoppedError
            count_rows(num_rows)

        def run(item: _Item) -> list[UnitReport]:
            begin.wait()
            # Stops here if another item failed before this one began.
            on_rows(0)
            reports = work(item, on_rows)
            on_item()
            return reports

        with thread_pool(self._num_threads, "featstore-extract") as threads:
            try:
                # An interrupt during submit() can leave a started thread that the pool does not
                # know and cannot join. So no thread writes before all have been submitted.
                futures = [threads.submit(run, item) for item in items]
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


def _counting(progress: Progress, num_files_total: int) -> Callable[[int, int], None]:
    """A function that counts more files and rows, and reports progress."""
    lock, done = threading.Lock(), Counter[str]()

    def count(num_files: int, num_rows: int) -> None:
        # Progress is promised one call at a time, in order, so it is called under the lock.
        with lock:
            done.update(files=num_files, rows=num_rows)
            progress(done["files"], num_files_total, done["rows"])

    return count


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
