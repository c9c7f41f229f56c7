"""The files that are read: nullable slots as Arrow writes them by default, drawn from a seed.

Of every five slots three are ids (int64), and one of the other two a list of ids for most fives and
a float32 for some, so that 200 slots are 120 ids, 30 floats and 50 lists, and 2,000 are ten times
that. Every third slot holds 5 % nulls. A label, `click`, comes beside them. Ids are hashed: any
int64 above 0, drawn from 100 to a million different ones. Lists hold 0 to 10 ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LABEL = "click"
_NULL_SHARE, _MAX_LIST = 0.05, 10
_VOCABULARIES = (100, 10_000, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Files of the same slots, and how many of the slots are read."""

    name: str
    num_files: int
    rows_per_file: int
    num_slots: int
    num_selected: int
    rows_per_row_group: int = 25_000

    @property
    def num_rows(self) -> int:
        return self.num_files * self.rows_per_file

    @property
    def slots(self) -> list[str]:
        """The slots' names: i for ids, f for floats, l for lists."""
        fifth = self.num_slots // 20
        counts = {"i": 12 * fifth, "f": 3 * fifth, "l": 5 * fifth}
        return [f"{kind}{number}" for kind, count in counts.items() for number in range(count)]

    @property
    def selected(self) -> list[str]:
        """The slots that are read beside the label: spread over the file, each kind in
        proportion.
        """
        step = self.num_slots // self.num_selected
        return [name for name in self.slots if int(name[1:]) % step == 0][: self.num_selected]

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read, the label last."""
        return [*self.selected, LABEL]

    def smaller(self, times: int) -> "Workload":
        """The first files of this one."""
        return replace(self, num_files=self.num_files // times)

    def write(self, directory: Path) -> list[str]:
        return write(self, directory)


NARROW = Workload(name="narrow", num_files=8, rows_per_file=50_000, num_slots=200, num_selected=40)
WIDE = Workload(name="wide", num_files=4, rows_per_file=25_000, num_slots=2_000, num_selected=400)


def write(workload: Workload, directory: Path) -> list[str]:
    """Writes the files that are not there yet; their paths."""
    folder = directory / f"{workload.name}-{workload.num_rows}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number}.parquet" for number in range(workload.num_files)]
    for number, path in enumerate(paths):
        if not path.exists():
            table = rows_of(workload, number)
            pq.write_table(
                table, path.with_suffix(".part"), row_group_size=workload.rows_per_row_group
            )
            path.with_suffix(".part").rename(path)
    return [str(path) for path in paths]


def rows_of(workload: Workload, file_number: int) -> pa.Table:
    """All columns of one of the files."""
    columns = {name: _column(name, workload, file_number) for name in workload.slots}
    clicks = np.random.default_rng(file_number).random(workload.rows_per_file) < 0.1
    return pa.table({**columns, LABEL: pa.array(clicks.astype(np.int8))})


def _column(name: str, workload: Workload, file_number: int) -> pa.Array:
    kind, number = name[0], int(name[1:])
    random, rows = np.random.default_rng((file_number, ord(kind), number)), workload.rows_per_file
    nulls = random.random(rows) < _NULL_SHARE if number % 3 == 0 else None
    if kind == "f":
        return pa.array(random.normal(size=rows).astype(np.float32), mask=nulls)
    if kind == "i":
        return pa.array(_ids(random, rows, number), mask=nulls)
    lengths = random.integers(0, _MAX_LIST + 1, rows)
    if nulls is not None:
        lengths[nulls] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = pa.array(_ids(random, int(offsets[-1]), number))
    return pa.ListArray.from_arrays(
        pa.array(offsets), ids, mask=None if nulls is None else pa.array(nulls)
    )


def _ids(random: np.random.Generator, count: int, number: int) -> np.ndarray:
    vocabulary = _VOCABULARIES[number // 3 % len(_VOCABULARIES)]
    ids = (random.zipf(1.2, count) % vocabulary + 1).astype(np.uint64)
    return ((ids * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)).astype(np.int64)


def leaf_columns(names: Sequence[str]) -> list[str]:
    """What `read_row_group` is asked for."""
    return [*names, LABEL]
