"""A worker process of an epoch: `python -m makespan_parts.worker JSON`.

It prints `ready`, and begins when a line on its standard input says when the epoch began. It prints
`first` when it has its first batch. Each step is a sleep in proportion to the rows; the rows of a
batch are noted in a file when its step is over.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from featstore import FeatureLoader, open_table
from makespan_parts.paces import Pace
from staging_parts.table import at


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is told.

    Attributes:
        table: The directory of the files.
        url: The URL at which they are read, or None to read them in place.
        options: Further options of the loader.
        pace: Fields of its `Pace`.
        seconds_per_row: Of a fast worker's step.
        first_only: Whether it ends when it has its first batch.
        notes: Its file of rows is `{notes}.rows`, its steps are in `{notes}.steps`.
    """

    table: str
    url: str | None
    options: dict[str, Any]
    pace: dict[str, float]
    seconds_per_row: float
    first_only: bool
    notes: str


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    print("ready", flush=True)
    began_s = float(sys.stdin.readline())
    snapshot = open_table(job.table).snapshot
    table = at(snapshot, job.url) if job.url else snapshot
    with (
        FeatureLoader(table, slots=["x", "row"], **job.options) as loader,
        Path(f"{job.notes}.rows").open("ab", buffering=0) as rows,
        Path(f"{job.notes}.steps").open("a", buffering=1) as steps,
    ):
        step = Steps(Pace(**job.pace), job.seconds_per_row, began_s)
        for number, batch in enumerate(loader):
            if number == 0:
                print("first", flush=True)
                if job.first_only:
                    return
            slept_s = step.sleep(batch.num_rows)
            rows.write(batch["row"].numpy().tobytes())
            steps.write(f"{time.monotonic() - began_s} {batch.num_rows} {slept_s}\n")


class Steps:
    """Sleeps in proportion to rows. The host is busy, and a sleep that is too long is taken off the
    next ones."""

    def __init__(self, pace: Pace, seconds_per_row: float, began_s: float) -> None:
        self._pace, self._seconds_per_row, self._began_s = pace, seconds_per_row, began_s
        self._overslept_s = 0.0

    def sleep(self, num_rows: int) -> float:
        """Returns the seconds that the step takes by its pace."""
        begin_s = time.monotonic() - self._began_s - self._overslept_s
        end_s = self._pace.end_s(begin_s, num_rows * self._seconds_per_row)
        time.sleep(max(0.0, self._began_s + end_s - time.monotonic()))
        self._overslept_s = max(0.0, time.monotonic() - self._began_s - end_s)
        return end_s - begin_s


if __name__ == "__main__":
    main()
