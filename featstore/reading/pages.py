"""Decodes column chunks of local files with the compiled kernels, in one pass: slots into values
without nulls, and other numbers as they are, if they hold no nulls.

Arrow spends most of a row group's time on lists: it decodes levels, builds a validity bitmap, and
then copies values without the nulls. The kernels write directly what a batch holds: a null scalar
becomes the missing mark, a null list a list of one mark, an empty list stays empty, null elements
are dropped. They support what Spark, Arrow and featstore write: int64 and float32, scalars and
lists of them, plain or dictionary-encoded, V1 and V2 pages, snappy, Zstandard or no compression.
Labels, weights and kept columns may be any integer or floating-point scalars.
Arrow reads, or refuses, everything else and everything that is damaged. Formats:
parquet.apache.org/docs/file-format.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from featstore.base.intervals import aligned
from featstore.base.schema import Slot, SlotKind
from featstore.native import kernels
from featstore.native.bounds import kernel_chunks, max_page_bytes
from featstore.native.footers import Chunks
from featstore.native.format import Numbers
from featstore.reading.buffers import Array, Ragged, Values, missing_mark
from featstore.reading.file_columns import FileColumns
from featstore.reading.open_file import OpenFile

_CODECS = [0, 1, 6]  # none, snappy, Zstandard
# One bit for each encoding by its number in the format: PLAIN, PLAIN_DICTIONARY and RLE_DICTIONARY
# of values, RLE and BIT_PACKED of levels.
_ENCODINGS = 1 << 0 | 1 << 2 | 1 << 8 | 1 << 3 | 1 << 4
_PHYSICAL = {SlotKind.ID: "INT64", SlotKind.FLOAT: "FLOAT"}
# Types of columns that are no slots: the physical type, and the type as which its values are read.
_OTHERS = {
    pa.int8(): ("INT32", pa.int32()),
    pa.int16(): ("INT32", pa.int32()),
    pa.int32(): ("INT32", pa.int32()),
    pa.int64(): ("INT64", pa.int64()),
    pa.float32(): ("FLOAT", pa.float32()),
    pa.float64(): ("DOUBLE", pa.float64()),
}
_MOST_VALUES = 2**31 - 1  # The offsets of the kernels have 32 bits.
# What the kernels return instead of a number of values: the column cannot be decoded by them; or
# pages of row group i (of those that are read) claim too much, as -2 - i.
_NOT_READ, _BEYOND_FIRST = -1, -2
# Of a page, given its decompressed size. An error for another size is an error of the page.
_DECOMPRESS = partial(pa.decompress, codec="zstd", asbytes=True)

Take = Callable[[int], Array]


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column, described for the kernels.

    Attributes:
        field: Its field in the file.
        place: The number of its leaf column.
        type: The Arrow type as which it is decoded.
        mark: Bytes of the slot's missing mark; of a column that is no slot as many zeros, which are
            not used.
        max_repetition: Its maximum repetition level: 1 for lists, otherwise 0.
        max_definition: Its maximum definition level.
        null_below: A definition level below this means that the row itself is null. 0: nulls are
            left out, so a column that is no slot has fewer values than rows.
        other: The type of a column that is no slot, which may be narrower than `type`; None: it is
            a slot.
    """

    field: pa.Field
    place: int
    type: pa.DataType
    mark: bytes
    max_repetition: int
    max_definition: int
    null_below: int
    other: pa.DataType | None = None


