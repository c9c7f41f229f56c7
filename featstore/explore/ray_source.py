"""A table as a datasource of Ray Data, whose read tasks may run on all hosts of a cluster."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from featstore.table.snapshot import FileList, Snapshot

Reader = Callable[[Snapshot], Iterator[pa.RecordBatch]]


class TableSource(Datasource):  # type: ignore[misc]
    """Read tasks of neighbouring data files, each with a snapshot of these files only.

    Args:
        snapshot: The table, with those of its data files that may hold matching rows.
        schema: The columns of the blocks.
        read: Gives the matching rows of a snapshot. The workers get it.
        is_exact: Whether all rows match.
    """

    def __init__(
        self, snapshot: Snapshot, schema: pa.Schema, read: Reader, *, is_exact: bool
    ) -> None:
        super().__init__()
        self._snapshot, self._schema = snapshot, schema
        self._read, self._is_exact = read, is_exact

    def get_name(self) -> str:
        """How Ray names the tasks."""
        return "featstore"

    def estimate_inmemory_data_size(self) -> None:
        """Unknown: it depends on the columns that are read."""

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """At most so many tasks, about equal in bytes."""
        return [
            self._task(files, per_task_row_limit)
            for files in divided(self._snapshot.data_files, parallelism)
        ]

    def _task(self, files: FileList, row_limit: int | None) -> ReadTask:
        metadata = BlockMetadata(
            num_rows=files.num_rows_told if self._is_exact else None,
            size_bytes=None,
            exec_stats=None,
            input_files=tuple(files.urls),
        )
        blocks = partial(_blocks, self._read, replace(self._snapshot, data_files=files))
        return ReadTask(blocks, metadata, self._schema, row_limit)


def _blocks(read: Reader, snapshot: Snapshot) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in read(snapshot))


def divided(files: FileList, num_parts: int) -> list[FileList]:
    """The files as at most so many lists of neighbours, about equal in bytes, none empty. Pure."""
    sizes = files.values("size_bytes")
    # A file belongs to the part in which its middle lies.
    middles = np.cumsum(sizes) - sizes / 2
    parts = (middles * num_parts / max(1, sizes.sum())).astype(np.int64)
    return [files.take(np.flatnonzero(parts == part)) for part in np.unique(parts)]


def dataset(source: TableSource) -> Any:
    """The source as a `ray.data.Dataset`, in the cluster that this process is connected to."""
    return ray.data.read_datasource(source)
