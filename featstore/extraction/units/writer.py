"""Writes batches to one data file: Parquet with row groups of an exact size."""

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from featstore.base.column_ids import stored_schema
from featstore.base.schema import SlotSchema
from featstore.extraction.units.encoding import COMPRESSION, parquet_options
from featstore.extraction.units.row_group_buffer import RowGroupBuffer
from featstore.files.storage import open_write
from featstore.histories.file_format import StoredHistory
from featstore.table.metadata import KEY, FileMetadata


@dataclass(frozen=True, kw_only=True)
class DataFileReport:
    """The written file.

    Attributes:
        num_rows: The number of rows.
        size_bytes: The size of the file.
        crc32: The CRC-32 of its bytes. Equal rows in equal order, with an equal spec, give equal
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
    histories: Sequence[StoredHistory] = (),
) -> Iterator["DataFileWriter"]:
    """Opens a writer of a data file. The file appears whole at the end of the block, or not at all
    if the block raises.

    Args:
        url: The file to write.
        schema: The columns of the batches.
        metadata: Stored in the footer.
        rows_per_row_group: The number of rows of each row group except the last.
        compression: `snappy` or `zstd`, for the columns that it shrinks.
        histories: Those whose lists the batches have, after the columns of the schema.
    """
    with open_write(url) as file:
        sink = _ChecksumSink(file)
        writer = DataFileWriter(sink, schema, metadata, rows_per_row_group, compression, histories)
        try:
            yield writer
            writer.close()
        finally:
            sink.detach()


class DataFileWriter:
    """Writes batches to one Parquet file. Made by `open_data_file`.

    Every row group but the last has exactly `rows_per_row_group` rows, whatever the sizes of the
    batches, unless it is written by `write_row_group`. Memory holds one row group. Not thread-safe.

    Attributes:
        columns: The columns of the batches.
    """

    def __init__(
        self,
        sink: "_ChecksumSink",
        schema: SlotSchema,
        metadata: FileMetadata,
        rows_per_row_group: int,
        compression: str = COMPRESSION,
        histories: Sequence[StoredHistory] = (),
    ) -> None:
        self._sink = sink
        self._compression = compression
        self._encodings, self._shared = dict[str, str](), list[str]()
        columns = schema.to_arrow()
        for history in histories:
            self._encodings |= history.encodings
            self._shared += history.list_paths
            columns = pa.schema([*columns, *history.hidden_fields])
        self.columns = columns
        self._stored = stored_schema(columns).with_metadata({KEY: metadata.to_json()})
        self._rows_per_row_group = rows_per_row_group
        self._buffer = RowGroupBuffer(columns, rows_per_row_group)
        self._num_rows = 0
        self._parquet: pq.ParquetWriter | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows passed to `write` so far."""
        return self._num_rows + self._buffer.num_rows

    @property
    def size_bytes(self) -> int:
        """The size of the file so far: of the row groups that are full."""
        return self._sink.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the next rows.

        Args:
            batch: Rows of any number, with the columns of the data file.

        Raises:
            ValueError: The batch has other columns, or a null where none is allowed.
        """
        first = 0
        while first < batch.num_rows:
            num_rows = min(self._rows_per_row_group - self._buffer.num_rows, batch.num_rows - first)
            self._buffer.append(batch.slice(first, num_rows))
            first += num_rows
            if self._buffer.num_rows == self._rows_per_row_group:
                self._write_row_group()

    def write_row_group(self, rows: pa.Table) -> None:
        """Writes the next rows, `rows_per_row_group` at most, as a row group of their own."""
        for batch in rows.to_batches():
            self._buffer.append(batch)
        self._write_row_group()

    def close(self) -> DataFileReport:
        """Writes the last row group and the footer. Further calls return the same report."""
        # A file without rows still gets its schema, in an empty row group.
        if self._buffer.num_rows or self._parquet is None:
            self._write_row_group()
        if self._parquet is not None and self._parquet.is_open:
            self._parquet.close()
        return DataFileReport(
            num_rows=self._num_rows, size_bytes=self._sink.tell(), crc32=self._sink.crc32
        )

    def _write_row_group(self) -> None:
        group = pa.Table.from_arrays(self._buffer.columns(self._stored.types), schema=self._stored)
        # Encodings are chosen from the first row group, so the file is opened with it.
        if self._parquet is None:
            options = parquet_options(group, self._compression, self._encodings, self._shared)
            self._parquet = pq.ParquetWriter(self._sink, self._stored, **options)
        self._parquet.write_table(group, row_group_size=max(group.num_rows, 1))
        self._num_rows += group.num_rows
        self._buffer.clear()


class _ChecksumSink(io.RawIOBase):
    """A binary file that computes the CRC-32 of the bytes written, and can be detached from its
    target.

    After `detach` further bytes are dropped: a Parquet writer that an error left open writes its
    footer when it is garbage-collected, and that must not reach a closed file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file
        self.crc32 = 0
        self._num_bytes = 0

    def write(self, data: Any) -> int:
        if self._file is not None:
            # isal computes it several times faster than zlib.
            self.crc32 = isal_zlib.crc32(data, self.crc32)
            self._file.write(data)
        self._num_bytes += len(data)
        return len(data)

    def detach(self) -> None:
        self._file = None

    def tell(self) -> int:
        return self._num_bytes

    def writable(self) -> bool:
        return True
