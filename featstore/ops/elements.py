"""Operators that select elements of lists (take, slice, distinct), compare them (overlap), or
reduce a list to one value (combine, length).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.ops.arrays import (
    Integers,
    array_of,
    either,
    list_of,
    nulls_of,
    offsets_of,
    values_of,
)
from featstore.ops.lists import (
    drop_elements,
    elements_at,
    is_list,
    is_list_or_text,
    offsets_from,
    truncate_lists,
)
from featstore.ops.numbers import finite, floats_of, is_number
from featstore.ops.signature import result_for

MEASURES = ("count", "ratio", "containment")


take_type = result_for(is_list, "a list")
slice_type = result_for(is_list_or_text, "a list or string")
distinct_type = result_for(
    lambda type_: is_list(type_) and not pa.types.is_struct(type_.value_type), "a list of values"
)


def take(lists: pa.ListArray, *, n: int, end: str, counts: Counter[str]) -> pa.Array:
    """The first (`end: head`) or last (`end: tail`) n elements of each list, in their order."""
    return truncate_lists(lists, max_len=n, truncate=end)


def slice_operator(
    array: pa.Array, *, start: int, stop: int | None, counts: Counter[str]
) -> pa.Array:
    """x[start:stop] as in Python: elements of a list or code points of a text.

    Negative positions count from the end.
    """
    if not is_list(array.type) and start >= 0 and stop is not None and 0 <= stop <= start:
        return pc.if_else(pc.is_null(array), pa.scalar(None, pa.string()), "")
    if not is_list(array.type):
        return pc.utf8_slice_codeunits(array, start, stop)
    offsets = offsets_of(array)
    lengths = np.diff(offsets)
    first = _bound(start, lengths)
    kept = np.maximum((lengths if stop is None else _bound(stop, lengths)) - first, 0)
    values = elements_at(array.values, offsets[:-1] + first, kept)
    return list_of(offsets_from(kept), values, nulls_of(array))


def distinct(lists: pa.ListArray, *, counts: Counter[str]) -> pa.Array:
    """Each list without repeated elements: the first of equal ones stays, in order."""
    (pairs,), _ = _pairs(lists)
    _, first = np.unique(pairs, return_index=True)
    if len(first) == len(pairs):
        return lists
    dropped = np.ones(len(pairs), np.bool_)
    dropped[first] = False
    return drop_elements(lists, dropped)


def overlap_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    left, right = types
    if left != right or distinct_type(types, params).value_type == pa.float64():
        raise TypeError("two lists of one type (string, long, boolean or timestamp)")
    return pa.int64() if params["measure"] == "count" else pa.float64()


def overlap(
    left: pa.ListArray, right: pa.ListArray, *, measure: str, counts: Counter[str]
) -> pa.Array:
    """How many of the distinct elements A and B of two lists are in both.

    `count` is |A & B|, `ratio` is |A & B| / |A | B| (Jaccard), `containment` is |A & B| / |A|.
    Missing where a list is missing. A division by zero is null, and counted.
    """
    pairs, num_codes = _pairs(left, right)
    first, second = (np.unique(side) for side in pairs)
    shared = _count_rows(np.intersect1d(first, second, assume_unique=True), num_codes, len(left))
    nulls = either(nulls_of(left), nulls_of(right))
    if measure == "count":
        return array_of(shared, nulls)
    whole = _count_rows(first, num_codes, len(left))
    if measure == "ratio":
        whole = whole + _count_rows(second, num_codes, len(left)) - shared
    nothing = whole == 0
    ratios = np.where(nothing, np.nan, shared / np.maximum(whole, 1))
    return finite(ratios, nulls, counts, "division by zero")


def _pairs(*lists: pa.ListArray) -> tuple[list[Integers], int]:
    """Each list's elements as `row * num_codes + code`, and num_codes.

    Equal elements have equal codes, so equal numbers are equal elements of one row.
    """
    encoded = pa.concat_arrays([array.values for array in lists]).dictionary_encode()
    codes = values_of(encoded.indices).astype(np.int64)
    num_codes = max(len(encoded.dictionary), 1)
    pairs, start = [], 0
    for array in lists:
        rows = np.repeat(np.arange(len(array)), np.diff(offsets_of(array)))
        pairs.append(rows * num_codes + codes[start : start + len(rows)])
        start += len(rows)
    return pairs, num_codes


def _count_rows(pairs: Integers, num_codes: int, num_rows: int) -> Integers:
    return np.bincount(pairs // num_codes, minlength=num_rows)


def _bound(position: int, lengths: Integers) -> Integers:
    """A slice position, as Python resolves it for a list of each length."""
    return np.minimum(position, lengths) if position >= 0 else np.maximum(lengths + position, 0)


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
        combined,
        either(nulls_of(lists), empty if empty.any() else None),
        counts,
    )


length_type = result_for(is_list_or_text, "a list or string", pa.int64())


def length(array: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """The number of elements of a list, or of code points of a text."""
    lengths = pc.list_value_length(array) if is_list(array.type) else pc.utf8_length(array)
    return lengths.cast(pa.int64())


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
