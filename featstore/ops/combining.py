"""Operators that reduce a list to one value: combine and length."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.ops.arrays import Integers, array_of, either, nulls_of, offsets_of
from featstore.ops.lists import is_list, is_list_or_text
from featstore.ops.numbers import finite, floats_of, is_number
from featstore.ops.signature import result_for

COMBINERS = ("mean", "sum", "max", "min")


combine_type = result_for(
    lambda type_: is_list(type_) and is_number(type_.value_type),
    "list<double>, list<long> or list<boolean>",
    pa.float64(),
)


def combine(lists: pa.ListArray, *, by: str, counts: Counter[str]) -> pa.Array:
    """The mean, sum, max or min of a list's numbers, in float64.

    The sum is `((x1 + x2) + x3) ...` and the mean is sum / n. The result of an empty list is
    missing (use `fill`). A result that is not finite is null, and counted.
    """
    values, _ = floats_of(lists.values)
    offsets = offsets_of(lists)
    lengths = np.diff(offsets)
    empty = lengths == 0
    with np.errstate(invalid="ignore", over="ignore"):
        combined = (
            _extremes(values, offsets, by) if by in ("max", "min") else _sums(values, lengths)
        )
        if by == "mean":
            combined = combined / np.maximum(lengths, 1)
    return finite(
        np.where(empty, 0.0, combined),
        either(nulls_of(lists), empty if empty.any() else None),
        counts,
    )


length_type = result_for(is_list_or_text, "a list or string", pa.int64())


def length(array: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """The number of elements of a list, or of code points of a text."""
    if is_list(array.type):
        return array_of(np.diff(offsets_of(array)), nulls_of(array))
    return pc.utf8_length(array).cast(pa.int64())


def _sums(values: NDArray[np.float64], lengths: Integers) -> NDArray[np.float64]:
    """Sums from left to right: `bincount` adds in order, where `reduceat` may add pairwise.

    So no sum depends on how rows are split into batches.
    """
    rows = np.repeat(np.arange(len(lengths)), lengths)
    sums: NDArray[np.float64] = np.bincount(rows, weights=values, minlength=len(lengths)).astype(
        np.float64, copy=False
    )
    return sums


def _extremes(values: NDArray[np.float64], offsets: Integers, by: str) -> NDArray[np.float64]:
    """The largest or smallest value of each row; 0 where the row is empty."""
    extremes = np.zeros(len(offsets) - 1)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        pick = np.maximum if by == "max" else np.minimum
        extremes[filled] = pick.reduceat(values, offsets[:-1][filled])
    return extremes
