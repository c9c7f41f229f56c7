"""Operators on numbers: identity, log1p, clip, bucketize, ratio and power, and those whose
constants are fitted by a first pass, standardize and min_max.

They compute in float64. A result that is not a finite number is null.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featstore.ops.arrays import (
    Mask,
    array_of,
    count_true,
    either,
    nulls_of,
    values_of,
    with_counted,
)
from featstore.ops.kinds import finite_number
from featstore.ops.lists import drop_elements, element_type, is_list, truncate_lists
from featstore.ops.signature import NamedValues, in_order, result_for

NOT_FINITE = "not finite"
MAX_BUCKETS = 65_536  # A spec lists each boundary, and its SQL expression does, too.
# Bounds that are compared one after the other; their count fits in int8.
_MAX_COMPARED = 32
_NUMBERS = "double, long or boolean"


def is_number(arrow_type: pa.DataType) -> bool:
    """Whether a canonical type can be read as float64."""
    return bool(
        pa.types.is_floating(arrow_type)
        or pa.types.is_integer(arrow_type)
        or pa.types.is_boolean(arrow_type)
    )


def identity_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    if params["max_len"] is not None and not is_list(types[0]):
        raise ValueError("`max_len` is for lists")
    if not is_number(element_type(types[0])):
        raise TypeError(f"{_NUMBERS}, or a list of these")
    return pa.list_(pa.float64()) if is_list(types[0]) else pa.float64()


def identity(
    array: pa.Array, *, max_len: int | None, truncate: str, counts: Counter[str]
) -> pa.Array:
    """x as float64; of a list, the first or last `max_len` elements.

    Infinities become null, or are dropped from a list, and are counted.
    """
    if not is_list(array.type):
        values, nulls = floats_of(array)
        return finite(values, nulls, counts)
    lists = truncate_lists(array, max_len=max_len, truncate=truncate)
    values, _ = floats_of(lists.values)
    dropped = ~np.isfinite(values)
    if count_true(dropped, counts, NOT_FINITE):
        lists = drop_elements(lists, dropped)
    return lists if pa.types.is_floating(lists.values.type) else lists.cast(pa.list_(pa.float64()))


float_type = result_for(is_number, _NUMBERS, pa.float64())
ratio_type = result_for(is_number, f"two numbers ({_NUMBERS})", pa.float64())
bucketize_type = result_for(is_number, _NUMBERS, pa.int64())


def log1p(array: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """ln(1 + x). Null, and counted, for x <= -1 and for infinities."""
    values, nulls = floats_of(array)
    with np.errstate(invalid="ignore", divide="ignore"):
        return finite(np.log1p(values), nulls, counts)


def clip_type(types: Sequence[pa.DataType], params: Mapping[str, object]) -> pa.DataType:
    low, high = params["min"], params["max"]
    if low is None and high is None:
        raise ValueError("needs `min`, `max` or both")
    if isinstance(low, float) and isinstance(high, float) and low > high:
        raise ValueError(f"`min` {low} is above `max` {high}")
    return float_type(types, params)


def clip(
    array: pa.Array,
    *,
    min: float | None,  # noqa: A002  named as in a spec
    max: float | None,  # noqa: A002
    counts: Counter[str],
) -> pa.Array:
    """x, limited to the range from min to max.

    An infinity becomes the bound on its side, and null, counted, where there is none.
    """
    values, nulls = floats_of(array)
    return finite(np.clip(values, min, max), nulls, counts)


def ratio(numerator: pa.Array, denominator: pa.Array, *, counts: Counter[str]) -> pa.Array:
    """x / y; missing where x or y is missing.

    Null, and counted, where y is 0 (`division by zero`) or the result is not finite.
    """
    above, nulls = floats_of(numerator)
    below, missing = floats_of(denominator)
    zero = below == 0
    nulls = with_counted(either(nulls, missing), zero, counts, "division by zero")
    with np.errstate(invalid="ignore", over="ignore"):
        return finite(above / np.where(zero, 1.0, below), nulls, counts)


def power(array: pa.Array, *, exponent: float, counts: Counter[str]) -> pa.Array:
    """x to the power of `exponent`.

    Null, and counted, where the result is not finite, such as 0 to a negative power.
    """
    values, nulls = floats_of(array)
    with np.errstate(all="ignore"):
        return finite(np.power(values, exponent), nulls, counts)


def boundaries(value: object) -> tuple[float, ...]:
    """Strictly increasing finite numbers, at least one. Integers that no float64 is stay so."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(value)
    bounds = tuple(of if finite_number(of) != of else float(of) for of in value)
    if any(b <= a for a, b in itertools.pairwise(bounds)):
        raise ValueError(value)
    return bounds


