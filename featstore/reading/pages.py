"""Slots' column chunks of local files as the compiled kernels decode them: into values without
nulls, in one pass.

Arrow spends most of a row group's time on lists: levels, a validity bitmap, and then copies without
the nulls. The kernels write at once what a batch holds: a null scalar is the missing mark, a null
list one mark, an empty list stays empty, null elements are dropped. They know what Spark, Arrow and
featstore write: int64 and float32, scalars and lists of them, plain or from a dictionary, V1 and V2
pages, snappy, Zstandard or none. Whatever else there is, and whatever is damaged, is Arrow's to
read, or to refuse. Formats: parquet.apache.org/docs/file-format.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from featstore._native.loading import KERNELS
from featstore.parquet.bounds import max_page_bytes
from featstore.parquet.footers import Chunk
from featstore.reading.buffers import missing_mark
from featstore.reading.file_columns import FileColumns
from featstore.reading.open_file import OpenFile
from featstore.schema import Slot, SlotKind

_CODECS = {0, 1, 6}  # none, snappy, Zstandard
# A bit each: PLAIN, PLAIN_DICTIONARY and RLE_DICTIONARY, and RLE and BIT_PACKED, which are of
# levels.
_ENCODINGS = 1 << 0 | 1 << 2 | 1 << 8 | 1 << 3 | 1 << 4
_PHYSICAL = {SlotKind.ID: "INT64", SlotKind.FLOAT: "FLOAT"}
_MOST_VALUES = 2**31 - 1  # offsets of 32 bits count so many
_NOT_READ, _BEYOND_FIRST = -1, -2  # what the kernels say of a column; below -2 of later row groups
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SLOP_BYTES, _ALIGNMENT_BYTES = 64, 64  # decompression may write behind a page


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A slot's column in the file: levels as the format counts them; definition levels below
    `null_below` are a null.
    """

    name: str
    place: int
    type: pa.DataType
    mark: bytes
    max_repetition: int
    max_definition: int
    null_below: int


