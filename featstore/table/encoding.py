"""How each column of a data file is encoded: decided once, from the rows of its first row group.

The rules and their figures are those of `benchmarks/writing.py`: of what readers of Parquet know, each kind of column gets
what costs least where a byte to fetch counts as much as a nanosecond to decode.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from featstore.table.distinct import count_distinct

LOOKUP_BYTES = 1.0
"""A dictionary must save so much a value: looking one up takes a nanosecond, in which a reader gets a byte (1 GB/s)."""
DICTIONARY_LIMIT_BYTES = 1 << 20
"""Of a column chunk's dictionary: a larger one leaves the processor's cache, and its look-ups cost twice as much."""
DATA_PAGE_VERSION = "2.0"

_LENGTH_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Encodings:
    """By leaf path, as Parquet names values (`tags.list.element`): a dictionary, another encoding, or neither (plain)."""

    dictionary: tuple[str, ...]
    others: Mapping[str, str]


def choose_encodings(row_group: pa.Table) -> Encodings:
    """The encodings of the columns of a data file whose first row group this is.

    Under a list's plain name the choice would be ignored, hence leaf paths. Values nested deeper are stored plain.
    """
    leaves = {path: values for column in row_group.schema for path, values in _leaves(column, row_group[column.name])}
    dictionary = tuple(path for path, values in leaves.items() if pays_as_dictionary(values))
    rest = {path: _without_dictionary(values.type, "." in path) for path, values in leaves.items() if path not in dictionary}
    required = {column.name for column in row_group.schema if not column.nullable}
    others = {path: encoding for path, encoding in rest.items() if encoding is not None and path not in required}
    return Encodings(dictionary=dictionary, others=others)


def pays_as_dictionary(values: pa.ChunkedArray) -> bool:
    """Whether the dictionary of these values and the indices into it save what looking the values up costs."""
    if not len(values) or any(is_kind(values.type) for is_kind in (pa.types.is_boolean, pa.types.is_nested, pa.types.is_null)):
        return False
    width, num_distinct = _value_bytes(values), count_distinct(values)
    dictionary_bytes = num_distinct * width
    index_bytes = len(values) * max(1, (num_distinct - 1).bit_length()) / 8
    saved_bytes = len(values) * (width - LOOKUP_BYTES) - dictionary_bytes - index_bytes
    return dictionary_bytes <= DICTIONARY_LIMIT_BYTES and saved_bytes >= 0


def _value_bytes(values: pa.ChunkedArray) -> float:
    """Of one value, stored plain: texts and bytes with their length before them."""
    if values.type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _LENGTH_BYTES + float(pc.mean(pc.binary_length(values)).as_py() or 0)
    return float(values.type.bit_width / 8)


def _without_dictionary(arrow_type: pa.DataType, is_element: bool) -> str | None:
    """What takes the place of plain values in labels and kept columns: their integers grow or count, signs do neither."""
    if is_element:
        return None
    if pa.types.is_timestamp(arrow_type) or arrow_type in (pa.int64(), pa.int32()):
        return "DELTA_BINARY_PACKED"
    return "DELTA_LENGTH_BYTE_ARRAY" if arrow_type in (pa.string(), pa.binary()) else None


def _leaves(column: pa.Field, values: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    if not pa.types.is_nested(column.type):
        yield column.name, values
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield f"{column.name}.list.element", pc.list_flatten(values)