def bucketize(array: pa.Array, *, boundaries: tuple[float, ...], counts: Counter[str]) -> pa.Array:
    """The number of boundaries <= x: 0 below the first, i + 1 for `b[i] <= x < b[i + 1]`.

    The comparison is exact. Values are compared as they are, with the smallest long or float64 that
    is not below the boundary, because float64 cannot tell longs beyond 2^53 apart.
    """
    if pa.types.is_integer(array.type):
        bounds, values, nulls = (
            np.array(whole_boundaries(boundaries), np.int64),
            values_of(array),
            nulls_of(array),
        )
    else:
        bounds, (values, nulls) = np.array(float_boundaries(boundaries)), floats_of(array)
    return array_of(_num_at_most(bounds, values), nulls)


def _num_at_most(bounds: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """How many of the sorted bounds are at most each value."""
    if len(bounds) > _MAX_COMPARED:
        return np.searchsorted(bounds, values, side="right").astype(np.int64)
    # A comparison of all values is a fraction of a nanosecond each, a search of a few steps 40.
    num_above = np.zeros(len(values), np.int8)
    for bound in bounds:
        num_above += values < bound
    return np.int64(len(bounds)) - num_above


def whole_boundaries(boundaries: Sequence[float]) -> list[int]:
    """The smallest long that is not below each boundary.

    Boundaries that no long reaches come last and are left out.
    """
    return [max(whole, -(2**63)) for whole in map(math.ceil, boundaries) if whole < 2**63]


def float_boundaries(boundaries: Sequence[float]) -> list[float]:
    """The smallest float64 that is not below each boundary."""
    return [x if (x := float(b)) >= b else math.nextafter(x, math.inf) for b in boundaries]


def num_buckets(params: Mapping[str, Any]) -> int:
    """How many different values bucketize has."""
    return len(params["boundaries"]) + 1


def bucket_names(params: Mapping[str, Any]) -> NamedValues:
    """The interval of each bucket: `< 10`, `[10, 50)`, `>= 50`."""
    bounds = _shown(params["boundaries"])
    inner = (f"[{low}, {high})" for low, high in itertools.pairwise(bounds))
    return in_order(f"< {bounds[0]}", *inner, f">= {bounds[-1]}")


def _shown(bounds: Sequence[float]) -> list[str]:
    """Numbers as text: whole ones in full, others with six digits if these tell all apart."""
    short = [str(int(b)) if b == int(b) and abs(b) < 1e15 else f"{b:.6g}" for b in bounds]
    return short if len(set(short)) == len(short) else list(map(repr, bounds))


def floats_of(array: pa.Array) -> tuple[NDArray[np.float64], Mask | None]:
    """The values as float64 and the mask of nulls.

    Values are 0 where null, so that nulls raise no numpy warning and are not counted.
    """
    values: NDArray[Any] = values_of(array).astype(np.float64, copy=False)
    nulls = nulls_of(array)
    return (values, nulls) if nulls is None else (np.where(nulls, 0.0, values), nulls)


def finite(
    values: NDArray[np.float64], nulls: Mask | None, counts: Counter[str], what: str = NOT_FINITE
) -> pa.Array:
    """An array of the values, null where they are not finite.

    Args:
        values: float64 `(num_values,)`.
        nulls: True where the value is null already, `(num_values,)`.
        counts: Receives under `what` the number of values that are not finite.
        what: The key in `counts`.
    """
    return array_of(values, with_counted(nulls, ~np.isfinite(values), counts, what))


def standardize(array: pa.Array, *, mean: float, stddev: float, counts: Counter[str]) -> pa.Array:
    """(x - mean) / stddev, with the mean and population standard deviation of the fitted values.

    Null, and counted, where the result is not finite.
    """
    values, nulls = floats_of(array)
    with np.errstate(over="ignore", invalid="ignore"):
        return finite((values - mean) / stddev, nulls, counts)


def min_max(array: pa.Array, *, min: float, max: float, counts: Counter[str]) -> pa.Array:  # noqa: A002
    """(x - min) / (max - min), with the smallest and the largest of the fitted values.

    0 below min and 1 above max.
    """
    values, nulls = floats_of(array)
    with np.errstate(invalid="ignore"):
        return finite((np.clip(values, min, max) - min) / (max - min), nulls, counts)
