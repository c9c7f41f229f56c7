"""What is measured: the tables, the scenes, and what is demanded of an epoch."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from makespan_parts.paces import Pace, Worker

IDEAL_S, BATCH_ROWS, SLOWDOWN = 10.0, 1024, 30.0
RESERVE_S, LEASE_S = 2.0, 4.0
MOST_OF_IDEAL, MOST_LEASES = 1.05, 1.5
SLOW, VICTIM = 0, 1
SCENES = ("together", "slow_first", "slow_for_a_while", "killed")


@dataclass(frozen=True, kw_only=True)
class Form:
    """A table: files of as many rows, in row groups of as many rows."""

    name: str
    num_files: int
    file_rows: int
    group_rows: int

    @property
    def num_rows(self) -> int:
        return self.num_files * self.file_rows

    def write(self, directory: Path) -> None:
        """Writes the files. The column `row` numbers the rows of the table."""
        directory.mkdir()
        for index in range(self.num_files):
            rows = np.arange(index * self.file_rows, (index + 1) * self.file_rows)
            values = np.random.default_rng(index).random(self.file_rows, np.float32)
            pq.write_table(
                pa.table({"x": values, "row": rows}),
                directory / f"{index:02}.parquet",
                row_group_size=self.group_rows,
            )


ONE_GROUP = Form(name="one_group", num_files=12, file_rows=27_000, group_rows=27_000)
MANY_GROUPS = Form(name="many_groups", num_files=16, file_rows=65_536, group_rows=8_192)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One epoch of three workers: of which table, in which scene, staged or read in place."""

    form: Form
    shuffle: bool
    scene: str
    remote: bool

    def __str__(self) -> str:
        place, order = "remote" if self.remote else "local", "shuffled" if self.shuffle else "plain"
        return f"{place} {self.form.name} {order} {self.scene}"

    def workers(self, begins_s: Sequence[float] = (0.0, 0.0, 0.0)) -> list[Worker]:
        """The slow one, the victim, and a fast one, that begin at these times."""
        is_short, is_killed = self.scene == "slow_for_a_while", self.scene == "killed"
        slow = Pace(slowdown=SLOWDOWN, slow_until_s=IDEAL_S / 3 if is_short else math.inf)
        workers = [Worker(pace=pace) for pace in (slow, Pace(), Pace())]
        if is_killed:
            workers[VICTIM] = replace(workers[VICTIM], killed_s=IDEAL_S / 2)
        return [
            replace(worker, begin_s=begin_s)
            for worker, begin_s in zip(workers, begins_s, strict=True)
        ]

    @property
    def work_s(self) -> float:
        """What workers that begin together do in `IDEAL_S`."""
        return sum(worker.work_s(IDEAL_S) for worker in self.workers())

    @property
    def seconds_per_row(self) -> float:
        """What a step of a fast worker takes."""
        return self.work_s / self.form.num_rows

    def limit_s(self, ideal_s: float, window_s: float) -> float:
        """How long the epoch may take.

        Args:
            ideal_s: How long it takes at best.
            window_s: How long staging and decoding one window takes, where files are remote.
        """
        slowest_batch_s = BATCH_ROWS * self.seconds_per_row * SLOWDOWN
        takeover_s = MOST_LEASES * LEASE_S if self.scene == "killed" else 0.0
        return MOST_OF_IDEAL * ideal_s + RESERVE_S + slowest_batch_s + takeover_s + window_s


def cells(*, small: bool) -> list[Cell]:
    """All cells, or twelve of them that have each table, order, scene and place."""
    every = [
        Cell(form=form, shuffle=shuffle, scene=scene, remote=remote)
        for remote, form, shuffle, scene in itertools.product(
            (False, True), (ONE_GROUP, MANY_GROUPS), (False, True), SCENES
        )
    ]
    return [cell for cell in every if not small or _is_of_small(cell)]


def _is_of_small(cell: Cell) -> bool:
    is_shuffled_of_many = cell.shuffle == (cell.form is MANY_GROUPS)
    if cell.remote:
        return not is_shuffled_of_many and cell.scene in ("together", "killed")
    return is_shuffled_of_many
