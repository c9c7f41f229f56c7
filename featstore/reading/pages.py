"""Slots' column chunks of local files as the compiled kernels decode them: into values without nulls, in one pass.

Arrow spends most of a row group's time on lists: levels, a validity bitmap, and then copies without the nulls. The kernels
write at once what a batch holds: a null scalar is the missing mark, a null list one mark, an empty list stays empty, null
elements are dropped. They know what Spark, Arrow and featstore write: int64 and float32, scalars and lists of them, plain or
from a dictionary, V1 and V2 pages, snappy, Zstandard or none. Whatever else there is, and whatever is damaged, is Arrow's to
read, or to refuse. Formats: parquet.apache.org/docs/file-format.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from featstore._native.loading import KERNELS
from featstore.errors import StateError
from featstore.reading.columns import missing_mark
from featstore.reading.footer import FileColumns, Footer, chunk_span
from featstore.schema import Slot, SlotKind

_CODECS = {"SNAPPY": "snappy", "ZSTD": "zstd", "UNCOMPRESSED": None}
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}  # the last two are of levels
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_RLE, _V1 = 3, -1
_PHYSICAL = {SlotKind.ID: "INT64", SlotKind.FLOAT: "FLOAT"}
_MOST_VALUES = 2**31 - 1  # what offsets of 32 bits count
Page = tuple[Any, Any, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A slot's column in the file: levels as the format counts them; definition levels below `null_below` are a null."""

    name: str
    place: int
    type: pa.DataType
    mark: bytes
    max_repetition: int
    max_definition: int
    null_below: int


class PageReader:
    """Decodes those of a file's slot columns that the kernels know. The caller closes the footer.

    With several threads only lists: scalars cost Arrow about as much, and it needs the interpreter's lock but once for all.
    """

    def __init__(self, footer: Footer, slots: Iterable[Slot], columns: FileColumns, num_threads: int) -> None:
        self._footer, self._num_threads = footer, num_threads
        self._columns: list[_Column] = []
        if KERNELS is not None and footer.is_local and sys.byteorder == "little":
            found = [column for slot in slots if (column := _column(footer, slot, columns)) is not None]
            self._columns += [column for column in found if num_threads < 2 or column.max_repetition]

    @property
    def names(self) -> frozenset[str]:
        """The columns that it reads, if it can, by their names in the file."""
        return frozenset(column.name for column in self._columns)

    def read(self, row_groups: Sequence[int]) -> dict[str, pa.Array]:
        """The columns of these row groups' rows, in order, by their name in the file, without nulls. What is left out is to be
        read in another way."""
        with self.decoding(row_groups) as finish:
            return finish()

    @contextmanager
    def decoding(self, row_groups: Sequence[int]) -> Iterator[Callable[[], dict[str, pa.Array]]]:
        """As `read`, in other threads, if there are to be any, while the block does something else, until it calls what it is
        given, which takes part and returns what was read."""
        waiting, found = deque(self._columns if row_groups else ()), dict[str, pa.Array]()
        with ThreadPoolExecutor(max(1, self._num_threads - 1)) as pool:
            work = partial(self._decode, waiting, row_groups, found)
            others = _started(pool, min(self._num_threads - 1, len(waiting)), work)

            def finish() -> dict[str, pa.Array]:
                work()
                for other in others:
                    other.result()
                return found

            try:
                yield finish
            finally:
                waiting.clear()

    def _decode(self, waiting: deque[_Column], row_groups: Sequence[int], found: dict[str, pa.Array]) -> None:
        """Decodes what waits, until others have taken the last."""
        while waiting:
            try:
                column = waiting.popleft()
            except IndexError:
                return
            array = self._array(column, row_groups)
            if array is not None:
                found[column.name] = array

    def _array(self, column: _Column, row_groups: Sequence[int]) -> pa.Array | None:
        metadata, rows = self._footer.file.metadata, self._footer.row_group_rows
        chunks = [metadata.row_group(index).column(column.place) for index in row_groups]
        num_values = sum(chunk.num_values for chunk in chunks)
        if num_values > _MOST_VALUES or not all(map(_is_known, chunks)):
            return None
        try:
            out = _Out(column, num_values, sum(rows[index] for index in row_groups))
            for index, chunk in zip(row_groups, chunks, strict=True):
                stored = self._footer.bytes_at(*chunk_span(chunk))
                out.decode(*_pages(stored, _CODECS[chunk.compression], column), rows[index])
        except StateError:
            raise
        except (ValueError, OSError, OverflowError, MemoryError):  # Arrow tells what is wrong, if anything is
            return None
        return out.array()


