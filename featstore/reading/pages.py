"""Decodes slots' column chunks of local files with the compiled kernels: into values without nulls,
in one pass.

Arrow spends most of a row group's time on lists: it decodes levels, builds a validity bitmap, and
then copies values without the nulls. The kernels write directly what a batch holds: a null scalar
becomes the missing mark, a null list a list of one mark, an empty list stays empty, null elements
are dropped. They support what Spark, Arrow and featstore write: int64 and float32, scalars and
lists of them, plain or dictionary-encoded, V1 and V2 pages, snappy, Zstandard or no compression.
Arrow reads, or refuses, everything else and everything that is damaged. Formats:
parquet.apache.org/docs/file-format.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from featstore._native.loading import KERNELS
from featstore.intervals import aligned
from featstore.parquet.bounds import max_page_bytes
from featstore.parquet.footers import Chunk
from featstore.reading.buffers import Array, missing_mark
from featstore.reading.file_columns import FileColumns
from featstore.reading.open_file import OpenFile
from featstore.schema import Slot, SlotKind

_CODECS = {0, 1, 6}  # none, snappy, Zstandard
# One bit for each encoding by its number in the format: PLAIN, PLAIN_DICTIONARY and RLE_DICTIONARY
# of values, RLE and BIT_PACKED of levels.
_ENCODINGS = 1 << 0 | 1 << 2 | 1 << 8 | 1 << 3 | 1 << 4
_PHYSICAL = {SlotKind.ID: "INT64", SlotKind.FLOAT: "FLOAT"}
_MOST_VALUES = 2**31 - 1  # The offsets of the kernels have 32 bits.
# What the kernels return instead of a number of values: the column cannot be decoded by them; or
# pages of row group i (of those that are read) claim too much, as -2 - i.
_NOT_READ, _BEYOND_FIRST = -1, -2
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Snappy copies 16 bytes at a time, so decompression may write behind the end of a page.
_SLOP_BYTES = 64

Take = Callable[[int], Array]


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A slot's column, described for the kernels.

    Attributes:
        name: Its name in the file.
        place: The number of its leaf column.
        type: Its Arrow type.
        mark: Bytes of the slot's missing mark.
        max_repetition: Its maximum repetition level: 1 for lists, otherwise 0.
        max_definition: Its maximum definition level.
        null_below: A definition level below this means that the row itself is null.
    """

    name: str
    place: int
    type: pa.DataType
    mark: bytes
    max_repetition: int
    max_definition: int
    null_below: int


class PageReader:
    """Decodes the pages of those slot columns that the kernels support.

    All columns are decoded in one call that releases the GIL. Zstandard pages, which Arrow's codec
    decompresses, take it again for a moment.

    Args:
        file: An open file, which the caller closes. A remote file has no such columns.
        slots: The slots to decode.
        columns: Where they are in the file.
        take: Gives memory of at least so many bytes, uint8, in which all columns of one call lie;
            they keep it alive together. None: each column has its own.
    """

    def __init__(
        self,
        file: OpenFile,
        slots: Iterable[Slot],
        columns: FileColumns,
        take: Take | None = None,
    ) -> None:
        self._file, self._take = file, take
        self._columns: list[_Column] = []
        if KERNELS is not None and file.is_local and sys.byteorder == "little":
            self._columns += [
                column for slot in slots if (column := _column(file, slot, columns)) is not None
            ]

    def read(
        self, row_groups: Sequence[int], num_threads: int = 1, order: Array | None = None
    ) -> dict[str, pa.Array]:
        """Decodes columns of these row groups.

        Args:
            row_groups: The row groups.
            num_threads: In how many threads.
            order: As of `RowGroupReader.read`.

        Returns:
            The columns without nulls, by their names in the file. Those that the kernels cannot
            decode are left out, for Arrow to read.

        Raises:
            StateError: Reading was cancelled.
            DataFileError: The pages of a column claim more than the footer allows. Arrow must not
                read them either.
        """
        try:
            found = self._decoded(row_groups, num_threads, order)
        except (ValueError, OverflowError, MemoryError):
            return {}  # Arrow reads the columns instead, and reports what is wrong.
        self._file.require_not_cancelled()
        for out, num_values in found:
            if num_values < _NOT_READ:
                raise self._file.beyond_bounds(row_groups[_BEYOND_FIRST - num_values], out.name)
        return {
            out.name: out.array(num_values) for out, num_values in found if num_values != _NOT_READ
        }

    def _decoded(
        self, row_groups: Sequence[int], num_threads: int, order: Array | None
    ) -> "list[tuple[_Out, int]]":
        """Each column, with its number of values, or the negative code that the kernels return."""
        outs, rows = (
            self._outs(row_groups),
            [self._file.row_group_rows[index] for index in row_groups],
        )
        if not outs:
            return []
        assert KERNELS is not None
        num_threads = min(num_threads, len(outs))
        room_bytes = max(out.room_bytes + (0 if order is None else out.size_bytes) for out in outs)
        found = KERNELS.decode_columns(
            self._file.descriptor,
            np.array([out.chunks for out in outs], np.int64),
            np.array(rows, np.int64),
            b"" if order is None else order.astype(np.uint32),
            tuple(out.buffers for out in outs),
            pa.allocate_buffer(room_bytes * num_threads),
            num_threads,
            self._file.cancelled,
            not self._file.is_checked,
            _decompressed,
        )
        return list(zip(outs, found, strict=True))

    def _outs(self, row_groups: Sequence[int]) -> "list[_Out]":
        """The columns to decode, the longest first, so that threads end at about the same time."""
        if not self._columns or not row_groups:
            return []
        num_rows = sum(self._file.row_group_rows[index] for index in row_groups)
        chunks = [
            [self._file.chunk(index, column.place) for index in row_groups]
            for column in self._columns
        ]
        known = [
            (column, of, _sizes(column, of, num_rows))
            for column, of in zip(self._columns, chunks, strict=True)
            if _are_known(of)
        ]
        if not known:
            return []
        memories = allocated([sizes for _, _, sizes in known], self._take)
        outs = [
            _Out(column, of, num_rows, memory)
            for (column, of, _), memory in zip(known, memories, strict=True)
        ]
        return sorted(outs, key=lambda out: -out.num_values)


