"""Operators whose constants are fitted by a first pass and frozen: standardize and min_max."""

from collections import Counter

import numpy as np
import pyarrow as pa

from featstore.ops.numbers import finite, floats_of


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
