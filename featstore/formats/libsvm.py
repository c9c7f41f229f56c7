"""Rows of libsvm files: `label [qid:n] index:value ... [# comment]` on each line.

The rows become columns `label`, `qid` if there are any, and two lists of one length, `indices` and
`values`. Indices are kept as they are written, from 0 or 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    name_of,
)
from featstore.formats.text_values import changed_numbers
from featstore.ops.arrays import values_of
from featstore.ops.lists import array_of_bits

COLUMNS = {
    "label": pa.float64(),
    "qid": pa.int64(),
    "indices": pa.list_(pa.int64()),
    "values": pa.list_(pa.float64()),
}
_NUMBER = r"(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|inf))"
_MAX = str(2**63 - 1)
# Up to that: fewer digits, or as many and a smaller one at some place.
_INTEGER = "0*(?:[0-9]{1,18}|[0-8][0-9]{18}|" + "|".join(
    f"{_MAX[:i]}[0-{int(_MAX[i]) - 1}][0-9]{{{18 - i}}}" for i in range(1, 19) if _MAX[i] != "0"
)
_INTEGER += f"|{_MAX})"
_FEATURE = rf"^(?P<index>{_INTEGER}):(?P<value>{_NUMBER})$"
_QID = rf"^qid:(?P<qid>{_INTEGER})$"


@dataclass(frozen=True, kw_only=True)
class LibsvmFormat(RowFormat):
    """libsvm, also known as svmlight."""

    name: str = "libsvm"

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if COLUMNS.get(field.name) != field.type:
                expected = ", ".join(f"{name} ({name_of(kind)})" for name, kind in COLUMNS.items())
                raise InputError(
                    f"column {field.name!r} ({name_of(field.type)}): libsvm has only the "
                    f"columns {expected}"
                )

    def sample(self, source: IO[bytes], most: int) -> list[str]:
        """The columns of the first rows, since that is all that can differ."""
        for block in line_blocks(source):
            parsed = _parse(block, pa.schema(list(COLUMNS.items())))
            if parsed.batch.num_rows:
                has_qid = parsed.batch["qid"].null_count < parsed.batch.num_rows
                return [name for name in COLUMNS if name != "qid" or has_qid]
        return []

    def infer(self, rows: Sequence[str]) -> pa.Schema:
        return pa.schema([(name, kind) for name, kind in COLUMNS.items() if name in rows])

    def read(self, source: IO[bytes], schema: pa.Schema) -> Iterator[ParsedRows]:
        for block in line_blocks(source):
            yield _parse(block, schema)


def _parse(block: Lines, schema: pa.Schema) -> ParsedRows:
    # Bytes after `#` and space around are no part of a row. A comment may be of any encoding.
    lines = [line.partition(b"#")[0] for line in block.lines]
    texts = pc.ascii_trim_whitespace(pa.array(lines, pa.binary()).view(pa.string()))
    is_row = values_of(pc.greater(pc.binary_length(texts), 0))
    numbers = np.flatnonzero(is_row)
    tokens = pc.ascii_split_whitespace(texts.filter(array_of_bits(is_row)))
    words, row_of = pc.list_flatten(tokens), values_of(pc.list_parent_indices(tokens))
    place = np.arange(len(words)) - np.flatnonzero(np.diff(row_of, prepend=-1))[row_of]
    labels = words.filter(array_of_bits(place == 0))
    is_good = values_of(pc.match_substring_regex(labels, f"^{_NUMBER}$"))
    qids = pc.struct_field(pc.extract_regex(words, _QID), "qid")
    is_qid = values_of(pc.is_valid(qids)) & (place == 1)
    is_feature = (place > 0) & ~is_qid
    found = pc.extract_regex(words, _FEATURE)
    values = pc.struct_field(found, "value")
    # No features, or with values that a double does not keep.
    is_bad = ~values_of(pc.is_valid(found)) | changed_numbers(values)
    is_good = is_good & ~changed_numbers(labels)
    is_good[row_of[is_bad & is_feature]] = False
    kept = array_of_bits(is_feature & is_good[row_of])
    counts = np.bincount(row_of[values_of(kept)], minlength=len(numbers))[is_good]
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    features = found.filter(kept)
    by_row = np.full(len(numbers), -1)
    by_row[row_of[is_qid]] = np.flatnonzero(is_qid)
    of_row = pa.array(by_row[is_good], mask=by_row[is_good] < 0)
    columns = {
        "label": labels.filter(array_of_bits(is_good)).cast(pa.float64()),
        "qid": qids.take(of_row).cast(pa.int64()),
        "indices": _lists(offsets, features, "index", pa.int64()),
        "values": _lists(offsets, features, "value", pa.float64()),
    }
    bad = numbers[~is_good]
    unknown = {} if "qid" in schema.names else {"qid": int((by_row[is_good] >= 0).sum())}
    return ParsedRows(
        batch=pa.record_batch([columns[name] for name in schema.names], schema),
        unknown={name: count for name, count in unknown.items() if count},
        num_bad=len(bad),
        examples=tuple(_bad_row(block, int(i)) for i in bad[:MAX_EXAMPLES]),
    )


def _lists(offsets: pa.Array, features: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    values = pc.struct_field(features, name).cast(kind)
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(kind))


def _bad_row(block: Lines, i: int) -> BadRow:
    line = block.lines[i]
    shown = repr(line[:60].decode("utf-8", "replace"))
    return BadRow(
        place=f"line {block.first + i}",
        reason=f"expected `label index:value ...`, found {shown}{'...' * (len(line) > 60)}",
    )
