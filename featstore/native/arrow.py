"""Writes footers of checked parts, and lets Arrow read them."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.native.format import BINARY, I32, I64, LIST, STRUCT

MAGIC = b"PAR1"
ARROW_SCHEMA = b"ARROW:schema"
# In nanoseconds, Arrow's default, times before 1677 and after 2262 become others without an error.
INT96_UNIT = "us"
STOP = b"\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaBytes:
    """Columns as a footer holds them.

    Attributes:
        num_columns: The number of columns.
        num_elements: The number of schema elements that describe them.
        elements: The bytes of these elements, in order.
        arrow_text: Arrow's schema as text, which Arrow stores among the key-values; None if absent.
    """

    num_columns: int
    num_elements: int
    elements: bytes
    arrow_text: bytes | None


def arrow_schema(columns: SchemaBytes) -> pa.Schema:
    """The Arrow schema of columns. Raises pyarrow's errors if it cannot be derived."""
    file = pa.BufferReader(file_without_data(columns))
    with pq.ParquetFile(file, coerce_int96_timestamp_unit=INT96_UNIT) as opened:
        return opened.schema_arrow.remove_metadata()


def arrow_text_of(schema: pa.Schema) -> bytes:
    """The text from which Arrow restores the exact types of these columns."""
    return base64.b64encode(schema.serialize())


def row_group(chunks: Sequence[bytes], raw_bytes: int, num_rows: int) -> bytes:
    """The bytes of a row group, from those of its column chunks."""
    # The field numbers are those of RowGroup in parquet.thrift.
    parts = [_field(1, LIST), _list_head(len(chunks)), *chunks]
    parts += [_field(2, I64), _zigzag(raw_bytes), _field(3, I64), _zigzag(num_rows), STOP]
    return b"".join(parts)


def file_without_data(
    columns: SchemaBytes,
    *,
    version: int = 2,
    num_rows: int = 0,
    row_groups: Sequence[bytes] = (),
    created_by: bytes | None = None,
    orders: Sequence[bytes] = (),
) -> bytes:
    """A file that is all footer, for Arrow to read.

    Args:
        columns: The columns.
        version: The format version.
        num_rows: The number of rows.
        row_groups: The bytes of each row group.
        created_by: The name of the writer.
        orders: The bytes of each leaf column's order of values.
    """
    root = _text_field(4, b"schema") + _field(5, I32) + _zigzag(columns.num_columns) + STOP
    # The field numbers are those of FileMetaData in parquet.thrift.
    parts = [_field(1, I32), _zigzag(version)]
    parts += [_field(2, LIST), _list_head(1 + columns.num_elements), root, columns.elements]
    parts += [_field(3, I64), _zigzag(num_rows)]
    parts += [_field(4, LIST), _list_head(len(row_groups)), *row_groups]
    if columns.arrow_text is not None:
        key_value = _text_field(1, ARROW_SCHEMA) + _text_field(2, columns.arrow_text) + STOP
        parts += [_field(5, LIST), _list_head(1), key_value]
    if created_by is not None:
        parts += [_text_field(6, created_by)]
    if orders:
        parts += [_field(7, LIST), _list_head(len(orders)), *orders]
    footer = b"".join((*parts, STOP))
    return b"".join((MAGIC, footer, len(footer).to_bytes(4, "little"), MAGIC))


def _field(number: int, type_: int) -> bytes:
    """A field's head in the long form, which states the number itself."""
    return bytes((type_,)) + _zigzag(number)


def _text_field(number: int, text: bytes) -> bytes:
    return _field(number, BINARY) + _varint(len(text)) + text


def _list_head(num_structs: int) -> bytes:
    # 15 in the high bits: the number of elements follows.
    return bytes((0xF0 | STRUCT,)) + _varint(num_structs)


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else ~(value << 1))


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))
