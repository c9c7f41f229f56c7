"""Rows of `name:value` pairs: `label:1,slot1:17,tags:a,tags:b` on each line.

A pair's name ends at the first colon. A name that some row repeats is a column of lists. A row
lacks values of names that it does not have, or has without a value; there is no quoting.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import InputError
from featstore.formats.byte_source import Lines, line_blocks
from featstore.formats.parsed import (
    MAX_EXAMPLES,
    BadRow,
    ParsedRows,
    RowFormat,
    inferred,
    name_of,
)
from featstore.formats.text_values import SCALARS, example, infer_text_type, parse_column
from featstore.ops.arrays import Integers, values_of
from featstore.ops.lists import array_of_bits, element_type, is_list

_PAIR = r"^\s*(?P<name>[^:\s](?:[^:]*[^:\s])?)\s*:(?P<value>(?s:.*))$"


@dataclass(frozen=True, kw_only=True)
class PairsFormat(RowFormat):
    """Lines of pairs.

    Attributes:
        delimiter: What is between pairs.
    """

    name: str = "pairs"
    delimiter: str = ","

    def __post_init__(self) -> None:
        if not self.delimiter or ":" in self.delimiter or "\n" in self.delimiter:
            raise InputError(f"delimiter: expected text without a colon, found {self.delimiter!r}")

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if element_type(field.type) not in SCALARS:
                raise InputError(
                    f"column {field.name!r}: expected one of "
                    f"{', '.join(map(name_of, SCALARS))}, or a list of these, found "
                    f"{name_of(field.type)}"
                )

    def sample(self, source: IO[bytes], most: int) -> list["_PairRows"]:
        """The pairs of the first rows, those of a block together."""
        found, left = list[_PairRows](), most
        for block in line_blocks(source):
            found.append(_split(replace(block, lines=block.lines[:left]), self.delimiter))
            left -= len(found[-1].lines)
            if left <= 0:
                break
        return [rows for rows in found if rows.places]

    def infer(self, rows: Sequence["_PairRows"]) -> pa.Schema:
        fields = []
        for name in dict.fromkeys(name for part in rows for name in part.places):
            of_parts = [part.of(name) for part in rows]
            texts = pa.concat_arrays([of for _, of in of_parts])
            kind = infer_text_type(texts)
            is_repeated = any(len(np.unique(row_of)) < len(row_of) for row_of, _ in of_parts)
            of = pa.list_(kind) if is_repeated else kind
            fields.append(inferred(name, of, has_value=texts.null_count < len(texts)))
        return pa.schema(fields)

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        for block in line_blocks(source):
            yield _parsed(_split(block, self.delimiter), schema)


@dataclass(frozen=True, kw_only=True)
class _PairRows:
    """The pairs of some lines.

    Attributes:
        lines: The number of the line of each row.
        wrong: What is wrong with rows, of which there are no pairs.
        row_of: The row of each pair, int64 (num_pairs,), ascending.
        texts: The value of each pair, null where it is empty.
        places: The pairs of each name, ascending.
    """

    lines: list[int]
    wrong: dict[int, str]
    row_of: Integers
    texts: pa.StringArray
    places: Mapping[str, Integers]

    def of(self, name: str) -> tuple[Integers, pa.StringArray]:
        """Rows and texts of a name."""
        places = self.places.get(name, np.zeros(0, np.int64))
        return self.row_of[places], self.texts.take(pa.array(places))


def _split(block: Lines, delimiter: str) -> _PairRows:
    numbers, lines, wrong = list[int](), list[str](), dict[int, str]()
    for number, line in enumerate(block.lines, block.first):
        if not line.strip():
            continue
        try:
            lines.append(line.decode().rstrip("\r"))
        except UnicodeDecodeError as error:
            wrong[len(lines)] = f"expected UTF-8, found other bytes ({error.reason})"
            lines.append("")
        numbers.append(number)
    pairs = pc.split_pattern(pa.array(lines, pa.string()), delimiter)
    words = pc.list_flatten(pairs)
    row_of: Integers = values_of(pc.list_parent_indices(pairs)).astype(np.int64)
    found = pc.extract_regex(words, _PAIR)
    for at in np.flatnonzero(values_of(pc.is_null(found))).tolist():
        wrong.setdefault(int(row_of[at]), f"expected name:value, found {example(words[at])}")
    is_good = ~np.isin(row_of, list(wrong))
    names, texts = (pc.struct_field(found.filter(array_of_bits(is_good)), i) for i in range(2))
    is_empty = pc.equal(pc.binary_length(pc.ascii_trim_whitespace(texts)), 0)
    encoded = names.dictionary_encode()
    codes = values_of(encoded.indices)
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    by_name = np.split(np.argsort(codes, kind="stable"), ends[:-1])
    return _PairRows(
        lines=numbers,
        wrong=wrong,
        row_of=row_of[is_good],
        texts=pc.if_else(is_empty, pa.scalar(None, pa.string()), texts),
        places=dict(zip(encoded.dictionary.to_pylist(), by_name, strict=False)),
    )


def _parsed(rows: _PairRows, schema: pa.Schema) -> ParsedRows:
    wrong, num_rows = dict(rows.wrong), len(rows.lines)
    columns = [_column(rows, field, wrong) for field in schema]
    is_good = np.ones(num_rows, np.bool_)
    is_good[list(wrong)] = False
    unknown = {
        name: len(np.unique(row_of[values_of(pc.is_valid(texts))]))
        for name in rows.places
        if name not in schema.names
        for row_of, texts in [rows.of(name)]
    }
    return ParsedRows(
        batch=pa.record_batch(columns, schema).filter(array_of_bits(is_good)),
        num_bad=len(wrong),
        examples=tuple(
            BadRow(place=f"line {rows.lines[row]}", reason=wrong[row])
            for row in sorted(wrong)[:MAX_EXAMPLES]
        ),
        unknown={name: count for name, count in unknown.items() if count},
    )


def _column(rows: _PairRows, field: pa.Field, wrong: dict[int, str]) -> pa.Array:
    """The column of a field; adds what is wrong with rows."""
    num_rows, (row_of, texts) = len(rows.lines), rows.of(field.name)
    values, bad = parse_column(field, texts)
    for at, reason in bad.items():
        wrong.setdefault(int(row_of[at]), reason)
    counts = np.bincount(row_of, minlength=num_rows)
    if is_list(field.type):
        has_value = pc.is_valid(texts)
        lengths = np.bincount(row_of[values_of(has_value)], minlength=num_rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        of_rows = pa.array(offsets, pa.int32(), mask=np.append(counts == 0, False))
        return pa.ListArray.from_arrays(of_rows, values.filter(has_value), type=field.type)
    for row in np.flatnonzero(counts > 1).tolist():
        wrong.setdefault(
            row,
            f"column {field.name!r}: expected one value, found {counts[row]}; "
            f"--column {field.name}='list<...>'",
        )
    by_row = np.full(num_rows, -1)
    by_row[row_of] = np.arange(len(row_of))
    return values.take(pa.array(by_row, mask=by_row < 0))
