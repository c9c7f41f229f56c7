"""A second workload for `benchmarks/loader.py`, written apart from workload.py so that no trait of
one generator alone decides a figure: a plain directory without nulls, written with pyarrow's
default options.

Of every ten columns six are ids (int64), one a float and three lists of ids; a label, `bought`
(float32), comes beside them. Columns have 10 to a million different ids in turn, drawn evenly or
with a bias to the first. A file is one row group. In lists of columns with 300,000 ids and more the
dictionary outgrows pyarrow's limit of 1 MiB, and the rest of their pages is plain.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LABEL = "bought"
CARDINALITIES = (10, 300, 5_000, 40_000, 300_000, 1_000_000)
_KINDS, _COLUMNS_READ_OF, _MEAN_LENGTH = "iiifiiilll", 5, 8


@dataclass(frozen=True, kw_only=True)
class PlainWorkload:
    """Files of which every fifth column is read; a `Source` of `benchmarks/loader.py`."""

    num_files: int = 8
    rows_per_file: int = 50_000
    num_columns: int = 200

    @property
    def num_rows(self) -> int:
        return self.num_files * self.rows_per_file

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read, the label last."""
        return [f"c{number:03}" for number in range(0, self.num_columns, _COLUMNS_READ_OF)] + [
            LABEL
        ]

    def smaller(self, times: int) -> "PlainWorkload":
        """The first files of this one."""
        return replace(self, num_files=self.num_files // times)

    def write(self, directory: Path) -> list[str]:
        """Writes the files into a folder of `directory` unless they are there; their paths."""
        folder = directory / f"plain-{self.num_files}-{self.rows_per_file}-{self.num_columns}"
        if not folder.exists():
            part = folder.with_suffix(".part")
            part.mkdir(parents=True, exist_ok=True)
            for number in range(self.num_files):
                pq.write_table(self.rows_of(number), part / f"{number:04}.parquet")
            part.rename(folder)
        return sorted(str(path) for path in folder.iterdir())

    def rows_of(self, file_number: int) -> pa.Table:
        """All columns of one file."""
        draw = np.random.Generator(np.random.SFC64([file_number, self.num_columns]))
        names = (f"c{number:03}" for number in range(self.num_columns))
        columns = dict(zip(names, self._arrays(draw), strict=True))
        bought = (draw.random(self.rows_per_file) < 0.03).astype(np.float32)
        return pa.table({**columns, LABEL: bought})

    def _arrays(self, draw: np.random.Generator) -> Iterator[pa.Array]:
        for number in range(self.num_columns):
            block = number // _COLUMNS_READ_OF  # Columns of a block are alike; one of them is read.
            kind = _KINDS[block % len(_KINDS)]
            ids = _ids_of(number, CARDINALITIES[block % len(CARDINALITIES)])
            if kind == "f":
                yield pa.array(draw.gamma(2.0, size=self.rows_per_file).astype(np.float32))
            elif kind == "i":
                yield pa.array(ids[_places(draw, self.rows_per_file, len(ids), bias=2)])
            else:
                lengths = draw.poisson(_MEAN_LENGTH, self.rows_per_file)
                offsets = np.append(0, lengths.cumsum()).astype(np.int32)
                values = ids[_places(draw, int(offsets[-1]), len(ids), bias=1)]
                yield pa.ListArray.from_arrays(offsets, values)


def _ids_of(number: int, cardinality: int) -> np.ndarray:
    """The ids of a column, the same in all files; 0 is not among them, as it stands for missing."""
    return np.random.Generator(np.random.SFC64(number)).integers(1, 1 << 62, cardinality)


def _places(draw: np.random.Generator, count: int, cardinality: int, *, bias: int) -> np.ndarray:
    """Places in a column's ids: even with `bias` 1, else denser towards the first."""
    return (draw.random(count) ** bias * cardinality).astype(np.int64)