def _started(pool: ThreadPoolExecutor, count: int, work: Callable[[], None]) -> list[Future[None]]:
    """The work in so many threads, or in none where the interpreter is ending and starts no more of them."""
    started: list[Future[None]] = []
    with suppress(RuntimeError):
        for _ in range(count):
            started.append(pool.submit(work))
    return started


def _is_known(chunk: pq.ColumnChunkMetaData) -> bool:
    return chunk.compression in _CODECS and _ENCODINGS.issuperset(chunk.encodings)


def _column(footer: Footer, slot: Slot, columns: FileColumns) -> _Column | None:
    """The slot's column, None where it is not one that the kernels know."""
    name = columns.slots[slot.name]
    if name is None or name in columns.others.values() or slot.width is not None or len(columns.places[name]) != 1:
        return None
    place, field = columns.places[name][0], footer.schema.field(name)
    leaf = footer.file.schema.column(place)
    is_list = pa.types.is_list(field.type)
    element = field.type.value_field if is_list else field
    nulls = int(field.nullable)
    max_definition = nulls + 1 + element.nullable if is_list else nulls
    wanted = pa.int64() if slot.kind is SlotKind.ID else pa.float32()
    levels = (int(is_list), max_definition)
    is_as_said = (
        f"{leaf.path}.".startswith(f"{name}.")
        and leaf.physical_type == _PHYSICAL[slot.kind]
        and levels == (leaf.max_repetition_level, leaf.max_definition_level)
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


def _pages(chunk: bytes, codec_name: str | None, column: _Column) -> tuple[Any, tuple[Page, ...]]:
    """The dictionary's values and the data pages, decompressed. ValueError for a page of another kind."""
    assert KERNELS is not None
    codec = None if codec_name is None else pa.Codec(codec_name)
    dictionary: Any = b""
    pages: list[Page] = []
    data = memoryview(chunk)
    for header in KERNELS.page_headers(chunk):
        kind, first, size, full_size, num_values, encoding, *level_encodings = header[:8]
        page = data[first : first + size]
        definition_bytes, repetition_bytes, is_compressed = header[8:]
        if kind == _DICTIONARY_PAGE:
            dictionary = _decompressed(page, full_size, codec)
        elif kind == _DATA_PAGE and _knows_levels(column, level_encodings):
            pages.append((_decompressed(page, full_size, codec), b"", num_values, encoding, _V1, _V1))
        elif kind == _DATA_PAGE_V2:
            num_level_bytes = definition_bytes + repetition_bytes
            of = codec if is_compressed else None
            values = _decompressed(page[num_level_bytes:], full_size - num_level_bytes, of)
            pages.append((page[:num_level_bytes], values, num_values, encoding, repetition_bytes, definition_bytes))
        else:
            raise ValueError(f"a page of type {kind}")
    return dictionary, tuple(pages)


def _knows_levels(column: _Column, encodings: list[int]) -> bool:
    """Whether definition and repetition levels are runs, where the column has them: of those that it lacks anything is said."""
    highest = (column.max_definition, column.max_repetition)
    return all(encoding == _RLE or not most for encoding, most in zip(encodings, highest, strict=True))


def _decompressed(page: memoryview, size_bytes: int, codec: pa.Codec | None) -> Any:
    return page if codec is None or not size_bytes else codec.decompress(page, decompressed_size=size_bytes)


class _Out:
    """A column's values, and its offsets where it holds lists, as chunk after chunk is decoded into them."""

    def __init__(self, column: _Column, num_values: int, num_rows: int) -> None:
        self._column, self._num_rows = column, num_rows
        self._is_list = column.max_repetition == 1
        self._values = pa.allocate_buffer(num_values * len(column.mark))
        self._offsets = pa.allocate_buffer((num_rows + 1) * 4 if self._is_list else 0)
        self._row = self._at = 0

    def decode(self, dictionary: Any, pages: tuple[Page, ...], num_rows: int) -> None:
        """Adds a chunk of so many rows. ValueError where it does not fit."""
        assert KERNELS is not None
        of = self._column
        how = (len(of.mark), of.max_repetition, of.max_definition, of.null_below, of.mark)
        to = (self._offsets, self._values, self._row, self._at)
        self._at = KERNELS.decode_pages(pages, dictionary, *how, num_rows, *to)
        self._row += num_rows

    def array(self) -> pa.Array:
        type_ = self._column.type
        values = pa.Array.from_buffers(type_.value_type if self._is_list else type_, self._at, [None, self._values], 0)
        if not self._is_list:
            return values
        return pa.Array.from_buffers(type_, self._num_rows, [None, self._offsets], 0, children=[values])
