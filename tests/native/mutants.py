"""Damaged column chunks: pages that pyarrow wrote, with changes in their headers, their
decompressed bytes, their order and the footer's metadata.

Each mutant is decoded by the kernels and by Arrow. If the kernels accept it, their values must
equal Arrow's. They may also leave a chunk to Arrow, or report that its pages claim more than they
may.

As a script: `python tests/native/mutants.py NUM_MUTANTS SEED`.
"""

import random
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.errors import DataFileError
from featstore.base.schema import Slot, SlotKind
from featstore.native.format import (
    BINARY,
    DOUBLE,
    FALSE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
)
from featstore.reading.buffers import Ragged, slot_values
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import DecodedColumn, PageReader
from featstore.reading.reader import RowGroupReader
from tests.native.oracles.thrift import ThriftReader

CODECS = {"none": 0, "snappy": 1, "zstd": 6}
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PHYSICAL = {"int64": 2, "float": 4, "int32": 1, "double": 5}
Fields = list[tuple[int, int, Any]]  # a struct's number, type and value of each field


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else -number * 2 - 1)


def encoded_struct(fields: Fields) -> bytes:
    """A struct in Thrift's compact protocol, with the number of each field in the long form."""
    return (
        b"".join(
            bytes([type_]) + zigzag(number) + encoded(type_, value)
            for number, type_, value in fields
        )
        + b"\0"
    )


def encoded(type_: int, value: Any) -> bytes:
    if type_ in (TRUE, FALSE):
        return b""
    if type_ in (I16, I32, I64):
        return zigzag(value)
    if type_ == BINARY:
        found: bytes = varint(len(value)) + value
        return found
    if type_ == STRUCT:
        return encoded_struct(value)
    if type_ == LIST:
        of, items = value
        return (
            bytes([0xF0 | of]) + varint(len(items)) + b"".join(encoded(of, item) for item in items)
        )
    return bytes(value)  # a byte, or the eight of a double


def read_struct(reader: ThriftReader) -> Fields:
    fields, number = [], 0
    while (field := reader.field(number)) is not None:
        type_, number = field
        fields.append((number, type_, read_value(reader, type_)))
    return fields


def read_value(reader: ThriftReader, type_: int) -> Any:
    if type_ in (I16, I32, I64):
        return reader.zigzag()
    if type_ == STRUCT:
        return read_struct(reader)
    if type_ == BINARY:
        return bytes(reader.byte() for _ in range(reader.varint()))
    return bytes(reader.byte() for _ in range({I8: 1, DOUBLE: 8}.get(type_, 0)))


def number_of(fields: Fields, *path: int) -> Any:
    """The value of a field in nested structs; None if it is absent."""
    value: Any = fields
    for number in path:
        value = next((found for at, _, found in value or () if at == number), None)
    return value


def with_number(fields: Fields, number: int, value: Any) -> Fields:
    return [
        (at, type_, value if (at, type_) == (number, I32) else found) for at, type_, found in fields
    ]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page: its header, its levels if it is of version 2, and the rest of it, decompressed.

    `is_plain`: it is stored uncompressed, as pyarrow does with V2 pages that would not shrink.
    `header_bytes` replace the header if that was damaged as stored. `is_honest`: the sizes in the
    header are those of the page.
    """

    header: Fields
    levels: bytes
    body: bytes
    is_plain: bool = False
    is_honest: bool = True
    header_bytes: bytes | None = None

    def compressed_body(self, codec: str) -> bytes:
        return self.body if self.is_plain else pa.compress(self.body, codec, asbytes=True)

    def stored(self, codec: str) -> bytes:
        body = self.compressed_body(codec)
        header = self.header
        if self.is_honest:
            header = with_number(header, 2, len(self.levels) + len(self.body))
            header = with_number(header, 3, len(self.levels) + len(body))
        return (self.header_bytes or encoded_struct(header)) + self.levels + body


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A column chunk, with its metadata in the footer."""

    slot: Slot
    pages: tuple[Page, ...]
    codec: str
    physical: int
    levels: tuple[bool, bool, bool]  # whether the column is a list, and what may be null
    num_values: int
    num_rows: int
    raw_bytes: int = 1 << 22


