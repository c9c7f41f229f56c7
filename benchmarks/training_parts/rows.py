"""The rows of an ads log after extraction, drawn from a seed: 400 slots, of which a job reads 40.

Of twenty slots twelve are ids (int64), three floats and five lists of ids. Every third scalar slot
misses 5 % of its values, as 0 or NaN; lists hold 1 to 10 ids. Ids are hashed, of 100 to a million
different ones. The rows are written as featstore writes them, required columns in Parquet with
snappy, and as TFRecord without and with gzip, a file for each file, with the same rows in the same
order. Names are short, which helps TFRecord: it repeats them in each row.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from size_parts.tfrecord import examples, write_records

LABEL = "click"
FORMATS = {"parquet": ".parquet", "tfrecord": ".tfrecord", "tfrecord-gzip": ".tfrecord.gz"}
_MISSING_SHARE, _MOST_ELEMENTS, _GZIP_LEVEL = 0.05, 10, 6
_VOCABULARIES = (100, 10_000, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class AdsRows:
    """Files of these rows.

    Attributes:
        num_files: How many files.
        file_rows: The rows of each, which are one row group.
        num_slots: The slots that are stored, a multiple of 20.
        num_selected: The slots that are read, which divides `num_slots`.
    """

    num_files: int
    file_rows: int
    num_slots: int = 400
    num_selected: int = 40

    @property
    def num_rows(self) -> int:
        return self.num_files * self.file_rows

    @property
    def slots(self) -> list[str]:
        """All names: i for ids, f for floats, l for lists."""
        part = self.num_slots // 20
        counts = {"i": 12 * part, "f": 3 * part, "l": 5 * part}
        return [f"{kind}{number}" for kind, count in counts.items() for number in range(count)]

    def selected(self, kind: str) -> list[str]:
        """The slots of a kind that are read, spread over the stored ones."""
        step = self.num_slots // self.num_selected
        return [name for name in self.slots if name[0] == kind and int(name[1:]) % step == 0]

    def write(self, directory: Path) -> dict[str, Path]:
        """Writes what is not there yet; the folder of each format."""
        folders = {name: directory / f"{name}-{self.num_rows}" for name in FORMATS}
        for index in range(self.num_files):
            paths = {
                name: folders[name] / f"part-{index:02}{suffix}" for name, suffix in FORMATS.items()
            }
            if not all(path.exists() for path in paths.values()):
                _write(self._table(index), paths)
        return folders

    def _table(self, index: int) -> pa.Table:
        draw = np.random.default_rng(index)
        columns = dict(self._columns(index))
        clicks = (draw.random(self.file_rows) < 0.1).astype(np.float32)
        fields = [pa.field(name, of.type, nullable=False) for name, of in columns.items()]
        schema = pa.schema([*fields, pa.field(LABEL, pa.float32())])
        return pa.table([*columns.values(), pa.array(clicks)], schema=schema)

    def _columns(self, index: int) -> Iterator[tuple[str, pa.Array]]:
        for name in self.slots:
            kind, number = name[0], int(name[1:])
            draw = np.random.default_rng((index, ord(kind), number))
            is_missing = (draw.random(self.file_rows) < _MISSING_SHARE) & (number % 3 == 0)
            if kind == "f":
                values = draw.normal(size=self.file_rows).astype(np.float32)
                yield name, pa.array(np.where(is_missing, np.float32(np.nan), values))
            elif kind == "i":
                yield name, pa.array(np.where(is_missing, 0, _ids(draw, self.file_rows, number)))
            else:
                lengths = draw.integers(1, _MOST_ELEMENTS + 1, self.file_rows)
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                element = pa.field("element", pa.int64(), nullable=False)
                ids = _ids(draw, int(offsets[-1]), number)
                yield name, pa.ListArray.from_arrays(offsets, ids, type=pa.list_(element))


def _ids(draw: np.random.Generator, count: int, number: int) -> np.ndarray:
    """Hashed ids, few of them frequent: int64 (count,), above 0."""
    vocabulary = _VOCABULARIES[number % len(_VOCABULARIES)]
    ids = (draw.zipf(1.2, count) % vocabulary + 1).astype(np.uint64)
    return ((ids * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)).astype(np.int64)


def _write(rows: pa.Table, paths: dict[str, Path]) -> None:
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = {name: path.with_suffix(".part") for name, path in paths.items()}
    pq.write_table(rows, partial["parquet"], row_group_size=len(rows), compression="snappy")
    with partial["tfrecord"].open("wb") as sink:
        write_records(sink, examples(rows))
    with gzip.open(partial["tfrecord-gzip"], "wb", compresslevel=_GZIP_LEVEL) as packed:
        packed.write(partial["tfrecord"].read_bytes())
    for name, path in partial.items():
        path.rename(paths[name])
