"""Chooses the encoding and the codec of each column of a data file, once, from the rows of its
first row group.

The rules and constants come from `benchmarks/writing.py`: each kind of column gets the encoding
that costs least among those that readers of Parquet support, if fetching a byte costs as much as a
nanosecond of decoding.

Whether a dictionary pays off depends on the number of distinct values. Numbers are counted by
linear counting (Whang, Vander-Zanden and Taylor, 1990): each value sets one of m = 2^18 bits, and
after n distinct values m exp(-n / m) bits are still empty on average. The bitmap of 32 KiB fits the
processor's L1 cache, while an exact count walks through megabytes.

Random signs and the indices into their dictionaries hardly shrink: there a codec costs time when
they are written and read, and saves next to nothing (docs/design/writing.md).
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.native import kernels
from featstore.ops.arrays import array_of, values_of

# The bytes that a dictionary must save per value: a look-up takes a nanosecond, in which a reader
# fetches a byte (1 GB/s).
LOOKUP_BYTES = 1.0
# The limit of a column chunk's dictionary. A larger one does not fit the processor's cache, and
# look-ups cost twice as much.
DICTIONARY_LIMIT_BYTES = 1 << 20
# That of a history's list, each value of which is looked up once for all rows that have it: from
# dictionaries of up to 2 MB decoding took 0.6 of the time (benchmarks/histories.md).
SHARED_LIMIT_BYTES = 4 << 20
DATA_PAGE_VERSION = "2.0"
# zstd makes smaller files and decodes more slowly (`benchmarks/writing.md`).
COMPRESSION = "snappy"
# log2 of the bits of the map. A smaller map saturates at fewer distinct values; a larger one leaves
# the L1 cache.
MARK_BITS = 18
# A column is compressed if that saves at least this share of its bytes.
MIN_SAVED_SHARE = 0.1
# Values that are compressed on trial. With half as many, columns whose indices begin with a run of
# small ones were misjudged: files of the flights grew by 2 % instead of 1 %.
SAMPLE_VALUES = 8_192
# A shorter column is compressed in any case: it costs little, and its trial as much.
MIN_VALUES = 4_096

_LENGTH_BYTES = 4  # Parquet's plain encoding stores the length before each text.
_WIDTHS = {pa.int64(): 8, pa.float32(): 4}
_WITHOUT = (pa.bool_(), pa.null())


@dataclass(frozen=True, kw_only=True)
class Encodings:
    """The encodings of columns, by leaf path as Parquet names it (`tags.list.element`). Columns in
    neither of the first two fields are stored plain.

    Attributes:
        dictionary: The columns with a dictionary.
        others: The columns with another encoding, and its name.
        uncompressed: The columns that the codec would hardly shrink.
    """

    dictionary: tuple[str, ...]
    others: Mapping[str, str]
    uncompressed: tuple[str, ...] = ()


def choose_encodings(
    row_group: pa.Table, compression: str = COMPRESSION, shared: Collection[str] = ()
) -> Encodings:
    """Chooses the encodings of a data file from its first row group.

    Lists are addressed by leaf path, since the Parquet writer ignores their plain names. Values
    that are nested deeper are stored plain. Columns that may hold nulls are compressed in any case:
    they are few.

    Args:
        row_group: The first row group.
        compression: The codec of the columns that are compressed.
        shared: The leaf columns that are lists of histories.
    """
    codec = pa.Codec(compression)
    dictionary: list[str] = []
    others: dict[str, str] = {}
    uncompressed: list[str] = []
    for column, of_column in zip(row_group.schema, row_group.columns, strict=True):
        for path, values in _leaves(column, of_column):
            num_distinct = num_in_dictionary(values, is_shared=path in shared)
            if num_distinct:
                dictionary.append(path)
            elif column.nullable and (encoding := _without_dictionary(column.type)) is not None:
                others[path] = encoding
            if (
                not column.nullable
                and values.type in _WIDTHS
                and not values.null_count
                and not pays_to_compress(values, num_distinct, codec)
            ):
                uncompressed.append(path)
    return Encodings(dictionary=tuple(dictionary), others=others, uncompressed=tuple(uncompressed))


def num_in_dictionary(values: pa.ChunkedArray, *, is_shared: bool = False) -> int:
    """The number of distinct values; 0 if a dictionary and the indices into it would not save the
    bytes that look-ups cost.
    """
    arrow_type = values.type
    if not len(values) or pa.types.is_nested(arrow_type) or arrow_type in _WITHOUT:
        return 0
    width, num_distinct = _value_bytes(values), count_distinct(values)
    dictionary_bytes = num_distinct * width
    index_bytes = len(values) * max(1, (num_distinct - 1).bit_length()) / 8
    saved_bytes = len(values) * (width - LOOKUP_BYTES) - dictionary_bytes - index_bytes
    limit_bytes = SHARED_LIMIT_BYTES if is_shared else DICTIONARY_LIMIT_BYTES
    pays = dictionary_bytes <= limit_bytes and saved_bytes >= 0
    return num_distinct if pays else 0


def parquet_options(
    row_group: pa.Table,
    compression: str = COMPRESSION,
    given: Mapping[str, str] | None = None,
    shared: Collection[str] = (),
) -> dict[str, Any]:
    """How a data file is written whose first row group is this one.

    Elements of lists have no statistics: no reader prunes by them, and in wide files they make up
    much of the footer.

    Args:
        row_group: The first row group.
        compression: The codec of the columns that are compressed.
        given: The encodings of leaf columns that are not to be chosen.
        shared: As of `choose_encodings`.

    Returns:
        Arguments of `pyarrow.parquet.ParquetWriter`.
    """
    encodings, given = choose_encodings(row_group, compression, shared), given or {}
    codecs = dict.fromkeys(_leaf_paths(pa.struct(row_group.schema)), compression)
    return {
        # Columns that a dict of codecs does not name would not be compressed.
        "compression": codecs | dict.fromkeys(encodings.uncompressed, "NONE"),
        "use_dictionary": [path for path in encodings.dictionary if path not in given],
        "column_encoding": {**encodings.others, **given},
        "dictionary_pagesize_limit": SHARED_LIMIT_BYTES if shared else DICTIONARY_LIMIT_BYTES,
        "data_page_version": DATA_PAGE_VERSION,
        "write_page_checksum": True,
        "write_statistics": [
            column.name for column in row_group.schema if not pa.types.is_nested(column.type)
        ],
    }


def _value_bytes(values: pa.ChunkedArray) -> float:
    """The mean size of a value stored plain. Texts and bytes are preceded by their length."""
    if values.type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _LENGTH_BYTES + float(pc.mean(pc.binary_length(values)).as_py() or 0)
    return float(values.type.bit_width / 8)


def _without_dictionary(arrow_type: pa.DataType) -> str | None:
    """The encoding of a label or kept column without a dictionary; None for plain.

    Their integers often increase or are small, which delta encoding exploits. Signs are random.
    """
    if pa.types.is_timestamp(arrow_type) or arrow_type in (pa.int64(), pa.int32()):
        return "DELTA_BINARY_PACKED"
    return "DELTA_LENGTH_BYTE_ARRAY" if arrow_type in (pa.string(), pa.binary()) else None


def _leaves(column: pa.Field, values: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    if not pa.types.is_nested(column.type):
        yield column.name, values
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield f"{column.name}.list.element", pc.list_flatten(values)


def _leaf_paths(arrow_type: pa.DataType, path: str = "") -> Iterator[str]:
    """The paths of all leaves below a type at `path`, as Arrow names them in Parquet."""
    if pa.types.is_struct(arrow_type):
        for field in arrow_type:
            yield from _leaf_paths(field.type, f"{path}.{field.name}" if path else field.name)
    elif pa.types.is_map(arrow_type):
        yield from _leaf_paths(arrow_type.key_type, f"{path}.key_value.key")
        yield from _leaf_paths(arrow_type.item_type, f"{path}.key_value.value")
    elif pa.types.is_nested(arrow_type):
        yield from _leaf_paths(arrow_type.value_type, f"{path}.list.element")
    else:
        yield path


def count_distinct(values: pa.ChunkedArray) -> int:
    """The number of distinct values, null being one of them.

    The count is exact for columns with nulls and for all types but int64 and float32. For these two
    (compared by their bits) it is an estimate, within 1 % or 1 up to a million.
    """
    if values.type not in _WIDTHS or values.null_count:
        return int(pc.count_distinct(values, mode="all").as_py())
    column = values_of(values.chunk(0) if values.num_chunks == 1 else values.combine_chunks())
    # Linear counting: n = m ln(m / empty). Rounding may exceed the number of values.
    num_bits = 1 << MARK_BITS
    num_empty = num_bits - kernels.count_marks(column, _WIDTHS[values.type])
    return min(len(column), round(num_bits * math.log(num_bits / max(num_empty, 1))))


def pays_to_compress(values: pa.ChunkedArray, num_in_dictionary: int, codec: pa.Codec) -> bool:
    """Whether a codec saves at least `MIN_SAVED_SHARE` of a slot column's bytes.

    The first `SAMPLE_VALUES` are compressed as they will be stored: plain, or as bit-packed indices
    into the dictionary. The dictionary itself counts as incompressible.

    Args:
        values: int64 or float32 without nulls; of lists the elements.
        num_in_dictionary: The number of values in the column's dictionary, 0 for no dictionary.
        codec: The codec.
    """
    if len(values) < MIN_VALUES:
        return True
    sample = pa.concat_arrays(values.slice(0, SAMPLE_VALUES).chunks)
    if not num_in_dictionary:
        return _share_left(array_of(values_of(sample)).buffers()[1], codec) <= 1 - MIN_SAVED_SHARE
    index_bits = max(1, (num_in_dictionary - 1).bit_length())
    index_bytes = len(values) * index_bits / 8
    dictionary_bytes = num_in_dictionary * values.type.bit_width / 8
    saved_bytes = (1 - _share_left(_packed_indices(sample, index_bits), codec)) * index_bytes
    return bool(saved_bytes >= MIN_SAVED_SHARE * (index_bytes + dictionary_bytes))


def _share_left(data: pa.Buffer, codec: pa.Codec) -> float:
    return len(codec.compress(data)) / len(data)


def _packed_indices(values: pa.Array, index_bits: int) -> pa.Buffer:
    """The indices into a dictionary in order of first occurrence, as Parquet packs them: the lowest
    bit first.
    """
    indices = values_of(values.dictionary_encode().indices)
    bits = (indices[:, None] >> np.arange(index_bits, dtype=np.int32)) & 1
    return pa.py_buffer(np.packbits(bits.astype(np.uint8), bitorder="little"))
