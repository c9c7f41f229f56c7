"""Rows of JSON lines, by pyarrow's reader: each line is one object."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import InputError
from featstore.base.libraries import LazyModule
from featstore.formats.byte_source import Lines, line_blocks
from featstore.formats.parsed import (
    MAX_EXAMPLES,
    BadRow,
    ParsedRows,
    RowFormat,
    halves,
    inferred,
    is_inferred,
    name_of,
    no_rows,
)
from featstore.formats.text_values import MAY_CHANGE, infer_time, is_kept
from featstore.native.damage import first_line
from featstore.ops.arrays import Integers, values_of

pa_json: Any = LazyModule("pyarrow.json")

# Arrow's parser is recursive, and ends the process where its stack does.
_MAX_NESTING = 500
_MAX_WHOLE = 2**53  # a double holds every whole number up to here
# The kinds of JSON values; that of a list or object says nothing of what is in it.
_KINDS = {
    type(None): None,
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    list: pa.list_(pa.null()),
    dict: pa.struct([]),
}
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F]")
_MAY_CHANGE = re.compile(MAY_CHANGE.encode(), re.MULTILINE)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, kw_only=True)
class JsonFormat(RowFormat):
    """JSON lines. Fields that a row lacks are null."""

    name: str = "json"

    def check(self, schema: pa.Schema) -> None:
        for column in schema:
            if pa.types.is_map(column.type):
                raise InputError(
                    f"column {column.name!r}: pyarrow does not read JSON as "
                    f"{name_of(column.type)}; leave its type out, and it is read as the struct "
                    f"that it is"
                )

    def sample(self, source: IO[bytes], most: int) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        for block in line_blocks(source):
            for line in block.lines[: most - len(rows)]:
                try:
                    row = json.loads(line)
                    if b"\\u" in line:  # halves of a surrogate pair are no text
                        json.dumps(row, ensure_ascii=False).encode()
                except (ValueError, RecursionError):  # also that of bytes that are not UTF-8
                    continue
                if isinstance(row, dict):
                    rows.append(row)
            if len(rows) >= most:
                break
        return rows

    def infer(self, rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row[name] for row in rows if name in row] for name in names}
        fields = [
            inferred(name, _column_type(of), has_value=any(value is not None for value in of))
            for name, of in columns.items()
        ]
        return pa.schema([field for field in fields if not _is_empty(field.type)])

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        for block in line_blocks(source):
            yield _parse(block, schema)


def _column_type(values: Sequence[Any]) -> pa.DataType:
    """The type of most of these values, and of all where whole numbers and others are mixed, unless
    a whole one is beyond what a double holds: then one of both kinds is malformed.
    """
    kinds = Counter(kind for value in values if (kind := _KINDS[type(value)]) is not None)
    if not kinds:
        return pa.string()
    is_kept = all(type(value) is not int or abs(value) <= _MAX_WHOLE for value in values)
    if pa.float64() in kinds and is_kept:  # some numbers are not whole
        kinds[pa.float64()] += kinds.pop(pa.int64(), 0)
    most = kinds.most_common(1)[0][0]
    of_most = [value for value in values if _KINDS[type(value)] == most]
    if most == pa.string():
        return infer_time(pa.array(of_most))
    if pa.types.is_list(most):
        elements = [element for value in of_most for element in value]
        return pa.list_(_column_type(elements))
    if pa.types.is_struct(most):
        names = dict.fromkeys(name for value in of_most for name in value)
        types = {
            name: _column_type([row[name] for row in of_most if name in row]) for name in names
        }
        return pa.struct([(name, kind) for name, kind in types.items() if not _is_empty(kind)])
    return most


def _is_empty(kind: pa.DataType) -> bool:
    """Whether it is that of objects without fields, which Parquet cannot hold."""
    if pa.types.is_list(kind):
        return _is_empty(kind.value_type)
    return pa.types.is_struct(kind) and not kind.num_fields


def _parse(block: Lines, schema: pa.Schema) -> ParsedRows:
    """The rows of a block. Lines without anything are none."""
    numbers = [i for i, line in enumerate(block.lines) if line.strip()]
    lines = [block.lines[i] for i in numbers]
    unknown: Counter[str] = Counter()
    batches, bad = [], []

    def parse(first: int, end: int) -> pa.Table | None:
        try:
            return _read(lines[first:end], schema, unknown)
        except pa.ArrowInvalid:
            return None

    for first, table in halves(0, len(lines), parse):
        if table is None:
            bad.append(first)
        else:
            batches += table.to_batches()
    examples = [
        BadRow(place=f"line {block.first + numbers[i]}", reason=_reason(lines[i], schema))
        for i in bad[:MAX_EXAMPLES]
    ]
    rows = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return ParsedRows(
        batch=rows[0] if rows else no_rows(schema),
        num_bad=len(bad),
        examples=tuple(examples),
        unknown=unknown,
    )


def _read(lines: Sequence[bytes], schema: pa.Schema, unknown: Counter[str]) -> pa.Table:
    """The rows of these lines.

    Raises:
        pa.ArrowInvalid: A line is not JSON, does not fit the schema, or is not one object.
    """
    text = b"\n".join(lines)
    _require_objects(lines, text)
    _require_kept_numbers(lines, text, schema)
    try:
        table = _read_json(text, schema, "infer")
        objects = table.to_struct_array().combine_chunks()
        others = Counter(dict(_more(objects, pa.struct(schema), np.arange(len(table)))))
        if table.select(schema.names).schema != schema:  # objects in it have further fields
            table = _read_json(text, schema, "ignore")
    except pa.ArrowInvalid:
        # A column that is not in the schema may hold values of several types.
        table = _read_json(text, schema, "ignore")
        others = _others(lines, schema)
    if _LOW_SURROGATE.search(text):  # Arrow takes one without the high one before it
        table.validate(full=True)
    if len(table) != len(lines):
        raise pa.ArrowInvalid(
            f"expected an object on each line, found {len(table)} on {len(lines)} lines"
        )
    unknown.update(others)
    return table.select(schema.names)


def _require_objects(lines: Sequence[bytes], text: bytes) -> None:
    """Checks what Arrow (26) does not: it takes `null` for a row, ends the process where that is
    the only one or lists are nested very deep, and keeps strings of other bytes than UTF-8.

    Raises:
        pa.ArrowInvalid: A line does not begin and end as an object does, is nested too deep, or is
            not UTF-8.
    """
    for line in lines:
        bare = line if line[-1:] == b"}" else line.strip()
        if not (bare.lstrip()[:1] == b"{" and bare[-1:] == b"}"):
            raise pa.ArrowInvalid("expected an object")
        num_opened = line.count(b"{") + line.count(b"[")
        if num_opened > _MAX_NESTING and _nesting(line) > _MAX_NESTING:
            raise pa.ArrowInvalid(f"expected at most {_MAX_NESTING} levels of nesting")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"expected UTF-8, found other bytes ({error.reason})") from None


class _Digits(str):
    """A number of JSON as it is written."""


def _require_kept_numbers(lines: Sequence[bytes], text: bytes, schema: pa.Schema) -> None:
    """Raises pa.ArrowInvalid if a double whose type was inferred does not keep a number."""
    inferred_fields = [column for column in schema if is_inferred(column)]
    has_double = any("double" in str(column.type) for column in inferred_fields)
    if not has_double or not _MAY_CHANGE.search(text):
        return
    kind = pa.struct(inferred_fields)
    for line in filter(_MAY_CHANGE.search, lines):
        row: object = None
        with contextlib.suppress(ValueError, RecursionError):  # Arrow says what is wrong with it
            row = json.loads(line, parse_int=_Digits, parse_float=_Digits)
        if (lost := next(_lost(row, kind), None)) is not None:
            raise pa.ArrowInvalid(f"expected numbers that a double keeps, found {lost}")


def _lost(value: Any, kind: pa.DataType) -> Iterator[_Digits]:
    """The numbers within a value that a double does not keep."""
    if isinstance(value, _Digits):
        if pa.types.is_floating(kind) and not is_kept(value):
            yield value
    elif isinstance(value, list) and pa.types.is_list(kind):
        for element in value:
            yield from _lost(element, kind.value_type)
    elif isinstance(value, dict) and pa.types.is_struct(kind):
        for column in kind:
            yield from _lost(value.get(column.name), column.type)


def _nesting(line: bytes) -> int:
    """How many lists and objects are around the innermost value."""
    codes = np.frombuffer(_STRING.sub(b"", line), np.uint8)
    begins, ends = (np.isin(codes, np.frombuffer(of, np.uint8)) for of in (b"{[", b"}]"))
    return int(np.cumsum(begins.astype(np.int64) - ends).max(initial=0))


def _more(
    values: pa.Array, kind: pa.DataType, rows: Integers, path: str = ""
) -> Iterator[tuple[str, int]]:
    """What objects have beyond their type, and in how many rows that has a value.

    Args:
        values: The objects, or lists of them; others have no more.
        kind: The type that they are to have.
        rows: The row that each value belongs to, int64 (num_values,).
        path: What the names of their fields begin with.
    """
    if values.type == kind:
        return
    if pa.types.is_list(kind):
        parents = values_of(pc.list_parent_indices(values))
        yield from _more(pc.list_flatten(values), kind.value_type, rows[parents], path)
    elif pa.types.is_struct(kind):
        for i, field in enumerate(values.type):
            inner, index = pc.struct_field(values, i), kind.get_field_index(field.name)
            name = f"{path}{field.name}"
            if index >= 0:
                yield from _more(inner, kind.field(index).type, rows, f"{name}.")
            elif num_rows := len(np.unique(rows[values_of(pc.is_valid(inner))])):
                yield name, num_rows


def _others(lines: Sequence[bytes], schema: pa.Schema) -> Counter[str]:
    """In how many rows each column that is not in the schema has a value."""
    others: Counter[str] = Counter()
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            others.update(name for name in row if row[name] is not None)
    for name in schema.names:
        del others[name]
    return others


def _read_json(text: bytes, schema: pa.Schema, others: str) -> pa.Table:
    # A thread of Arrow's pool may free the text, at the interpreter's end too: Arrow owns it.
    owned = pa.BufferOutputStream()
    owned.write(text)
    return pa_json.read_json(
        pa.BufferReader(owned.getvalue()),
        # The lines of a block are read in one piece, with a thread for each file.
        pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )


def _reason(line: bytes, schema: pa.Schema) -> str:
    try:
        _read([line], schema, Counter())
    except pa.ArrowInvalid as error:
        # Within a line the row that Arrow names is always the first.
        reason = first_line(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
    shown = line[:60].decode("utf-8", "replace")
    return f"{reason}; found {shown}{'...' if len(line) > 60 else ''}"
