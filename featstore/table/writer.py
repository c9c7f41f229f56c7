"""Batches into one data file: Parquet with row groups of an exact size, written once, published
whole.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from featstore.files.storage import open_write
from featstore.schema import SlotSchema
from featstore.table.encoding import DATA_PAGE_VERSION, DICTIONARY_LIMIT_BYTES, choose_encodings
from featstore.table.metadata import KEY, FileMetadata
from featstore.table.waiting import WaitingRows

COMPRESSION = "snappy"


@dataclass(frozen=True, kw_only=True)
class DataFileReport:
    """What was written. `crc32` is that of the file's bytes; equal rows, order and spec give equal
    bytes.
    """

    num_rows: int
    size_bytes: int
    crc32: int


@contextlib.contextmanager
def open_data_file(
    url: str,
    schema: SlotSchema,
    metadata: FileMetadata,
    rows_per_row_group: int,
    compression: str = COMPRESSION,
) -> Iterator["DataFileWriter"]:
    """A writer of batches of `schema` to `url`. The file appears whole at the end of the block, or
    not at all.

    `compression` is `snappy` or `zstd`.
    """
    with open_write(url) as file:
        sink = _SummingSink(file)
        writer = DataFileWriter(sink, schema, metadata, rows_per_row_group, compression)
        try:
            yield writer
            writer.close()
        finally:
            sink.detach()


class DataFileWriter:
    """Writes batches into one Parquet file; made by `open_data_file`.

    Every row group but the last has exactly `rows_per_row_group` rows, however the batches are cut.
    At most one row group is held in memory, and no batch. Not thread-safe.
    """

    def __init__(
        self,
        sink: "_SummingSink",
        schema: SlotSchema,
        metadata: FileMetadata,
        rows_per_row_group: int,
        compression: str = COMPRESSION,
    ) -> None:
        self._sink = sink
        self._compression = compression
        columns = schema.to_arrow()
        self._stored = stored_schema(columns).with_metadata({KEY: metadata.to_json()})
        self._rows_per_row_group = rows_per_row_group
        self._waiting = WaitingRows(columns, rows_per_row_group)
        self._num_rows = 0
        self._parquet: pq.ParquetWriter | None = None

    @property
    def num_rows(self) -> int:
        """The rows taken so far."""
        return self._num_rows + self._waiting.num_rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows; a batch of any length, whose columns must be the data file's."""
        first = 0
        while first < batch.num_rows:
            taken = min(self._rows_per_row_group - self._waiting.num_rows, batch.num_rows - first)
            self._waiting.append(batch.slice(first, taken))
            first += taken
            if self._waiting.num_rows == self._rows_per_row_group:
                self._write_row_group()

    def close(self) -> DataFileReport:
        """Writes what is left and the footer. Only the first call writes; each call reports the
        same.
        """
        if self._waiting.num_rows or self._parquet is None:
            self._write_row_group()
        if self._parquet is not None and self._parquet.is_open:
            self._parquet.close()
        return DataFileReport(
            num_rows=self._num_rows, size_bytes=self._sink.tell(), crc32=self._sink.crc32
        )

    def _write_row_group(self) -> None:
        group = pa.Table.from_arrays(self._waiting.columns(self._stored.types), schema=self._stored)
        if self._parquet is None:
            self._parquet = self._new_parquet(group)
        self._parquet.write_table(group, row_group_size=max(group.num_rows, 1))
        self._num_rows += group.num_rows
        self._waiting.clear()

    def _new_parquet(self, first_row_group: pa.Table) -> pq.ParquetWriter:
        encodings = choose_encodings(first_row_group)
        return pq.ParquetWriter(
            self._sink,
            self._stored,
            compression=self._compression,
            use_dictionary=list(encodings.dictionary),
            column_encoding=dict(encodings.others),
            dictionary_pagesize_limit=DICTIONARY_LIMIT_BYTES,
            data_page_version=DATA_PAGE_VERSION,
            write_page_checksum=True,
        )


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as files hold them: a fixed width is stored as a list, its width in the field's
    metadata.

    Delta knows only lists, and readers that trust the Arrow types in the footer refuse a fixed
    width under a list.
    """
    return pa.schema(
        [
            _as_list(column) if pa.types.is_fixed_size_list(column.type) else column
            for column in schema
        ]
    )


def _as_list(column: pa.Field) -> pa.Field:
    return column.with_type(pa.list_(column.type.value_field))


class _SummingSink:
    """A binary file that knows the CRC-32 of what passed through, and that can let go of its
    target.

    After `detach` further bytes are dropped: a Parquet writer that an error left open writes its
    footer when it is collected, and that must not reach a closed file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file
        self.crc32 = 0
        self._num_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        if self._file is not None:
            self.crc32 = isal_zlib.crc32(data, self.crc32)
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

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False