def write_file(path: Path, chunk: Chunk) -> None:
    """Writes a file with this chunk alone."""
    stored = b"".join(page.stored(chunk.codec) for page in chunk.pages)
    has_dictionary = bool(chunk.pages) and number_of(chunk.pages[0].header, 1) == DICTIONARY
    first = chunk.pages[0].stored(chunk.codec) if has_dictionary else b""
    schema, names = _schema(chunk)
    column: Fields = [
        (1, I32, chunk.physical),
        (2, LIST, (I32, [0, 3, 8])),
        (3, LIST, (BINARY, names)),
        (4, I32, CODECS[chunk.codec]),
        (5, I64, chunk.num_values),
        (6, I64, chunk.raw_bytes),
        (7, I64, len(stored)),
        (9, I64, 4 + len(first)),
        *([(11, I64, 4)] if has_dictionary else []),
    ]
    chunks = [[(2, I64, 0), (3, STRUCT, column)]]
    group: Fields = [
        (1, LIST, (STRUCT, chunks)),
        (2, I64, chunk.raw_bytes),
        (3, I64, chunk.num_rows),
    ]
    footer = encoded_struct(
        [
            (1, I32, 2),
            (2, LIST, (STRUCT, schema)),
            (3, I64, chunk.num_rows),
            (4, LIST, (STRUCT, [group])),
        ]
    )
    path.write_bytes(b"PAR1" + stored + footer + struct.pack("<I", len(footer)) + b"PAR1")


def _schema(chunk: Chunk) -> tuple[list[Fields], list[bytes]]:
    is_list, is_nullable, has_null_elements = chunk.levels
    physical = PHYSICAL["int64" if chunk.slot.kind is SlotKind.ID else "float"]
    root: Fields = [(4, BINARY, b"schema"), (5, I32, 1)]
    if not is_list:
        return [root, [(1, I32, physical), (3, I32, int(is_nullable)), (4, BINARY, b"x")]], [b"x"]
    outer: Fields = [(3, I32, int(is_nullable)), (4, BINARY, b"x"), (5, I32, 1), (6, I32, 3)]
    inner: Fields = [(3, I32, 2), (4, BINARY, b"list"), (5, I32, 1)]
    leaf: Fields = [(1, I32, physical), (3, I32, int(has_null_elements)), (4, BINARY, b"element")]
    return [root, outer, inner, leaf], [b"x", b"list", b"element"]


def sound_chunks(root: Path, rng: random.Random) -> Iterator[Chunk]:
    """Valid chunks of every kind that the kernels support, as pyarrow writes them."""
    path = root / "sound.parquet"
    for kind in SlotKind:
        for is_list in (False, True):
            for codec in CODECS:
                for version in ("1.0", "2.0"):
                    for use_dictionary in (False, True):
                        levels = is_list, rng.random() < 0.7, rng.random() < 0.5
                        table = _table(rng, kind, levels)
                        options = {
                            "use_dictionary": use_dictionary,
                            "data_page_version": version,
                            "data_page_size": rng.choice([150, 2**20]),
                            "dictionary_pagesize_limit": rng.choice([120, 2**20]),
                            "write_page_checksum": False,
                            "write_batch_size": 16,
                        }
                        pq.write_table(table, path, compression=codec, **options)
                        yield _chunk(path, kind, codec, levels)


def _table(rng: random.Random, kind: SlotKind, levels: tuple[bool, bool, bool]) -> pa.Table:
    is_list, is_nullable, has_null_elements = levels
    num_rows, vocabulary = rng.choice([3, 40, 200]), rng.choice([1, 5, 60])
    words = [
        rng.randrange(-(2**62), 2**62) if kind is SlotKind.ID else rng.random()
        for _ in range(vocabulary)
    ]
    type_ = pa.int64() if kind is SlotKind.ID else pa.float32()

    def value(may_be_null: bool) -> Any:
        return None if may_be_null and rng.random() < 0.2 else rng.choice(words)

    def row() -> Any:
        if not is_list:
            return value(is_nullable)
        if is_nullable and rng.random() < 0.2:
            return None
        return [value(has_null_elements) for _ in range(rng.choice([0, 1, 2, 5]))]

    if is_list:
        type_ = pa.list_(pa.field("element", type_, nullable=has_null_elements))
    field = pa.field("x", type_, nullable=is_nullable)
    return pa.table([pa.array([row() for _ in range(num_rows)], type_)], schema=pa.schema([field]))


