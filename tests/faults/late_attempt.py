"""A runner one of whose units is attempted twice."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask, run_unit


class LateAttempt:
    """Runs all units while a first attempt at the first one is under way, as if it were taken for
    dead; it ends when the test says so. To be used as a context, which ends its thread.
    """

    def __init__(self) -> None:
        self._begun, self._may_end = threading.Event(), threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._late: Future[list[UnitReport]]

    def __enter__(self) -> "LateAttempt":
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()

    def __call__(
        self, task: UnitTask, units: Sequence[Unit], progress: Progress
    ) -> list[UnitReport]:
        self._late = self._thread.submit(run_unit, task, units[0], 0, on_rows=self._wait)
        assert self._begun.wait(60)
        return [report for unit in units for report in run_unit(task, unit, attempt=1)]

    def _wait(self, num_rows: int) -> None:
        self._begun.set()
        assert self._may_end.wait(60)

    def end(self) -> str:
        """Lets the late attempt end, and returns the path of its file."""
        self._may_end.set()
        (report,) = self._late.result(60)
        return report.path
