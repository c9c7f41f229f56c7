"""Footers of Parquet files, read and checked here before Arrow sees them.

pyarrow ends the process for some damaged footers, and takes long to describe thousands of columns
of which a job reads a few. So a footer is walked whole and checked, and Arrow gets another one,
written from it, with the columns that are read and nothing else.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.parquet.arrow import (
    ARROW_SCHEMA,
    MAGIC,
    STOP,
    FooterBytes,
    arrow_metadata,
    row_group,
)
from featstore.parquet.checks import CHUNK, ROW_GROUP, checked_chunks, spans
from featstore.parquet.damage import DAMAGE, first_line
from featstore.parquet.file_schema import Layout, Leaf, layout_of
from featstore.parquet.format import (
    ABSENT,
    ELEMENTS,
    FILE,
    KEY_VALUES,
    ORDERS,
    ROW_GROUPS,
    SLOTS,
    Numbers,
)
from featstore.parquet.walk import FooterError, walk

_END_BYTES = 8  # of a file: the footer's length, four bytes little-endian, and the magic
_ENCRYPTED_MAGIC = b"PARE"
_LIKELY_BYTES = 64 << 10
_FILE, _ELEMENT, _KEY_VALUE = SLOTS[FILE], SLOTS[ELEMENTS], SLOTS[KEY_VALUES]


class Chunk(NamedTuple):
    """A column chunk: its codec as the format numbers it, a bit for each encoding, its values with
    nulls, its bytes as stored and as decompressed, and its bytes in the file, first and end."""

    codec: int
    encodings: int
    num_values: int
    stored_bytes: int
    raw_bytes: int
    first: int
    end: int

    @property
    def span(self) -> tuple[int, int]:
        """Where it is in the file."""
        return self.first, self.end


_ZSTD = 6
_MOST_RAW_BYTES = 1 << 48  # what a damaged footer says may be anything
_CODEC, _STORED_BYTES, _RAW_BYTES = (
    Chunk._fields.index(name) for name in ("codec", "stored_bytes", "raw_bytes")
)
_OF_CHUNK = [CHUNK[name] for name in Chunk._fields[:5]]


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedFooter:
    """A footer of which all holds that `checks` asks for; any number of threads may read it.

    `chunks`: int64 (num_row_groups, num_leaves, num_slots), the slots as in `checks.CHUNK`.
    """

    data: bytes
    tables: tuple[Numbers, ...]
    layout: Layout
    chunks: Numbers

    @property
    def num_rows(self) -> int:
        return int(self.tables[FILE][0, _FILE["num_rows"]])

    @cached_property
    def row_group_rows(self) -> tuple[int, ...]:
        return tuple(self.tables[ROW_GROUPS][:, ROW_GROUP["num_rows"]].tolist())

    @property
    def schema(self) -> pa.Schema:
        """All columns as Arrow has them."""
        return self.layout.schema

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.layout.leaves

    @cached_property
    def key_values(self) -> dict[bytes, bytes]:
        """What the writer said of the file, but for Arrow's text of the schema."""
        found = _key_values(self.data, self.tables[KEY_VALUES])
        return {key: value for key, value in found.items() if key != ARROW_SCHEMA}

    @cached_property
    def spans(self) -> Numbers:
        """First byte and end of each column chunk: int64 (num_row_groups, num_leaves, 2)."""
        return spans(self.chunks)

    def chunk(self, row_group: int, leaf: int) -> Chunk:
        """The column chunk of a leaf column in a row group."""
        return Chunk._make(self._numbers[row_group, leaf].tolist())

    def room_bytes(self, row_groups: Sequence[int], leaves: Sequence[int]) -> int:
        """The most bytes that one of these column chunks has, as stored and as decompressed
        together.

        Those of Zstandard count twice: a page and what it is decompressed to are copied once more.
        """
        if not row_groups or not leaves:
            return 0
        chunks = self._numbers[np.ix_(row_groups, leaves)]
        raw_bytes = np.minimum(chunks[..., _RAW_BYTES], _MOST_RAW_BYTES)
        both = chunks[..., _STORED_BYTES] + raw_bytes
        return int((both << (chunks[..., _CODEC] == _ZSTD)).max())

    @cached_property
    def _numbers(self) -> Numbers:
        """The numbers of `Chunk`: int64 (num_row_groups, num_leaves, 7)."""
        return np.concatenate([self.chunks[..., _OF_CHUNK], self.spans], axis=-1)

    def arrow_metadata(
        self,
        columns: Sequence[int] | None = None,
        *,
        with_statistics: bool = False,
    ) -> pq.FileMetaData:
        """The footer as Arrow has it, with the columns at these places of the schema only, None
        for all.

        Raises:
            FooterError: where Arrow refuses it all the same.
        """
        columns = range(len(self.layout.roots)) if columns is None else columns
        leaves = [leaf for place in columns for leaf in self.layout.roots[place].leaves]
        try:
            rest = self._rest(leaves, with_statistics)
            return arrow_metadata(self.layout.bytes_of(columns), rest)
        except DAMAGE as error:
            raise FooterError(first_line(error)) from error

    def _rest(self, leaves: Sequence[int], with_statistics: bool) -> FooterBytes:
        file, orders = self.tables[FILE][0].tolist(), self.tables[ORDERS]
        created_by = self.data[file[_FILE["created_by"]] : file[_FILE["created_by.end"]]]
        has_orders = with_statistics and len(orders) == len(self.leaves)
        return FooterBytes(
            version=file[_FILE["version"]],
            num_rows=self.num_rows,
            row_groups=self._row_groups(leaves, with_statistics),
            created_by=None if file[_FILE["created_by"]] == ABSENT else created_by,
            orders=self._slices(orders[leaves, :2]) if has_orders else (),
        )

    def _row_groups(self, leaves: Sequence[int], with_statistics: bool) -> list[bytes]:
        sizes = self.tables[ROW_GROUPS][:, [ROW_GROUP["raw_bytes"], ROW_GROUP["num_rows"]]].tolist()
        bounds = self._bounds(leaves, with_statistics)
        return [
            row_group([chunk + STOP + STOP for chunk in self._slices(of)], *size)
            for of, size in zip(bounds, sizes, strict=True)
        ]

    def _bounds(self, leaves: Sequence[int], with_statistics: bool) -> Numbers:
        """Where the bytes of column chunks begin, and where what Arrow needs of them ends: after
        it come statistics, counts of levels and the places of indexes, and two stops."""
        chosen = self.chunks[:, leaves]
        bounds = chosen[..., [CHUNK["begin"], CHUNK["cut"]]]
        if with_statistics:
            bounds[..., 1] = bounds[..., 1].clip(min=chosen[..., CHUNK["statistics_end"]])
        return bounds

    def _slices(self, bounds: Numbers) -> list[bytes]:
        return [self.data[begin:end] for begin, end in bounds.tolist()]