def _decompressed(page: bytes, size_bytes: int) -> bytes:
    """A decompressed Zstandard page; b"" if its size is not `size_bytes`, which Arrow's codec would
    not report.
    """
    found: bytes
    if _content_bytes(page) == size_bytes:  # The codec compares this size with the real one.
        found = pa.decompress(page, size_bytes, "zstd", asbytes=True)
        return found
    with pa.CompressedInputStream(pa.BufferReader(page), "zstd") as stream:
        found = stream.read(size_bytes + 1)
    return found if len(found) == size_bytes else b""


def _content_bytes(frame: bytes) -> int | None:
    """The content size in the header of a Zstandard frame; None if it has none. See RFC 8878,
    section 3.1.1.1.
    """
    if len(frame) < 5 or frame[:4] != _ZSTD_MAGIC:
        return None
    flags = frame[4]
    is_single, kind = flags >> 5 & 1, flags >> 6
    first = 6 - is_single + (0, 1, 2, 4)[flags & 3]
    width = (is_single, 2, 4, 8)[kind]
    if not width or len(frame) < first + width:
        return None
    return int.from_bytes(frame[first : first + width], "little") + (256 if kind == 1 else 0)


def _are_known(chunks: list[Chunk]) -> bool:
    is_known = all(chunk.codec in _CODECS and not chunk.encodings & ~_ENCODINGS for chunk in chunks)
    return is_known and sum(chunk.num_values for chunk in chunks) <= _MOST_VALUES


def _column(file: OpenFile, slot: Slot, columns: FileColumns) -> _Column | None:
    """The slot's column; None if the kernels do not support it."""
    name = columns.slots[slot.name]
    if (
        name is None
        or name in columns.others.values()
        or slot.width is not None
        or len(columns.places[name]) != 1
    ):
        return None
    place, field = columns.places[name][0], file.schema.field(name)
    leaf = file.leaf(place)
    is_list = pa.types.is_list(field.type)
    element = field.type.value_field if is_list else field
    nulls = int(field.nullable)
    max_definition = nulls + 1 + element.nullable if is_list else nulls
    wanted = pa.int64() if slot.kind is SlotKind.ID else pa.float32()
    levels = (int(is_list), max_definition)
    is_as_said = (
        f"{leaf.path}.".startswith(f"{name}.")
        and leaf.physical_type == _PHYSICAL[slot.kind]
        and levels == (leaf.max_repetition, leaf.max_definition)
    )
    if is_list is not slot.is_list or element.type != wanted or not is_as_said:
        return None
    return _Column(
        name=name,
        place=place,
        type=field.type,
        mark=missing_mark(slot),
        max_repetition=levels[0],
        max_definition=max_definition,
        null_below=nulls,
    )