def _chunk(path: Path, kind: SlotKind, codec: str, levels: tuple[bool, bool, bool]) -> Chunk:
    column = pq.read_metadata(path).row_group(0).column(0)
    first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    stored = path.read_bytes()[first : first + column.total_compressed_size]
    slot = Slot(name="x", kind=kind, shape=(None,) if levels[0] else ())
    physical = PHYSICAL["int64" if kind is SlotKind.ID else "float"]
    num_rows = pq.read_metadata(path).num_rows
    pages = tuple(_pages(stored, codec))
    return Chunk(
        slot=slot,
        pages=pages,
        codec=codec,
        physical=physical,
        levels=levels,
        num_values=column.num_values,
        num_rows=num_rows,
    )


def _pages(stored: bytes, codec: str) -> Iterator[Page]:
    while stored:
        reader = ThriftReader(stored)
        header = read_struct(reader)
        size, full_size = number_of(header, 3), number_of(header, 2)
        page, stored = (
            stored[reader.position : reader.position + size],
            stored[reader.position + size :],
        )
        num_levels = (
            number_of(header, 8, 5) + number_of(header, 8, 6)
            if number_of(header, 8) is not None
            else 0
        )
        levels, body = page[:num_levels], page[num_levels:]
        v2: Fields = number_of(header, 8) or []
        is_plain = codec == "none" or any(number == 7 and type_ == FALSE for number, type_, _ in v2)
        if not is_plain:
            body = (
                pa.decompress(body, full_size - num_levels, codec, asbytes=True)
                if full_size > num_levels
                else b""
            )
        yield Page(header=header, levels=levels, body=body, is_plain=is_plain)


_NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 127, 128, 255, 1 << 14, 1 << 20, 2**31 - 1, -1)


def _changed_number(rng: random.Random, number: int) -> int:
    return rng.choice(
        [
            number + rng.choice([-2, -1, 1, 2, 8]),
            rng.choice(_NUMBERS),
            number ^ 1 << rng.randrange(8),
        ]
    )


def _changed_field(rng: random.Random, fields: Fields) -> Fields:
    """The struct with one field, at any depth, changed, removed, duplicated, or given another type
    or number.
    """
    if not fields:
        return [(rng.randrange(1, 9), I32, rng.choice(_NUMBERS))]
    at = rng.randrange(len(fields))
    number, type_, value = fields[at]
    if type_ == STRUCT and rng.random() < 0.85:
        return [*fields[:at], (number, type_, _changed_field(rng, value)), *fields[at + 1 :]]
    how = rng.randrange(10)
    if how == 0:
        return [*fields[:at], *fields[at + 1 :]]
    if how == 1:
        return [*fields[: at + 1], *fields[at:]]
    if how == 2:
        return [*fields[:at], (rng.randrange(1, 10), type_, value), *fields[at + 1 :]]
    if how == 3 and type_ in (I32, TRUE, FALSE):
        type_, value = rng.choice(
            [(TRUE, b""), (FALSE, b""), (I64, 1), (I16, 1), (I8, b"\1"), (BINARY, b"ab"), (I32, 1)]
        )
    elif type_ == I32:
        value = _changed_number(rng, value)
    elif type_ in (TRUE, FALSE):
        type_ = TRUE + FALSE - type_
    return [*fields[:at], (number, type_, value), *fields[at + 1 :]]


