"""Rows in a table, through `SampleDataset`: a column for each value, or one column of lists."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.samples.indices import Array
from featstore.samples.sample_dataset import SampleDataset
from featstore.staging import Staging
from random_access_parts.rows import NUM_SLOTS, Rows

NAMES = [f"slot_{index}" for index in range(NUM_SLOTS)]
LISTS = "slots"


class SampleDatasetSide:
    """A Parquet file of 40 columns, decoded once by the parent. Its workers map the same memory,
    and a batch's columns are stacked into a matrix.
    """

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        (directory / "table").mkdir()
        path = directory / "table" / "rows.parquet"
        with pq.ParquetWriter(path, schema_of_columns()) as writer:
            for block in rows.blocks():
                writer.write_batch(batch_of_columns(block))
        self._samples = _samples(directory, NAMES)

    def open(self) -> "_Columns":
        return _Columns(self._samples)

    def close(self) -> None:
        self._samples.close()


class SampleDatasetOneColumn:
    """The same with one column of lists of 40, which is a matrix already."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        (directory / "table").mkdir()
        path = directory / "table" / "rows.parquet"
        with pq.ParquetWriter(path, schema_of_lists()) as writer:
            for block in rows.blocks():
                writer.write_batch(batch_of_lists(block))
        self._samples = _samples(directory, [LISTS])

    def open(self) -> "_Lists":
        return _Lists(self._samples)

    def close(self) -> None:
        self._samples.close()


def schema_of_columns() -> pa.Schema:
    """40 columns of an int64 each."""
    return pa.schema([pa.field(name, pa.int64(), nullable=False) for name in NAMES])


def batch_of_columns(block: Array) -> pa.RecordBatch:
    """Rows, int64 (num_rows, 40), as 40 columns."""
    return pa.record_batch(list(block.T.copy()), schema=schema_of_columns())


def schema_of_lists() -> pa.Schema:
    """One column of lists of 40 int64."""
    of = pa.field("element", pa.int64(), nullable=False)
    return pa.schema([pa.field(LISTS, pa.list_(of, NUM_SLOTS), nullable=False)])


def batch_of_lists(block: Array) -> pa.RecordBatch:
    """Rows, int64 (num_rows, 40), as one column of lists."""
    schema = schema_of_lists()
    values = pa.array(block.reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(values, type=schema.field(LISTS).type)
    return pa.record_batch([lists], schema=schema)


def _samples(directory: Path, slots: list[str]) -> SampleDataset:
    staging = Staging(directory=str(directory / "staging"), budget_bytes=1 << 40)
    return SampleDataset(str(directory / "table"), slots=slots, staging=staging, progress=False)


class _Columns:
    def __init__(self, samples: SampleDataset) -> None:
        self._samples = samples

    def take(self, indices: Array) -> Array:
        batch = self._samples[indices]
        columns = [batch[name] for name in NAMES]
        return np.stack([np.asarray(column) for column in columns], axis=1)


class _Lists:
    def __init__(self, samples: SampleDataset) -> None:
        self._samples = samples

    def take(self, indices: Array) -> Array:
        return np.asarray(self._samples[indices][LISTS])
