"""Reads and checks the footers of Parquet files before Arrow sees them.

pyarrow aborts the process for some damaged footers, and takes long to describe thousands of columns
of which a job reads a few. So a footer is walked and checked here, and Arrow gets one that is
written from it, with only the columns to be read. See `docs/design/parquet.md`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.intervals import Span
from featstore.base.processes import cached_property
from featstore.native.arrow import (
    ARROW_SCHEMA,
    MAGIC,
    STOP,
    file_without_data,
    row_group,
)
from featstore.native.checks import CHUNK, ROW_GROUP, checked_chunks
from featstore.native.damage import damage_as, first_line
from featstore.native.file_schema import SCHEMAS, FileSchema, Leaf
from featstore.native.format import (
    ABSENT,
    CHUNKS,
    ELEMENTS,
    FILE,
    KEY_VALUES,
    ORDERS,
    ROW_GROUPS,
    SLOTS,
    FooterError,
    Numbers,
    walk,
)

END_BYTES = 8  # at the end of a file: the footer's length, 4 bytes little-endian, and the magic
_ENCRYPTED_MAGIC = b"PARE"
# The bytes read first from the end of a file. A longer footer takes a second read.
_LIKELY_BYTES = 64 << 10
_FILE, _KEY_VALUE = SLOTS[FILE], SLOTS[KEY_VALUES]


class Chunks(NamedTuple):
    """Column chunks of several leaf columns in several row groups. Each attribute is int64
    (num_row_groups, num_leaves).

    Attributes:
        codec: The codec's number in the format.
        encodings: A bit for the number of each encoding.
        num_values: The number of values, nulls included.
        stored_bytes: The compressed size.
        raw_bytes: The decompressed size.
        first: Its first byte in the file.
        end: The end of its bytes in the file.
    """

    codec: Numbers
    encodings: Numbers
    num_values: Numbers
    stored_bytes: Numbers
    raw_bytes: Numbers
    first: Numbers
    end: Numbers


_ZSTD = 6  # the codec's number in the format
_CODEC, _FIRST = Chunks._fields.index("codec"), Chunks._fields.index("first")


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedFooter:
    """A footer that has passed all checks. Immutable, and safe to share between threads.

    Attributes:
        data: The bytes of the footer.
        tables: The tables of `walk`.
        file_schema: The schema.
        numbers: The fields of `Chunks`, int64 (num_row_groups, num_leaves, 7).
    """

    data: bytes
    tables: tuple[Numbers, ...]
    file_schema: FileSchema
    numbers: Numbers

    @property
    def num_rows(self) -> int:
        """The number of rows of the file."""
        return int(self.tables[FILE][0, _FILE["num_rows"]])

    @cached_property
    def row_group_rows(self) -> tuple[int, ...]:
        """The number of rows of each row group."""
        return tuple(self.tables[ROW_GROUPS][:, ROW_GROUP["num_rows"]].tolist())

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of all columns."""
        return self.file_schema.schema

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaf columns."""
        return self.file_schema.leaves

    @cached_property
    def key_values(self) -> dict[bytes, bytes]:
        """The key-value metadata, without Arrow's text of the schema."""
        pairs = _key_values(self.data, self.tables[KEY_VALUES])
        return {key: value for key, value in pairs.items() if key != ARROW_SCHEMA}

    @property
    def codecs(self) -> Numbers:
        """The codec of each column chunk, int64 (num_row_groups, num_leaves)."""
        return self.numbers[..., _CODEC]

    @property
    def spans(self) -> Numbers:
        """The first byte and end of each column chunk, int64 (num_row_groups, num_leaves, 2)."""
        return self.numbers[..., _FIRST:]

    def span(self, row_group: int, leaf: int) -> Span:
        """The first byte and end of the column chunk of a leaf column in a row group."""
        first, end = self.numbers[row_group, leaf, _FIRST:].tolist()
        return first, end

    def chunks_of(self, row_groups: Sequence[int], leaves: Sequence[int]) -> Chunks:
        """The column chunks of leaf columns in row groups.

        Args:
            row_groups: The indices of row groups.
            leaves: The indices of leaf columns.
        """
        numbers = self.numbers[np.array(row_groups, np.intp)[:, None], np.array(leaves, np.intp)]
        return Chunks._make(numbers.transpose(2, 0, 1))

    def room_bytes(self, row_groups: Sequence[int], leaves: Sequence[int]) -> list[int]:
        """The memory to decode the largest column chunk of each row group: its stored and its
        decompressed bytes.

        Chunks with Zstandard count twice, since pages are copied once more before and after they
        are decompressed.

        Args:
            row_groups: The indices of row groups.
            leaves: The indices of leaf columns.
        """
        chunks = self.chunks_of(row_groups, leaves)
        both = chunks.stored_bytes + chunks.raw_bytes
        found: list[int] = (both << (chunks.codec == _ZSTD)).max(axis=1, initial=0).tolist()
        return found

    def arrow_metadata(
        self,
        columns: Sequence[int] | None = None,
        *,
        with_statistics: bool = False,
    ) -> pq.FileMetaData:
        """A footer for Arrow with some of the columns.

        Args:
            columns: The indices of the columns in the schema; by default all.
            with_statistics: Whether to include the statistics of column chunks.

        Raises:
            FooterError: Arrow refuses it although it passed all checks.
        """
        columns = range(len(self.file_schema.roots)) if columns is None else columns
        leaves = [leaf for column in columns for leaf in self.file_schema.roots[column].leaves]
        file, orders = self.tables[FILE][0].tolist(), self.tables[ORDERS]
        created_by = self.data[file[_FILE["created_by"]] : file[_FILE["created_by.end"]]]
        has_orders = with_statistics and len(orders) == len(self.leaves)
        written = file_without_data(
            self.file_schema.bytes_of(columns),
            version=file[_FILE["version"]],
            num_rows=self.num_rows,
            row_groups=self._row_groups(leaves, with_statistics),
            created_by=None if file[_FILE["created_by"]] == ABSENT else created_by,
            orders=self._slices(orders[leaves, :2]) if has_orders else (),
        )
        with damage_as(lambda error: FooterError(first_line(error))):
            return pq.read_metadata(pa.BufferReader(written))

    def _row_groups(self, leaves: Sequence[int], with_statistics: bool) -> list[bytes]:
        """The bytes of row groups, whose column chunks hold what Arrow needs. Left out are the
        fields after it: statistics (unless asked for), counts of levels, and positions of indexes.
        Two stops, of the column's metadata and of the chunk, are appended again.
        """
        sizes = self.tables[ROW_GROUPS][:, [ROW_GROUP["raw_bytes"], ROW_GROUP["num_rows"]]].tolist()
        chunks = self.tables[CHUNKS].reshape(len(sizes), len(self.leaves), len(CHUNK))
        selected = chunks[:, leaves]
        bounds = selected[..., [CHUNK["begin"], CHUNK["cut"]]]
        if with_statistics:
            bounds[..., 1] = bounds[..., 1].clip(min=selected[..., CHUNK["statistics_end"]])
        return [
            row_group([chunk + STOP + STOP for chunk in self._slices(of)], *size)
            for of, size in zip(bounds, sizes, strict=True)
        ]

    def _slices(self, bounds: Numbers) -> list[bytes]:
        return [self.data[begin:end] for begin, end in bounds.tolist()]


