"""Footers as dicts that tests modify: `{number: (type, value)}`, with lists as `(type, [values])`."""

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
from tests.native.mutants import varint, zigzag
from tests.native.oracles.thrift import ThriftReader

Struct = dict[int, tuple[int, Any]]


@pytest.fixture(scope="session")
def written() -> Callable[..., bytes]:
    """The bytes of a Parquet file that Arrow writes for a table."""

    def write(table: pa.Table, **how: Any) -> bytes:
        sink = io.BytesIO()
        pq.write_table(table, sink, **how)
        return sink.getvalue()

    return write


@pytest.fixture(scope="session")
def edited() -> Callable[..., bytes]:
    """The bytes of a file with one field of its footer set or removed. The field is addressed by
    field numbers and list indices.
    """

    def edit(file: bytes, *edits: tuple[tuple[int, ...], tuple[int, Any] | None]) -> bytes:
        num_bytes = int.from_bytes(file[-8:-4], "little")
        footer = decoded(file[-8 - num_bytes : -8])
        for path, field in edits:
            changed(footer, path, field)
        new = encoded(footer)
        return file[: -8 - num_bytes] + new + len(new).to_bytes(4, "little") + file[-4:]

    return edit


def decoded(data: bytes) -> Struct:
    """The struct at the beginning of the bytes."""
    return _struct(data, ThriftReader(data))


def encoded(struct: Struct) -> bytes:
    """The bytes of a struct, with the number of each field in the long form."""
    fields = (
        bytes((_type(type_, value),)) + zigzag(number) + _bytes(type_, value)
        for number, (type_, value) in sorted(struct.items())
    )
    return b"".join(fields) + b"\0"


def changed(struct: Struct, path: tuple[int, ...], field: tuple[int, Any] | None) -> None:
    value: Any = struct
    for step in path[:-1]:
        value = value[step][1] if isinstance(value, dict) else value[1][step]
    if field is None:
        del value[path[-1]]
    else:
        value[path[-1]] = field


def _struct(data: bytes, reader: ThriftReader) -> Struct:
    found, number = {}, 0
    while (field := reader.field(number)) is not None:
        type_, number = field
        found[number] = (type_, _value(data, reader, type_))
    return found


def _value(data: bytes, reader: ThriftReader, type_: int) -> Any:
    if type_ in (TRUE, FALSE):
        return type_ == TRUE
    if type_ in (I16, I32, I64):
        return reader.zigzag()
    if type_ == STRUCT:
        return _struct(data, reader)
    if type_ == LIST:
        item_type, count = reader.list_head()
        return item_type, [_value(data, reader, item_type) for _ in range(count)]
    length = {I8: 1, DOUBLE: 8}.get(type_) or reader.varint()
    begin = reader.position
    reader.skip_bytes(length)
    return data[begin : begin + length]


def _type(type_: int, value: Any) -> int:
    return (TRUE if value else FALSE) if type_ in (TRUE, FALSE) else type_


def _bytes(type_: int, value: Any) -> bytes:
    if type_ in (TRUE, FALSE):
        return b""
    if type_ in (I16, I32, I64):
        return zigzag(value)
    if type_ == STRUCT:
        return encoded(value)
    if type_ == LIST:
        item_type, values = value
        head = bytes((0xF0 | item_type,)) + varint(len(values))
        return head + b"".join(_bytes(item_type, item) for item in values)
    found: bytes = (varint(len(value)) if type_ == BINARY else b"") + value
    return found
