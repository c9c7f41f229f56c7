"""More workloads for `benchmarks/loader.py`, written apart from workload.py so that no trait of one
generator alone decides a figure: plain directories without nulls, written with pyarrow's default
options.

Columns have 10 to a million different ids in turn, drawn evenly or with a bias to the first; a
label, `bought` (float32), comes beside them.

`PlainWorkload()`: of every ten columns six are ids (int64), one a float and three lists of ids. A
file is one row group. In lists of columns with 300,000 ids and more the dictionary outgrows
pyarrow's limit of 1 MiB, and the rest of their pages is plain.

`DLRM` has the shape of the DLRM workload of MLPerf Storage v3: 200 columns without lists in row
groups of 8,192 rows, of which 26 ids, 13 floats and the label are read, in batches of 2,048. Ids
are rows of embedding tables, not hashes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LABEL = "bought"
CARDINALITIES = (10, 300, 5_000, 40_000, 300_000, 1_000_000)
_COLUMNS_READ_OF, _MEAN_LENGTH = 5, 8


@dataclass(frozen=True, kw_only=True)
class PlainWorkload:
    """Files of which the first of every five columns is read; a `Source` of `benchmarks/loader.py`.

    Attributes:
        num_columns: Beside the label.
        kinds: Of the blocks of five columns, in turn: ids (`i`), floats (`f`), lists of ids (`l`).
        rows_per_row_group: None makes a file one row group.
        id_bits: Ids are below two to that power.
    """

    name: str = "plain"
    num_files: int = 8
    rows_per_file: int = 50_000
    num_columns: int = 200
    kinds: str = "iiifiiilll"
    rows_per_row_group: int | None = None
    id_bits: int = 62

    @property
    def num_rows(self) -> int:
        return self.num_files * self.rows_per_file

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read, the label last."""
        blocks = range(self.num_columns // _COLUMNS_READ_OF)
        return [*(f"c{block * _COLUMNS_READ_OF:03}" for block in blocks), LABEL]

    def smaller(self, times: int) -> "PlainWorkload":
        """The first files of this one."""
        return replace(self, num_files=self.num_files // times)

    def write(self, directory: Path) -> list[str]:
        """Writes the files into a folder of `directory` unless they are there; their paths."""
        folder = directory / f"{self.name}-{self.num_files}-{self.rows_per_file}-{self.num_columns}"
        if not folder.exists():
            part = folder.with_suffix(".part")
            part.mkdir(parents=True, exist_ok=True)
            for number in range(self.num_files):
                pq.write_table(
                    self.rows_of(number),
                    part / f"{number:04}.parquet",
                    row_group_size=self.rows_per_row_group,
                )
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
            kind = self.kinds[block % len(self.kinds)]
            ids = _ids_of(number, CARDINALITIES[block % len(CARDINALITIES)], self.id_bits)
            if kind == "f":
                yield pa.array(draw.gamma(2.0, size=self.rows_per_file).astype(np.float32))
            elif kind == "i":
                yield pa.array(ids[_places(draw, self.rows_per_file, len(ids), bias=2)])
            else:
                lengths = draw.poisson(_MEAN_LENGTH, self.rows_per_file)
                offsets = np.append(0, lengths.cumsum()).astype(np.int32)
                values = ids[_places(draw, int(offsets[-1]), len(ids), bias=1)]
                yield pa.ListArray.from_arrays(offsets, values)


PLAIN = PlainWorkload()
PLAIN_WIDE = PlainWorkload(num_files=4, rows_per_file=25_000, num_columns=2_000)
DLRM = PlainWorkload(
    name="dlrm",
    rows_per_file=131_072,
    num_columns=199,
    kinds="iififi",
    rows_per_row_group=8_192,
    id_bits=25,
)


def _ids_of(number: int, cardinality: int, bits: int) -> np.ndarray:
    """The ids of a column, the same in all files; 0 is not among them, as it stands for missing."""
    return np.random.Generator(np.random.SFC64(number)).integers(1, 1 << bits, cardinality)


def _places(draw: np.random.Generator, count: int, cardinality: int, *, bias: int) -> np.ndarray:
    """Places in a column's ids: even with `bias` 1, else denser towards the first."""
    return (draw.random(count) ** bias * cardinality).astype(np.int64)
