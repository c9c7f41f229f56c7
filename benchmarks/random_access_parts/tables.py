"""Rows in a table, through `SampleDataset`."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.sampling.indices import Array
from featstore.sampling.sample_dataset import SampleDataset
from featstore.staging import Staging
from random_access_parts.rows import NUM_SLOTS, Rows

NAMES = [f"slot_{index}" for index in range(NUM_SLOTS)]


class SampleDatasetSide:
    """A Parquet file of 40 columns, decoded once by the parent. Its workers map the same memory,
    and a batch's columns are stacked into a matrix.
    """

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        (directory / "table").mkdir()
        schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in NAMES])
        with pq.ParquetWriter(directory / "table" / "rows.parquet", schema) as writer:
            for block in rows.blocks():
                writer.write_batch(pa.record_batch(list(block.T.copy()), schema=schema))
        staging = Staging(directory=str(directory / "staging"), budget_bytes=1 << 40)
        self._samples = SampleDataset(
            str(directory / "table"), slots=NAMES, staging=staging, progress=False
        )

    def open(self) -> "_Samples":
        return _Samples(self._samples)

    def close(self) -> None:
        self._samples.close()


class _Samples:
    def __init__(self, samples: SampleDataset) -> None:
        self._samples = samples

    def take(self, indices: Array) -> Array:
        batch = self._samples[indices]
        columns = [batch[name] for name in NAMES]
        return np.stack([np.asarray(column) for column in columns], axis=1)