class PageReader:
    """Decodes the pages of those columns that the kernels support.

    All columns are decoded in one call that releases the GIL. Zstandard pages, which Arrow's codec
    decompresses, take it again for a moment.

    Args:
        file: An open file, which the caller closes. A remote file has no such columns.
        slots: The slots to decode.
        columns: Where they are in the file.
        take: Gives memory of at least that many bytes, uint8, in which all columns of one call lie;
            they keep it alive together. None: each column has its own.
        others: The columns to decode that are no slots.
        is_portable: Whether only instructions are used that any CPU has, as tests do to compare.
    """

    def __init__(
        self,
        file: OpenFile,
        slots: Iterable[Slot],
        columns: FileColumns,
        take: Take | None = None,
        *,
        others: Iterable[pa.Field] = (),
        is_portable: bool = False,
    ) -> None:
        self._file, self._take, self._is_portable = file, take, is_portable
        self._columns: list[_Column] = []
        if file.is_local:
            described = [_column(file, slot, columns) for slot in slots]
            described += [_other_column(file, field, columns) for field in others]
            self._columns = [column for column in described if column is not None]
        self._places = [column.place for column in self._columns]
        self._widths = np.array([len(column.mark) for column in self._columns], np.int64)

    def read(
        self, row_groups: Sequence[int], num_threads: int = 1, order: Array | None = None
    ) -> "dict[str, DecodedColumn]":
        """Decodes columns of these row groups.

        Args:
            row_groups: The row groups.
            num_threads: In how many threads.
            order: As of `RowGroupReader.read`.

        Returns:
            The columns without nulls, by their names in the file. Those that the kernels cannot
            decode are left out, for Arrow to read, and so are columns with nulls that are no slots.

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
        columns = [out.decoded(num) for out, num in found if num != _NOT_READ]
        return {column.field.name: column for column in columns if column.is_complete}

    def _decoded(
        self, row_groups: Sequence[int], num_threads: int, order: Array | None
    ) -> "list[tuple[_Out, int]]":
        """Each column, with its number of values, or the negative code that the kernels return."""
        if not self._columns or not row_groups:
            return []
        chunks = self._file.footer.chunks_of(row_groups, self._places)
        known, num_values = _known(chunks)
        if not len(known):
            return []
        # The longest first, so that threads end at about the same time.
        by_length = known[np.argsort(-num_values[known], kind="stable")]
        columns, widths = [self._columns[at] for at in by_length.tolist()], self._widths[by_length]
        chunks = Chunks._make(numbers[:, by_length] for numbers in chunks)
        max_bytes = max_page_bytes(chunks, widths)
        rows = [self._file.row_group_rows[index] for index in row_groups]
        value_bytes = (num_values[by_length] * widths).tolist()
        # A list has one offset more than rows, of 4 bytes.
        offset_bytes = [4 * (sum(rows) + 1) * column.max_repetition for column in columns]
        memory = allocated(list(zip(offset_bytes, value_bytes, strict=True)), self._take)
        outs = [_Out(column, sum(rows), of) for column, of in zip(columns, memory, strict=True)]
        num_threads = min(num_threads, len(outs))
        room_bytes = _room_bytes(chunks, widths, max_bytes)
        if order is not None:
            room_bytes += np.array([out.size_bytes for out in outs])
        found = kernels.decode_columns(
            self._file.descriptor,
            kernel_chunks(chunks, max_bytes),
            np.array(rows, np.int64),
            b"" if order is None else order.astype(np.uint32),
            tuple(out.buffers for out in outs),
            pa.allocate_buffer(aligned(int(room_bytes.max())) * num_threads),
            num_threads,
            self._file.cancelled,
            not self._file.is_checked,
            _DECOMPRESS,
            self._is_portable,
        )
        return list(zip(outs, found, strict=True))


def _known(chunks: Chunks) -> tuple[Numbers, Numbers]:
    """Which columns the kernels may decode: their numbers, int64; and how many values each column
    has in all row groups: int64 (num_columns,), meaningless for the others.
    """
    num_values = chunks.num_values.sum(axis=0)
    is_known = np.isin(chunks.codec, _CODECS) & (chunks.encodings & ~_ENCODINGS == 0)
    is_known &= chunks.num_values <= _MOST_VALUES  # so that the sum has not overflowed
    return np.flatnonzero(is_known.all(axis=0) & (num_values <= _MOST_VALUES)), num_values


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
    leaf = file.footer.leaves[place]
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
        field=field,
        place=place,
        type=field.type,
        mark=missing_mark(slot),
        max_repetition=levels[0],
        max_definition=max_definition,
        null_below=nulls,
    )


def _other_column(file: OpenFile, field: pa.Field, columns: FileColumns) -> _Column | None:
    """The column of a field that is no slot; None if the kernels do not support it."""
    name = columns.others[field.name]
    if name is None or name in columns.slots.values() or len(columns.places[name]) != 1:
        return None
    place, found = columns.places[name][0], file.schema.field(name)
    leaf, max_definition = file.footer.leaves[place], int(found.nullable)
    physical, type_ = _OTHERS.get(found.type, (None, found.type))
    levels = (leaf.max_repetition, leaf.max_definition)
    if leaf.path != name or leaf.physical_type != physical or levels != (0, max_definition):
        return None
    return _Column(
        field=found,
        place=place,
        type=type_,
        mark=bytes(type_.byte_width),
        max_repetition=0,
        max_definition=max_definition,
        null_below=0,
        other=found.type,
    )


class ColumnMemory(NamedTuple):
    """Writable memory of a column's offsets and values."""

    offsets: memoryview
    values: memoryview


