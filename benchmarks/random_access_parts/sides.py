"""The sides by name. A side makes its files or its memory once; each worker opens it and takes
batches of rows from it.
"""

from pathlib import Path
from typing import Protocol

from featstore.samples.indices import Array
from random_access_parts.in_memory import NumpyGather, PythonList, SharedTensor
from random_access_parts.key_values import (
    ArrayRecord,
    HuggingFace,
    HuggingFaceOneColumn,
    Lmdb,
)
from random_access_parts.rows import Rows
from random_access_parts.sqlite_files import QueryForEachRow, SampleStoreSide
from random_access_parts.tables import SampleDatasetOneColumn, SampleDatasetSide


class OpenSide(Protocol):
    """What a worker reads from."""

    def take(self, indices: Array) -> Array:
        """The rows at indices, in their order: int64 (num_indices, 40)."""


class Side(Protocol):
    """One way to hold the rows.

    Attributes:
        is_in_each_worker: Whether each worker holds all rows. Then fewer rows are measured, and the
            memory is scaled.
    """

    is_in_each_worker: bool

    def make(self, rows: Rows, directory: Path) -> None:
        """Makes what the workers open: files in `directory`, or memory of this process."""

    def open(self) -> OpenSide:
        """Opens it in a worker."""

    def close(self) -> None:
        """Lets go of what `make` made, before its directory is removed."""


SIDES: dict[str, type[Side]] = {
    "numpy gather": NumpyGather,
    "Python list in each worker": PythonList,
    "in-memory tensor": SharedTensor,
    "SQLite, a query for each row": QueryForEachRow,
    "featstore SampleStore": SampleStoreSide,
    "featstore SampleDataset": SampleDatasetSide,
    "featstore SampleDataset, one column": SampleDatasetOneColumn,
    "Hugging Face datasets": HuggingFace,
    "Hugging Face datasets, one column": HuggingFaceOneColumn,
    "LMDB": Lmdb,
    "ArrayRecord": ArrayRecord,
}