def _changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some of them changed, removed or duplicated, mostly near the beginning, where
    levels are.
    """
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not changed:
            return bytes([rng.randrange(256)])
        at = min(len(changed) - 1, rng.choice([rng.randrange(len(changed)), rng.randrange(24)]))
        how = rng.randrange(8)
        if how < 3:
            changed[at] ^= 1 << rng.randrange(8)
        elif how < 5:
            changed[at] = rng.choice([0, 1, 2, 3, 4, 127, 128, 255, rng.randrange(256)])
        elif how == 5:
            del changed[at : at + rng.choice([1, 4])]
        elif how == 6:
            changed[at:at] = changed[at : at + rng.choice([1, 4, 8])]
        else:
            changed[at:at] = bytes([rng.randrange(256)])
    return bytes(changed)


def _changed_page(rng: random.Random, page: Page, codec: str) -> Page:
    how = rng.randrange(12)
    if how < 4:
        return replace(page, body=_changed_bytes(rng, page.body))
    if how < 5 and page.levels:
        return replace(page, levels=_changed_bytes(rng, page.levels))
    header = page.header
    body = page.compressed_body(codec)
    header = with_number(header, 2, len(page.levels) + len(page.body))
    header = with_number(header, 3, len(page.levels) + len(body))
    if how < 10:
        return replace(page, header=_changed_field(rng, header), is_honest=rng.random() < 0.4)
    return replace(page, header_bytes=_changed_bytes(rng, encoded_struct(header)))


def _reordered(rng: random.Random, pages: tuple[Page, ...]) -> tuple[Page, ...]:
    changed = list(pages)
    at, other = rng.randrange(len(changed)), rng.randrange(len(changed))
    how = rng.randrange(4)
    if how == 0:
        changed[at], changed[other] = changed[other], changed[at]
    elif how == 1:
        changed.insert(other, changed[at])
    elif how == 2 and len(changed) > 1:
        del changed[at]
    else:
        changed[at] = replace(changed[at], body=changed[other].body, levels=changed[other].levels)
    return tuple(changed)


def mutant(rng: random.Random, chunk: Chunk) -> Chunk:
    """The chunk, damaged in one way or two."""
    for _ in range(rng.choice([1, 1, 1, 2])):
        how = rng.randrange(20)
        if how < 16:
            at = rng.randrange(len(chunk.pages))
            page = _changed_page(rng, chunk.pages[at], chunk.codec)
            chunk = replace(chunk, pages=(*chunk.pages[:at], page, *chunk.pages[at + 1 :]))
        elif how < 18:
            chunk = replace(chunk, pages=_reordered(rng, chunk.pages))
        elif how < 19:
            counts = {"num_values": chunk.num_values, "num_rows": chunk.num_rows}
            name = rng.choice(list(counts))
            changed: dict[str, Any] = {name: max(0, counts[name] + rng.choice([-1, 1, 7]))}
            chunk = replace(chunk, **changed)
        else:
            chunk = replace(chunk, physical=rng.choice(list(PHYSICAL.values())))
    return chunk


def _plain(values: Any) -> tuple[bytes, bytes]:
    """Values as bytes that are equal if and only if the values are, NaN included."""
    if isinstance(values, Ragged):
        lengths = np.diff(values.offsets).astype(np.int64)
        return lengths.tobytes(), np.ascontiguousarray(
            values.values[values.offsets[0] : values.offsets[-1]]
        ).tobytes()
    return b"", np.ascontiguousarray(values).tobytes()


def outcome(path: Path, slot: Slot) -> str:
    """The result of the kernels for the only column of a file: `left to Arrow`, `beyond bounds`,
    `equal`, or the difference from Arrow's result.
    """
    selection = Selection(slots=(slot,))
    try:
        with OpenFile(path) as footer:
            columns = footer.resolve(selection)
            try:
                order = np.arange(footer.row_group_rows[0])[::-1]
                left = order[::-1] % 37 > 1 + path.stat().st_size % 3  # runs, not single rows
                ours, portable, backwards, some, some_portable = (
                    _array(
                        PageReader(footer, [slot], columns, is_portable=is_portable).read(
                            [0], chosen=rows
                        )
                    )
                    for is_portable, rows in (
                        (False, None),
                        (True, None),
                        (False, order),
                        (False, left),
                        (True, left),
                    )
                )
                every = (ours, portable, backwards, *((some, some_portable) if left.any() else ()))
                if len({found is None for found in every}) > 1:
                    return "DIFFERS: read by one variant of the kernels, or in one order"
                if ours is None:
                    RowGroupReader(footer, selection, num_threads=1, as_values=True).read([0])
                    return "left to Arrow"
            except DataFileError as error:
                return (
                    "beyond bounds"
                    if "claim more" in str(error)
                    else "left to Arrow, which refuses"
                )
            ours.validate(full=True)
            if not _are_equal(slot, ours, portable):
                return "DIFFERS: other values by the portable kernels"
            if not _are_equal(slot, backwards, ours.take(pa.array(order))):
                return "DIFFERS: other rows in another order"
            if left.any() and not _are_equal(
                slot, some, some_portable, ours.filter(pa.array(left))
            ):
                return "DIFFERS: other rows where some are left out"
            try:
                arrows = (
                    footer.arrow_file(None)
                    .read_row_group(0, columns=["x"], use_threads=False)
                    .column("x")
                )
            except (pa.ArrowException, OSError) as error:
                return f"DIFFERS: Arrow refuses it: {error}"
            if len(arrows) != footer.row_group_rows[0]:
                return f"DIFFERS: Arrow reads {len(arrows)} rows"
            is_equal = _plain(slot_values(pa.chunked_array([ours]), slot)) == _plain(
                slot_values(arrows, slot)
            )
            return "equal" if is_equal else "DIFFERS: other values"
    except DataFileError:
        return "no footer"


def _are_equal(slot: Slot, *found: pa.Array) -> bool:
    return len({_plain(slot_values(pa.chunked_array([each]), slot)) for each in found}) == 1


def _array(found: Mapping[str, DecodedColumn]) -> pa.Array | None:
    return found["x"].array if "x" in found else None


def difference_as_no_slot(path: Path) -> str | None:
    """How the kernels' column, read as one that is no slot, differs from Arrow's; None if it does
    not, or is left to Arrow.
    """
    try:
        with OpenFile(path) as footer:
            field = footer.schema.field("x")
            columns = footer.resolve(Selection(others=(field,)))
            ours = _array(PageReader(footer, (), columns, others=(field,)).read([0]))
            if ours is None:
                return None
            arrows = (
                footer.arrow_file(None)
                .read_row_group(0, columns=["x"], use_threads=False)
                .column("x")
            )
            is_same = _plain(np.asarray(ours)) == _plain(np.asarray(arrows.combine_chunks()))
            return None if is_same and not arrows.null_count else "DIFFERS: as no slot"
    except DataFileError:
        return None
    except (pa.ArrowException, OSError) as error:
        return f"DIFFERS: as no slot, Arrow refuses it: {error}"


def run(num_mutants: int, seed: int, root: Path) -> tuple[Counter[str], list[tuple[str, Path]]]:
    """The number of mutants with each outcome, and the files whose results differ."""
    rng, counts, kept = random.Random(seed), Counter[str](), list[tuple[str, Path]]()
    chunks = list(sound_chunks(root, rng))
    path = root / "mutant.parquet"
    for chunk in chunks:
        write_file(path, chunk)
        assert outcome(path, chunk.slot) == "equal", "a sound chunk is left to Arrow, or differs"
    for number in range(num_mutants):
        chunk = mutant(rng, rng.choice(chunks))
        write_file(path, chunk)
        found = difference_as_no_slot(path) or outcome(path, chunk.slot)
        counts[found.split(":")[0]] += 1
        if found.startswith("DIFFERS"):
            kept.append((found, path.rename(root / f"differs-{seed}-{number}.parquet")))
    return counts, kept


if __name__ == "__main__":
    directory = Path(tempfile.mkdtemp(prefix="mutants-"))
    found_counts, differing = run(int(sys.argv[1]), int(sys.argv[2]), directory)
    print(dict(found_counts), directory)  # noqa: T201
    for why, file in differing[:40]:
        print(why, file)  # noqa: T201
    sys.exit(bool(differing))