class ColumnMemory(NamedTuple):
    """Memory of a column's offsets and values, as writable views and as Arrow buffers."""

    offsets_view: memoryview
    values_view: memoryview
    offsets: pa.Buffer
    values: pa.Buffer


class _Out:
    """The column chunks to decode, with memory for their values and, for lists, their offsets."""

    def __init__(
        self, column: _Column, chunks: list[Chunk], num_rows: int, memory: ColumnMemory
    ) -> None:
        self._column, self._num_rows, self._memory = column, num_rows, memory
        self.num_values = sum(chunk.num_values for chunk in chunks)
        width = len(column.mark)
        self.chunks = [
            (
                chunk.first,
                chunk.stored_bytes,
                chunk.codec,
                chunk.num_values,
                max_page_bytes(chunk, width),
            )
            for chunk in chunks
        ]
        self.room_bytes = max(_room_bytes(chunk, width) for chunk in chunks)

    @property
    def name(self) -> str:
        return self._column.name

    @property
    def size_bytes(self) -> int:
        """The memory of its offsets and values, each in whole 64 bytes, and of aligning them."""
        memory = self._memory
        return aligned(memory.offsets.size) + aligned(memory.values.size) + aligned(1)

    @property
    def buffers(self) -> tuple[bytes, int, int, int, memoryview, memoryview]:
        """The column's description for the kernels, and the memory into which they decode."""
        of, memory = self._column, self._memory
        views = memory.offsets_view, memory.values_view
        return of.mark, of.max_repetition, of.max_definition, of.null_below, *views

    def array(self, num_values: int) -> pa.Array:
        """The column, once `num_values` values are decoded."""
        type_ = self._column.type
        value_type = type_.value_type if self._column.max_repetition else type_
        values = pa.Array.from_buffers(value_type, num_values, [None, self._memory.values], 0)
        if not self._column.max_repetition:
            return values
        return pa.Array.from_buffers(
            type_, self._num_rows, [None, self._memory.offsets], 0, children=[values]
        )


def _sizes(column: _Column, chunks: list[Chunk], num_rows: int) -> tuple[int, int]:
    """Bytes of the column's offsets and of its values."""
    num_values = sum(chunk.num_values for chunk in chunks)
    offset_bytes = (num_rows + 1) * 4 if column.max_repetition else 0
    return offset_bytes, num_values * len(column.mark)


def allocated(sizes: Sequence[tuple[int, int]], take: Take | None) -> list[ColumnMemory]:
    """Allocates memory for columns, given the bytes of each one's offsets and values.

    Both lie in one allocation, since each allocation by Arrow may lose the GIL to another thread.
    Under sanitizers each has its own, so that a write beyond its end is detected
    (fuzz/separate.py).

    Args:
        sizes: Bytes of offsets and bytes of values.
        take: As of `PageReader`.
    """
    if take is None:
        buffers = [pa.allocate_buffer(aligned(offsets) + values) for offsets, values in sizes]
        parts = [(memoryview(buffer), buffer) for buffer in buffers]
    else:
        ends = list(accumulate(aligned(offsets) + aligned(values) for offsets, values in sizes))
        memory = take(ends[-1])
        shared = pa.py_buffer(memory)
        parts = [
            (memory.data[begin:end], shared.slice(begin, end - begin))
            for begin, end in pairwise([0, *ends])
        ]
    return [_column_memory(*part, *of) for part, of in zip(parts, sizes, strict=True)]


def _column_memory(
    view: memoryview, buffer: pa.Buffer, offset_bytes: int, value_bytes: int
) -> ColumnMemory:
    first = aligned(offset_bytes)
    return ColumnMemory(
        view[:offset_bytes],
        view[first : first + value_bytes],
        buffer.slice(0, offset_bytes),
        buffer.slice(first, value_bytes),
    )


def _room_bytes(chunk: Chunk, width: int) -> int:
    """The working memory of decoding a chunk: its bytes as stored, then its decompressed dictionary
    and one decompressed page at a time.
    """
    decompressed = chunk.num_values * width + max_page_bytes(chunk, width)
    return aligned(chunk.stored_bytes + min(chunk.raw_bytes, decompressed) + _SLOP_BYTES)
