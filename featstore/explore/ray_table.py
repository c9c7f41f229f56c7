"""A table as a datasource of Ray Data, whose read tasks may run on all hosts of a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from featstore.explore.table import Table, open_table, selected_schema
from featstore.reading.tables import arrow_schema
from featstore.table.snapshot import FileList, Snapshot


class RayTable(Datasource):  # type: ignore[misc]
    """The rows of `Table.to_batches` for `ray.data.read_datasource`.

    Each read task has some neighbouring data files, stages them as `to_batches` does, and gives a
    block for each of their row groups. The workers need featstore, and access to the table.

    Args:
        table: The table, or its URL.
        slots: Names and globs of slots; by default all.
        where: A predicate; by default every row is read.

    Raises:
        SelectionError: A name is unknown, or `where` cannot be parsed.
    """

    def __init__(
        self,
        table: Table | str | Path,
        slots: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__()
        opened = table if isinstance(table, Table) else open_table(table)
        self._snapshot = opened.snapshot
        self._files = FileList.of(opened.data_files(where))
        self._schema = arrow_schema(selected_schema(opened.schema, slots))
        self._slots, self._where = slots, where

    def get_name(self) -> str:
        """How Ray names the tasks."""
        return "featstore"

    def estimate_inmemory_data_size(self) -> None:
        """Unknown: it depends on the columns that are read."""

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """At most so many tasks, about equal in bytes."""
        # Without files one task, from which Ray has the columns.
        parts = divided(self._files, parallelism) or [self._files]
        return [self._task(files, per_task_row_limit) for files in parts]

    def _task(self, files: FileList, row_limit: int | None) -> ReadTask:
        metadata = BlockMetadata(
            num_rows=files.num_rows_told if self._where is None else None,
            size_bytes=None,
            exec_stats=None,
            input_files=tuple(files.urls),
        )
        part = replace(self._snapshot, data_files=files)
        blocks = partial(_blocks, part, self._slots, self._where)
        return ReadTask(blocks, metadata, self._schema, row_limit)


def _blocks(
    snapshot: Snapshot, slots: Sequence[str] | None, where: str | None
) -> Iterator[pa.Table]:
    for batch in Table(snapshot).to_batches(slots, where):
        yield pa.Table.from_batches([batch])


def divided(files: FileList, num_parts: int) -> list[FileList]:
    """The files as at most so many lists of neighbours, about equal in bytes, none empty. Pure."""
    sizes = files.values("size_bytes")
    # A file belongs to the part in which its middle lies.
    middles = np.cumsum(sizes) - sizes / 2
    parts = (middles * num_parts / max(1, sizes.sum())).astype(np.int64)
    return [files.take(np.flatnonzero(parts == part)) for part in np.unique(parts)]
