"""How each column of a data file is encoded: decided once, from the rows of its first row group.

The rules and their figures are those of `benchmarks/writing.py`: of what readers of Parquet know,
each kind of column gets what costs least where a byte to fetch counts as much as a nanosecond to
decode.

Whether a dictionary pays depends on how many different values a column has. Numbers are counted
linearly (Whang, Vander-Zanden, Taylor 1990): each value marks one of 2^18 bits, and of m bits the
number still empty after n different values is m exp(-n / m) on average. A map of 32 KiB stays in
the processor's first cache, where an exact count walks through megabytes.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore._native.loading import KERNELS
from featstore.ops.arrays import values_of
from featstore.ops.hashing import mark_of

LOOKUP_BYTES = 1.0
"""A dictionary must save so much a value: looking one up takes a nanosecond, in which a reader gets
a byte (1 GB/s).
"""
DICTIONARY_LIMIT_BYTES = 1 << 20
"""Of a column chunk's dictionary: a larger one leaves the processor's cache, and its look-ups cost
twice as much.
"""
DATA_PAGE_VERSION = "2.0"
MARK_BITS = 18

_LENGTH_BYTES = 4
_WIDTHS = {pa.int64(): 8, pa.float32(): 4}


@dataclass(frozen=True, kw_only=True)
class Encodings:
    """By leaf path, as Parquet names values (`tags.list.element`): a dictionary, another encoding,
    or neither (plain).
    """

    dictionary: tuple[str, ...]
    others: Mapping[str, str]


def choose_encodings(row_group: pa.Table) -> Encodings:
    """The encodings of the columns of a data file whose first row group this is.

    Under a list's plain name the choice would be ignored, hence leaf paths. Values nested deeper
    are stored plain.
    """
    leaves = {
        path: values
        for column in row_group.schema
        for path, values in _leaves(column, row_group[column.name])
    }
    dictionary = tuple(path for path, values in leaves.items() if pays_as_dictionary(values))
    rest = {
        path: _without_dictionary(values.type, "." in path)
        for path, values in leaves.items()
        if path not in dictionary
    }
    required = {column.name for column in row_group.schema if not column.nullable}
    others = {
        path: encoding
        for path, encoding in rest.items()
        if encoding is not None and path not in required
    }
    return Encodings(dictionary=dictionary, others=others)


def pays_as_dictionary(values: pa.ChunkedArray) -> bool:
    """Whether the dictionary of these values and the indices into it save what looking the values
    up costs.
    """
    if not len(values) or any(
        is_kind(values.type)
        for is_kind in (pa.types.is_boolean, pa.types.is_nested, pa.types.is_null)
    ):
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
    """What takes the place of plain values in labels and kept columns: their integers grow or
    count, signs do neither.
    """
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


def count_distinct(values: pa.ChunkedArray) -> int:
    """The number of different values, null being one of them: exact for texts, times and where
    there are nulls; of int64 and float32 (by their bits) to within 1 %, or 1, up to a million. With
    and without kernels the same.
    """
    if values.type not in _WIDTHS or values.null_count:
        return int(pc.count_distinct(values, mode="all").as_py())
    column = values_of(
        pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    )
    num_bits = 1 << MARK_BITS
    num_empty = num_bits - _count_marks(column, _WIDTHS[values.type])
    return min(len(column), round(num_bits * math.log(num_bits / max(num_empty, 1))))


def _count_marks(values: NDArray[np.int64] | NDArray[np.float32], width: int) -> int:
    if KERNELS is not None:
        return int(KERNELS.count_marks(values, width))
    marked = np.zeros(1 << MARK_BITS, np.bool_)
    marked[
        mark_of(values.view(np.uint64 if width == 8 else np.uint32).astype(np.uint64), MARK_BITS)
    ] = True
    return int(np.count_nonzero(marked))
