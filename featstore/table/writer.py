"""Batches into one data file: snappy Parquet with row groups of an exact size, written once, published whole."""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featstore.files import open_write
from featstore.schema import SlotSchema
from featstore.table.distinct import count_distinct
from featstore.table.metadata import KEY, FileMetadata

MAX_DISTINCT_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class DataFileReport:
    """What was written. `digest` is the sha256 of the file's bytes; equal rows, order and spec give equal bytes."""

    num_rows: int
    size_bytes: int
    digest: str


@contextlib.contextmanager
def open_data_file(url: str, schema: SlotSchema, metadata: FileMetadata, rows_per_row_group: int) -> Iterator["DataFileWriter"]:
    """A writer of batches of `schema` to `url`. The file appears whole at the end of the block, or not at all."""
    with open_write(url) as file:
        sink = _DigestingSink(file)
        writer = DataFileWriter(sink, schema, metadata, rows_per_row_group)
        try:
            yield writer
            writer.close()
        finally:
            sink.detach()


class DataFileWriter:
    """Writes batches into one Parquet file; made by `open_data_file`.

    Every row group but the last has exactly `rows_per_row_group` rows, however the batches are cut. At most one row
    group is held in memory. Not thread-safe.
    """

    def __init__(self, sink: "_DigestingSink", schema: SlotSchema, metadata: FileMetadata, rows_per_row_group: int) -> None:
        self._sink = sink
        self._schema = schema.to_arrow()
        self._stored = stored_schema(self._schema).with_metadata({KEY: metadata.to_json()})
        self._rows_per_row_group = rows_per_row_group
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0
        self._num_rows = 0
        self._parquet: pq.ParquetWriter | None = None

    @property
    def num_rows(self) -> int:
        """The rows taken so far."""
        return self._num_rows + self._num_waiting

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows; a batch of any length, whose columns must be the data file's."""
        self._waiting.append(batch)
        self._num_waiting += batch.num_rows
        while self._num_waiting >= self._rows_per_row_group:
            self._write_row_group(self._rows_per_row_group)

    def close(self) -> DataFileReport:
        """Writes what is left and the footer. Only the first call writes; each call reports the same."""
        if self._num_waiting or self._parquet is None:
            self._write_row_group(self._num_waiting)
        if self._parquet is not None and self._parquet.is_open:
            self._parquet.close()
        return DataFileReport(num_rows=self._num_rows, size_bytes=self._sink.tell(), digest=self._sink.hexdigest())

    def _write_row_group(self, num_rows: int) -> None:
        waiting = pa.Table.from_batches(self._waiting, self._schema)
        group, rest = waiting.slice(0, num_rows).cast(self._stored).combine_chunks(), waiting.slice(num_rows)
        self._waiting, self._num_waiting = rest.to_batches(), rest.num_rows
        if self._parquet is None:
            self._parquet = self._new_parquet(group)
        self._parquet.write_table(group, row_group_size=max(num_rows, 1))
        self._num_rows += num_rows

    def _new_parquet(self, first_row_group: pa.Table) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._sink,
            self._stored,
            compression="snappy",
            use_dictionary=dictionary_columns(first_row_group),
        )


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as files hold them: a fixed width is stored as a list, its width in the field's metadata.

    Delta knows only lists, and readers that trust the Arrow types in the footer refuse a fixed width under a list.
    """
    return pa.schema([_as_list(column) if pa.types.is_fixed_size_list(column.type) else column for column in schema])


def _as_list(column: pa.Field) -> pa.Field:
    return column.with_type(pa.list_(column.type.value_field))


def dictionary_columns(row_group: pa.Table) -> list[str]:
    """Leaf paths of the columns worth a dictionary: those whose share of distinct values is below 0.7.

    Parquet knows a list's values by their leaf path, `tags.list.element`; under the plain name the choice is ignored.
    """
    leaves = (leaf for column in row_group.schema for leaf in _leaves(column, row_group[column.name]))
    return [path for path, values in leaves if _is_repetitive(values)]


def _leaves(column: pa.Field, values: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    if not pa.types.is_nested(column.type):
        yield column.name, values
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield f"{column.name}.list.element", pc.list_flatten(values)


def _is_repetitive(values: pa.ChunkedArray) -> bool:
    if not len(values) or pa.types.is_boolean(values.type) or pa.types.is_nested(values.type):
        return False
    return bool(count_distinct(values) < MAX_DISTINCT_SHARE * len(values))


class _DigestingSink:
    """A binary file that digests what passes through, and that can let go of its target.

    After `detach` further bytes are dropped: a Parquet writer that an error left open writes its footer when it is
    collected, and that must not reach a closed file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        if self._file is not None:
            self._digest.update(data)
            self._file.write(data)
        self._num_bytes += len(data)
        return len(data)

    def detach(self) -> None:
        self._file = None

    def tell(self) -> int:
        return self._num_bytes

    def flush(self) -> None:
        """Nothing to do: the target is flushed when it is published."""

    def close(self) -> None:
        self.closed = True

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False
