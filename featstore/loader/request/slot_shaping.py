"""Applies the options of a requested slot to its values: cuts lists, hashes ids into buckets, pads,
and converts the dtype.
"""

import numpy as np

from featstore.loader.request.slot_options import FIRST, RIGHT, SlotRequest
from featstore.native import kernels
from featstore.reading.buffers import Array, Ragged, Values, truncate
from featstore.tensors.writable import bfloat16_bits


def shaped(values: Values, item: SlotRequest) -> Values:
    """The slot's values with the options of its request applied."""
    if isinstance(values, Ragged):
        return _shaped_lists(values, item)
    return _converted(
        values if item.buckets is None else bucketed(values, item.buckets), item.dtype
    )


def bucketed(values: Array, buckets: int) -> Array:
    """`1 + sign % (buckets - 1)`; 0 where the sign is 0, which is missing."""
    found = np.empty(values.shape, np.int64)
    kernels.bucket_ids(np.ascontiguousarray(values), buckets - 1, found)
    return found


def cut(ragged: Ragged, max_len: int, keep: str) -> Ragged:
    """The first or the last `max_len` elements of each list."""
    if keep == FIRST:
        return truncate(ragged, max_len)
    lengths = np.diff(ragged.offsets)
    kept = np.minimum(lengths, max_len)
    offsets = np.concatenate([[0], np.cumsum(kept)])
    places = np.arange(offsets[-1]) + np.repeat(ragged.offsets[1:] - offsets[1:], kept)
    return Ragged(ragged.values[places], offsets)


def padded(
    ragged: Ragged, width: int, missing: float, keep: str = FIRST, pad_side: str = RIGHT
) -> Array:
    """Lists as a matrix (num_rows, width): the first or the last `width` elements of each, filled
    up with the missing mark on one side.
    """
    ragged = cut(ragged, width, keep)
    matrix = np.full((len(ragged), width), missing, dtype=ragged.values.dtype)
    lengths = np.diff(ragged.offsets)[:, None]
    columns = np.arange(width)
    is_value = columns < lengths if pad_side == RIGHT else columns >= width - lengths
    matrix[is_value] = ragged.values[int(ragged.offsets[0]) : int(ragged.offsets[-1])]
    return matrix


def _shaped_lists(values: Ragged, item: SlotRequest) -> Values:
    if item.max_len is not None:
        values = cut(values, item.max_len, item.keep)
    if item.buckets is not None:
        values = Ragged(bucketed(values.values, item.buckets), values.offsets)
    if item.pad is not None:
        matrix = padded(values, item.pad, item.slot.missing, item.keep, item.pad_side)
        return _converted(matrix, item.dtype)
    return Ragged(_converted(values.values, item.dtype), values.offsets)


def _converted(values: Array, dtype: str | None) -> Array:
    """The values in another dtype. The request has ensured that ids fit into int32. A float that is
    too large for float16 becomes an infinity.
    """
    if dtype is None:
        return values
    if dtype == "bfloat16":
        return bfloat16_bits(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)
