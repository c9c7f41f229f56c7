"""Which epochs are measured, what is demanded of them, and how their rows are counted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from makespan_parts.cells import IDEAL_S, MANY_GROUPS, ONE_GROUP, SCENES, Cell, Form, cells
from makespan_parts.epoch import Epoch, count, idle_s
from makespan_parts.paces import Pace, Worker, ideal_s
from makespan_parts.side import Found, figures

CELL = Cell(form=ONE_GROUP, shuffle=False, scene="together", remote=False)
KILLED = replace(CELL, scene="killed")
EPOCH = Epoch(
    finished=True,
    took_s=12.0,
    ideal_s=10.0,
    static_s=100.0,
    limit_s=14.0,
    rows_missing=0,
    rows_twice=0,
    rows_of_slow=27_000,
    fast_idle_s=1.0,
)


def test_twelve_cells_have_each_table_order_scene_and_place() -> None:
    every, small = cells(small=False), cells(small=True)
    assert len(every) == 32
    assert len(small) == 12
    assert {cell.scene for cell in small if not cell.remote} == set(SCENES)
    for name in ("form", "shuffle", "scene", "remote"):
        assert {getattr(cell, name) for cell in small} == {getattr(cell, name) for cell in every}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("form", [ONE_GROUP, MANY_GROUPS])
def test_steps_make_workers_that_begin_together_end_at_the_ideal(form: Form, scene: str) -> None:
    cell = replace(CELL, form=form, scene=scene)
    work_s = form.num_rows * cell.seconds_per_row
    assert ideal_s(cell.workers(), work_s) == pytest.approx(IDEAL_S)


def test_a_killed_worker_counts_for_half_of_the_time_and_has_a_lease_to_expire() -> None:
    rows = 1024 * 30
    assert CELL.work_s == pytest.approx(20 + 1 / 3)
    assert KILLED.work_s == pytest.approx(15 + 1 / 3)
    assert CELL.limit_s(10.0, 0.0) == pytest.approx(12.5 + rows * CELL.seconds_per_row)
    assert KILLED.limit_s(10.0, 0.5) == pytest.approx(19.0 + rows * KILLED.seconds_per_row)


def test_a_table_numbers_its_rows(tmp_path: Path) -> None:
    form = Form(name="tiny", num_files=2, file_rows=5, group_rows=3)
    form.write(tmp_path / "table")
    assert pq.read_table(tmp_path / "table")["row"].to_pylist() == list(range(10))
    assert pq.read_metadata(tmp_path / "table" / "01.parquet").num_row_groups == 2


def test_rows_that_are_missing_and_that_come_again_are_counted() -> None:
    assert count(np.array([0, 3, 3, 3, 4]), 6) == (3, 2)
    assert count(np.empty(0, np.int64), 2) == (2, 0)


def test_a_fast_worker_that_lives_idles_when_it_has_no_step() -> None:
    workers = [
        Worker(pace=Pace(slowdown=30.0)),
        Worker(pace=Pace(), killed_s=5.0),
        Worker(pace=Pace(), begin_s=1.0),
        Worker(pace=Pace()),
    ]
    assert idle_s(workers, [0.0, 5.0, 8.5, 9.0], 10.0) == 1.0


@pytest.mark.parametrize(
    ("cell", "change", "is_ok"),
    [
        (CELL, {}, True),
        (CELL, {"took_s": 14.1}, False),
        (CELL, {"rows_missing": 1}, False),
        (CELL, {"rows_missing": None, "finished": False}, False),
        (CELL, {"rows_twice": 1}, False),
        (KILLED, {"rows_twice": 1}, True),
    ],
)
def test_what_is_demanded(cell: Cell, change: dict[str, int | float | None], is_ok: bool) -> None:
    found = Found(cell=cell, epoch=replace(EPOCH, **change))  # type: ignore[arg-type]
    assert found.ok == is_ok
    assert ("MISSED" in str(found)) != is_ok


def test_figures_are_the_largest_of_a_scene_and_none_where_nothing_was_measured() -> None:
    remote = replace(CELL, remote=True)
    found = [
        Found(cell=CELL, epoch=EPOCH),
        Found(cell=CELL, epoch=replace(EPOCH, took_s=15.0)),
        Found(cell=remote, epoch=EPOCH),
    ]
    told = figures(found)
    assert told["local"] == {**dict.fromkeys(SCENES), "together": 1.5}
    assert told["remote"] == {**dict.fromkeys(SCENES), "together": 1.2}
    assert told["cells_missed"] == 1
    assert figures([])["cells_missed"] is None
