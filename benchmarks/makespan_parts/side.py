"""All cells, and their figures."""

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from makespan_parts.cells import MANY_GROUPS, ONE_GROUP, SCENES, Cell, cells
from makespan_parts.epoch import Epoch, Place, first_batch_s, run
from staging_parts.table import Remote, served

STORE = Remote(name="object store", latency_s=0.05, bytes_per_s=50e6)
PLACES = ("local", "remote")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a cell's epoch took."""

    cell: Cell
    epoch: Epoch

    @property
    def of_ideal(self) -> float:
        return self.epoch.took_s / self.epoch.ideal_s

    @property
    def ok(self) -> bool:
        """Whether it ended in time, with each row once; a killed worker's may come twice."""
        rows_once = not self.epoch.rows_twice or self.cell.scene == "killed"
        in_time = self.epoch.took_s <= self.epoch.limit_s
        return self.epoch.rows_missing == 0 and rows_once and in_time

    def __str__(self) -> str:
        epoch, ideal_s = self.epoch, self.epoch.ideal_s
        return (
            f"{self.cell}: {'' if epoch.finished else 'stopped at '}{self.of_ideal:.3f} of the "
            f"ideal {ideal_s:.1f} s (at most {epoch.limit_s / ideal_s:.3f}, static "
            f"{epoch.static_s / ideal_s:.1f}), {epoch.rows_missing} rows missing, "
            f"{epoch.rows_twice} twice, the slow one read "
            f"{epoch.rows_of_slow / self.cell.form.num_rows:.1%}, a fast one idled for "
            f"{epoch.fast_idle_s:.1f} s{'' if self.ok else ': MISSED'}"
        )

    def as_dict(self) -> dict[str, Any]:
        figures = {"of_ideal": self.of_ideal, **asdict(self.epoch)}
        rounded = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in figures.items()
        }
        return {"cell": str(self.cell), "ok": self.ok, **rounded}


def measure(*, small: bool) -> list[Found]:
    """Runs all cells (`small`: twelve), one after the other, and prints a line for each."""
    found = []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        urls = {}
        for form in (ONE_GROUP, MANY_GROUPS):
            form.write(Path(scratch) / form.name)
            urls[form.name] = stack.enter_context(served(Path(scratch) / form.name, STORE))
        for cell in cells(small=small):
            table = Path(scratch) / cell.form.name
            url = urls[cell.form.name] if cell.remote else None
            found.append(Found(cell=cell, epoch=_epoch(cell, table, url)))
            print(found[-1], flush=True)
    return found


def _epoch(cell: Cell, table: Path, url: str | None) -> Epoch:
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as together:
        first = Place(table=table, url=url, directory=Path(alone))
        window_s = first_batch_s(cell, first) if cell.remote else 0.0
        return run(cell, replace(first, directory=Path(together)), window_s)


def figures(found: Sequence[Found]) -> Mapping[str, Any]:
    """The largest ratio of each place and scene, None where there is no cell of it; and all cells."""
    largest = {
        place: {scene: _largest(found, place == "remote", scene) for scene in SCENES}
        for place in PLACES
    }
    missed = sum(not one.ok for one in found) if found else None
    return {**largest, "cells_missed": missed, "cells": [one.as_dict() for one in found]}


def _largest(found: Sequence[Found], remote: bool, scene: str) -> float | None:
    ratios = [one.of_ideal for one in found if (one.cell.remote, one.cell.scene) == (remote, scene)]
    return round(max(ratios), 3) if ratios else None