class _Out:
    """A column to decode, with memory for its values and, if it has lists, their offsets."""

    def __init__(self, column: _Column, num_rows: int, memory: ColumnMemory) -> None:
        self._column, self._num_rows, self._memory = column, num_rows, memory

    @property
    def name(self) -> str:
        return str(self._column.field.name)

    @property
    def size_bytes(self) -> int:
        """The memory of its offsets and values, each in whole 64 bytes, and of aligning them."""
        memory = self._memory
        return aligned(memory.offsets.nbytes) + aligned(memory.values.nbytes) + aligned(1)

    @property
    def buffers(self) -> tuple[bytes, int, int, int, memoryview, memoryview]:
        """The column's description for the kernels, and the memory into which they decode."""
        of = self._column
        return of.mark, of.max_repetition, of.max_definition, of.null_below, *self._memory

    def decoded(self, num_values: int) -> "DecodedColumn":
        """The column, once `num_values` values are decoded."""
        return DecodedColumn(self._column, self._num_rows, num_values, self._memory)


class DecodedColumn:
    """A column that the kernels have decoded, without nulls.

    Attributes:
        field: Its field in the file.
    """

    def __init__(
        self, column: _Column, num_rows: int, num_values: int, memory: ColumnMemory
    ) -> None:
        self.field, self._column, self._memory = column.field, column, memory
        self._num_rows, self._num_values = num_rows, num_values

    @property
    def is_complete(self) -> bool:
        """Whether it is all of the column: not if it is no slot and has nulls, or values that its
        type does not hold.
        """
        return self._column.other is None or self.array is not None

    @property
    def values(self) -> Values:
        """The values of a slot, views of the column's memory."""
        column, memory = self._column, self._memory
        dtype = np.float32 if len(column.mark) == 4 else np.int64
        values = np.frombuffer(memory.values, dtype, self._num_values)
        if not column.max_repetition:
            return values
        return Ragged(values, np.frombuffer(memory.offsets, np.int32))

    @cached_property
    def array(self) -> Any:
        """The column as an Arrow array; None unless it `is_complete`."""
        column, num_values = self._column, self._num_values
        value_type = column.type.value_type if column.max_repetition else column.type
        if column.other is not None and num_values != self._num_rows:
            return None
        offsets, of_values = map(pa.py_buffer, self._memory)
        values = pa.Array.from_buffers(value_type, num_values, [None, of_values], 0)
        if column.other not in (None, column.type):
            try:
                return values.cast(column.other)
            except pa.ArrowInvalid:
                return None
        if not column.max_repetition:
            return values
        return pa.Array.from_buffers(
            column.type, self._num_rows, [None, offsets], 0, children=[values]
        )


def allocated(sizes: Sequence[tuple[int, int]], take: Take | None) -> list[ColumnMemory]:
    """Allocates memory for columns, given the bytes of each one's offsets and values.

    Both lie in one allocation, since each allocation by Arrow may lose the GIL to another thread.
    Under sanitizers each has its own, so that a write beyond its end is detected
    (fuzz/separate.py).

    Args:
        sizes: Bytes of offsets and bytes of values.
        take: As of `PageReader`.
    """
    ends = list(accumulate(aligned(offsets) + aligned(values) for offsets, values in sizes))
    if take is None:
        parts = [memoryview(pa.allocate_buffer(aligned(of) + values)) for of, values in sizes]
    else:
        memory = take(ends[-1]).data
        parts = [memory[begin:end] for begin, end in pairwise([0, *ends])]
    return [
        ColumnMemory(part[:offsets], part[aligned(offsets) : aligned(offsets) + values])
        for part, (offsets, values) in zip(parts, sizes, strict=True)
    ]


def _room_bytes(chunks: Chunks, widths: Numbers, max_bytes: Numbers) -> Numbers:
    """The working memory of decoding each column's largest chunk, int64 (num_columns,): its bytes
    as stored, then its decompressed dictionary and one decompressed page at a time.
    """
    decompressed = np.minimum(chunks.raw_bytes, chunks.num_values * widths + max_bytes)
    found: Numbers = (chunks.stored_bytes + decompressed).max(axis=0)
    return found