class PageReader:
    """Page decoder: decodes those of a file's slot columns that the kernels know, all columns of a
    row group in one call that releases the GIL (Zstandard's pages take it back for a moment). The
    caller closes the file.
    """

    def __init__(self, file: OpenFile, slots: Iterable[Slot], columns: FileColumns) -> None:
        self._file = file
        self._columns: list[_Column] = []
        if KERNELS is not None and file.is_local and sys.byteorder == "little":
            self._columns += [
                column for slot in slots if (column := _column(file, slot, columns)) is not None
            ]

    def read(self, row_groups: Sequence[int], num_threads: int = 1) -> dict[str, pa.Array]:
        """The decoded columns of these row groups, in order, by their name in the file, without
        nulls. Columns that the kernels do not know are left out, for Arrow to read.

        Raises:
            StateError: Reading was cancelled.
            DataFileError: The pages of a column claim more than the footer allows. Arrow must not
                read them either.
        """
        try:
            found = self._decoded(row_groups, num_threads)
        except (ValueError, OverflowError, MemoryError):
            return {}  # Arrow reads the columns instead, and reports what is wrong with the file.
        self._file.require_not_cancelled()
        for out, num_values in found:
            if num_values < _NOT_READ:
                raise self._file.beyond_bounds(row_groups[_BEYOND_FIRST - num_values], out.name)
        return {
            out.name: out.array(num_values) for out, num_values in found if num_values != _NOT_READ
        }

    def _decoded(self, row_groups: Sequence[int], num_threads: int) -> "list[tuple[_Out, int]]":
        """Each column, and how many values it has, or what the kernels say instead."""
        outs, rows = (
            self._outs(row_groups),
            [self._file.row_group_rows[index] for index in row_groups],
        )
        if not outs:
            return []
        assert KERNELS is not None
        num_threads = min(num_threads, len(outs))
        found = KERNELS.decode_columns(
            self._file.descriptor,
            np.array([out.chunks for out in outs], np.int64),
            np.array(rows, np.int64),
            tuple(out.buffers for out in outs),
            pa.allocate_buffer(max(out.room_bytes for out in outs) * num_threads),
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
        outs = [
            _Out(column, of, num_rows)
            for column, of in zip(self._columns, chunks, strict=True)
            if _are_known(of)
        ]
        return sorted(outs, key=lambda out: -out.num_values)


def _decompressed(page: bytes, size_bytes: int) -> bytes:
    """A Zstandard page of exactly this size; b"" for one of another, of which Arrow's codec would
    not tell.
    """
    found: bytes
    if _content_bytes(page) == size_bytes:  # the codec compares the two
        found = pa.decompress(page, size_bytes, "zstd", asbytes=True)
        return found
    with pa.CompressedInputStream(pa.BufferReader(page), "zstd") as stream:
        found = stream.read(size_bytes + 1)
    return found if len(found) == size_bytes else b""


def _content_bytes(frame: bytes) -> int | None:
    """The size that a Zstandard frame's header tells, None where it tells none: RFC 8878, section
    3.1.1.1.
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
    """The slot's column, None where it is not one that the kernels know."""
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


class _Out:
    """A column's chunks, and memory for its values, and for its offsets where it holds lists."""

    def __init__(self, column: _Column, chunks: list[Chunk], num_rows: int) -> None:
        self._column, self._num_rows = column, num_rows
        self.num_values = sum(chunk.num_values for chunk in chunks)
        width = len(column.mark)
        offset_bytes = (num_rows + 1) * 4 if column.max_repetition else 0
        self.chunks = [
            (*_place(chunk), chunk.num_values, max_page_bytes(chunk, width)) for chunk in chunks
        ]
        self._memory = allocated(offset_bytes, self.num_values * width)
        self.room_bytes = max(_room_bytes(chunk, width) for chunk in chunks)

    @property
    def name(self) -> str:
        return self._column.name

    @property
    def buffers(self) -> tuple[bytes, int, int, int, memoryview, memoryview]:
        """What the kernels decode the column with, and where to."""
        of, memory = self._column, self._memory
        views = memory.offsets_view, memory.values_view
        return of.mark, of.max_repetition, of.max_definition, of.null_below, *views

    def array(self, num_values: int) -> pa.Array:
        """The column, once so many values are decoded."""
        type_ = self._column.type
        value_type = type_.value_type if self._column.max_repetition else type_
        values = pa.Array.from_buffers(value_type, num_values, [None, self._memory.values], 0)
        if not self._column.max_repetition:
            return values
        return pa.Array.from_buffers(
            type_, self._num_rows, [None, self._memory.offsets], 0, children=[values]
        )


class Memory(NamedTuple):
    """A column's offsets and values, to be written through the views, and read as Arrow buffers."""

    offsets_view: memoryview
    values_view: memoryview
    offsets: pa.Buffer
    values: pa.Buffer


def allocated(offset_bytes: int, value_bytes: int) -> Memory:
    """Memory for a column's offsets and for its values.

    One piece, since another thread may take the interpreter's lock each time that Arrow is asked
    for some. Under sanitizers each has its own, so that they see a write beyond its end
    (fuzz/separate.py).
    """
    values_at = _aligned(offset_bytes)
    memory = pa.allocate_buffer(values_at + value_bytes)
    view = memoryview(memory)
    return Memory(
        view[:offset_bytes],
        view[values_at:],
        memory.slice(0, offset_bytes),
        memory.slice(values_at),
    )


def _room_bytes(chunk: Chunk, width: int) -> int:
    """What a chunk takes while it is decoded: as it is stored, and behind that its dictionary and
    one page at a time.
    """
    decompressed = chunk.num_values * width + max_page_bytes(chunk, width)
    return _aligned(chunk.stored_bytes + min(chunk.raw_bytes, decompressed) + _SLOP_BYTES)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _place(chunk: Chunk) -> tuple[int, int, int]:
    """A chunk's first byte in the file, its bytes, and its codec."""
    return chunk.first, chunk.stored_bytes, chunk.codec
