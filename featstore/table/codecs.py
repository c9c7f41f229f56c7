"""Chooses which columns of a data file are compressed, once, from the first values of the file.

Random signs and the indices into their dictionaries hardly shrink: there a codec costs time when
they are written and read, and saves next to nothing (docs/decisions/0062).
"""

import numpy as np
import pyarrow as pa

from featstore.ops.arrays import array_of, values_of

# A column is compressed if that saves at least this share of its bytes.
MIN_SAVED_SHARE = 0.1
# Values that are compressed on trial. With half as many, columns whose indices begin with a run of
# small ones were misjudged: files of the flights grew by 2 % instead of 1 %.
SAMPLE_VALUES = 8_192
# A shorter column is compressed in any case: it costs little, and its trial as much.
MIN_VALUES = 4_096


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
