"""Chooses the encoding of each column of a data file, once, from the rows of its first row group.

The rules and constants come from `benchmarks/writing.py`: each kind of column gets the encoding
that costs least among those that readers of Parquet support, if fetching a byte costs as much as a
nanosecond of decoding.

Whether a dictionary pays off depends on the number of distinct values. Numbers are counted by
linear counting (Whang, Vander-Zanden and Taylor, 1990): each value sets one of m = 2^18 bits, and
after n distinct values m exp(-n / m) bits are still empty on average. The bitmap of 32 KiB fits the
processor's L1 cache, while an exact count walks through megabytes.
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

# The bytes that a dictionary must save per value: a look-up takes a nanosecond, in which a reader
# fetches a byte (1 GB/s).
LOOKUP_BYTES = 1.0
# The limit of a column chunk's dictionary. A larger one does not fit the processor's cache, and
# look-ups cost twice as much.
DICTIONARY_LIMIT_BYTES = 1 << 20
DATA_PAGE_VERSION = "2.0"
# log2 of the bits of the map. A smaller map saturates at fewer distinct values; a larger one leaves
# the L1 cache.
MARK_BITS = 18

_LENGTH_BYTES = 4  # Parquet's plain encoding stores the length before each text.
_WIDTHS = {pa.int64(): 8, pa.float32(): 4}


@dataclass(frozen=True, kw_only=True)
class Encodings:
    """The encodings of columns, by leaf path as Parquet names it (`tags.list.element`). Columns in
    neither field are stored plain.

    Attributes:
        dictionary: The columns with a dictionary.
        others: The columns with another encoding, and its name.
    """

    dictionary: tuple[str, ...]
    others: Mapping[str, str]


def choose_encodings(row_group: pa.Table) -> Encodings:
    """Chooses the encodings of a data file from its first row group.

    Lists are addressed by leaf path, since the Parquet writer ignores their plain names. Values
    that are nested deeper are stored plain.
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
    """Whether a dictionary and the indices into it save at least the bytes that look-ups cost."""
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
    """The mean size of a value stored plain. Texts and bytes are preceded by their length."""
    if values.type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _LENGTH_BYTES + float(pc.mean(pc.binary_length(values)).as_py() or 0)
    return float(values.type.bit_width / 8)


def _without_dictionary(arrow_type: pa.DataType, is_element: bool) -> str | None:
    """The encoding of a column without a dictionary; None for plain.

    Integers of labels and kept columns often increase or are small, which delta encoding exploits.
    Signs are random.
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
    """The number of distinct values, null being one of them.

    The count is exact for columns with nulls and for all types but int64 and float32. For these two
    (compared by their bits) it is an estimate, within 1 % or 1 up to a million. The result does not
    depend on whether the kernels are compiled.
    """
    if values.type not in _WIDTHS or values.null_count:
        return int(pc.count_distinct(values, mode="all").as_py())
    column = values_of(
        pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    )
    # Linear counting: n = m ln(m / empty). Rounding may exceed the number of values.
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