def read_checked(source: BinaryIO, size_bytes: int | None = None) -> CheckedFooter:
    """The checked footer of an open file.

    Args:
        size_bytes: the file's size where `source` holds no more than the last bytes of it.

    Raises:
        FooterError: where there is none, or something in it cannot be.
    """
    data, begin = _footer_bytes(source, size_bytes)
    tables = walk(data)
    file = tables[FILE][0].tolist()
    if file[_FILE["encryption"]] != ABSENT or file[_FILE["signing_key"]] != ABSENT:
        raise FooterError("expected no encryption, found some; write the file without it")
    layout = _layout(data, tables, file)
    chunks = checked_chunks(tables, layout, begin)
    return CheckedFooter(data=data, tables=tables, layout=layout, chunks=chunks)


def _layout(data: bytes, tables: tuple[Numbers, ...], file: list[int]) -> Layout:
    begin = file[_FILE["elements"]]
    rows = tables[ELEMENTS].copy()
    rows[:, _POSITIONS] -= begin
    arrow_text = _key_values(data, tables[KEY_VALUES]).get(ARROW_SCHEMA)
    return layout_of(data[begin : file[_FILE["elements.end"]]], arrow_text, rows)


_POSITIONS = [_ELEMENT[name] for name in ("begin", "end", "name", "name.end")]


def _footer_bytes(source: BinaryIO, size_bytes: int | None) -> tuple[bytes, int]:
    """The footer, and the byte of the file at which it begins."""
    there = source.seek(0, os.SEEK_END)
    size_bytes = there if size_bytes is None else size_bytes
    tail = _last(source, there, min(there, _LIKELY_BYTES))
    if len(tail) < _END_BYTES:
        raise FooterError(f"expected at least {_END_BYTES} bytes, found {len(tail)}")
    magic, num_bytes = tail[-4:], int.from_bytes(tail[-_END_BYTES:-4], "little")
    if magic == _ENCRYPTED_MAGIC:
        raise FooterError("expected no encryption, found some; write the file without it")
    if magic != MAGIC:
        raise FooterError(f"expected {MAGIC!r} at its end, found {magic!r}")
    if num_bytes + _END_BYTES > there:
        found = there - _END_BYTES
        raise FooterError(f"expected a footer of {num_bytes} bytes, found {found} before its end")
    if num_bytes + _END_BYTES > len(tail):
        tail = _last(source, there, num_bytes + _END_BYTES)
    return tail[-num_bytes - _END_BYTES : -_END_BYTES], size_bytes - num_bytes - _END_BYTES


def _last(source: BinaryIO, there: int, num_bytes: int) -> bytes:
    source.seek(there - num_bytes)
    return bytes(source.read(num_bytes))


def _key_values(data: bytes, rows: Numbers) -> dict[bytes, bytes]:
    names = ("key", "key.end", "value", "value.end")
    spans_of = rows[:, [_KEY_VALUE[name] for name in names]].tolist()
    found = {}
    for key, key_end, value, value_end in spans_of:
        found[data[key:key_end]] = b"" if value == ABSENT else data[value:value_end]
    return found