def read_checked(source: BinaryIO, size_bytes: int | None = None) -> CheckedFooter:
    """Reads and checks the footer of an open file.

    Args:
        source: The file, or the last bytes of it.
        size_bytes: The size of the file, if `source` holds only its last bytes.

    Raises:
        FooterError: There is no footer, or it is damaged.
    """
    data, begin = _footer_bytes(source, size_bytes)
    tables = walk(data)
    file = tables[FILE][0].tolist()
    if file[_FILE["encryption"]] != ABSENT or file[_FILE["signing_key"]] != ABSENT:
        raise FooterError("expected no encryption, found some; write the file without it")
    file_schema = _file_schema(data, tables, file)
    numbers = checked_chunks(tables, file_schema, begin)
    return CheckedFooter(data=data, tables=tables, file_schema=file_schema, numbers=numbers)


def _file_schema(data: bytes, tables: tuple[Numbers, ...], file: list[int]) -> FileSchema:
    begin = file[_FILE["elements"]]
    arrow_text = _key_values(data, tables[KEY_VALUES]).get(ARROW_SCHEMA)
    elements = data[begin : file[_FILE["elements.end"]]]
    return SCHEMAS.get(elements, arrow_text, tables[ELEMENTS], begin)


def _footer_bytes(source: BinaryIO, size_bytes: int | None) -> tuple[bytes, int]:
    """The bytes of the footer, and the byte of the file at which it begins."""
    source_bytes = source.seek(0, os.SEEK_END)
    size_bytes = source_bytes if size_bytes is None else size_bytes
    tail = _last(source, source_bytes, min(source_bytes, _LIKELY_BYTES))
    if len(tail) < END_BYTES:
        raise FooterError(f"expected at least {END_BYTES} bytes, found {len(tail)}")
    magic, num_bytes = tail[-4:], int.from_bytes(tail[-END_BYTES:-4], "little")
    if magic == _ENCRYPTED_MAGIC:
        raise FooterError("expected no encryption, found some; write the file without it")
    if magic != MAGIC:
        raise FooterError(f"expected {MAGIC!r} at its end, found {magic!r}")
    if num_bytes + END_BYTES > source_bytes:
        found = source_bytes - END_BYTES
        raise FooterError(f"expected a footer of {num_bytes} bytes, found {found} before its end")
    if num_bytes + END_BYTES > len(tail):
        tail = _last(source, source_bytes, num_bytes + END_BYTES)
    return tail[-num_bytes - END_BYTES : -END_BYTES], size_bytes - num_bytes - END_BYTES


def _last(source: BinaryIO, source_bytes: int, num_bytes: int) -> bytes:
    source.seek(source_bytes - num_bytes)
    return read_on(source, num_bytes)


def read_on(source: BinaryIO, num_bytes: int) -> bytes:
    """So many bytes of a file from its position on, or fewer where it ends before. One call of the
    system, or of a store, may give fewer.
    """
    found = data = bytes(source.read(num_bytes))
    while data and len(found) < num_bytes:
        data = source.read(num_bytes - len(found))
        found += data
    return found


def _key_values(data: bytes, rows: Numbers) -> dict[bytes, bytes]:
    names = ("key", "key.end", "value", "value.end")
    spans_of = rows[:, [_KEY_VALUE[name] for name in names]].tolist()
    return {
        data[key:key_end]: b"" if value == ABSENT else data[value:value_end]
        for key, key_end, value, value_end in spans_of
    }
