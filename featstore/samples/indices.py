"""What may stand in brackets: `x[i]`, `x[-1]`, `x[10:20]`, `x[[3, 1]]`."""

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from featstore.base.errors import SampleIndexError

# Not that of `reading`, which would load pyarrow into every worker.
Array = npt.NDArray[Any]


def is_single(index: object) -> bool:
    """Whether `index` names one sample: an integer, also of numpy or a tensor of no dimension."""
    if isinstance(index, bool):
        raise SampleIndexError(f"expected an integer, a slice or a list of integers, found {index}")
    return hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0


def position_of(index: Any, num_rows: int) -> int:
    """The position that one index names, in a fraction of the time that an array takes.

    Args:
        index: An integer. Negative ones count from the end.
        num_rows: How many positions there are.

    Raises:
        SampleIndexError: It is out of range.
    """
    position = operator.index(index)
    if not -num_rows <= position < num_rows:
        raise _out_of_range(position, num_rows)
    return position + num_rows if position < 0 else position


def positions_of(indices: Any, num_rows: int) -> Array:
    """The positions that one index, several or a slice name: int64 (num_indices,).

    Args:
        indices: An integer, a slice, or a list, an array or a tensor of integers. Negative ones
            count from the end.
        num_rows: How many positions there are.

    Raises:
        SampleIndexError: One is out of range, or is not an integer.
    """
    if isinstance(indices, slice):
        return np.arange(*indices.indices(num_rows), dtype=np.int64)
    if is_single(indices):
        return np.array([position_of(indices, num_rows)], np.int64)
    given = np.asarray(indices)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise SampleIndexError(
            f"expected an integer, a slice or a list of integers, found {type(indices).__name__} "
            f"of {given.dtype}, {given.ndim} dimensions"
        )
    positions = given.astype(np.int64)
    outside = (positions < -num_rows) | (positions >= num_rows)
    if outside.any():
        raise _out_of_range(given[outside.argmax()], num_rows)
    positions[positions < 0] += num_rows
    return positions


def _out_of_range(index: object, num_rows: int) -> SampleIndexError:
    return SampleIndexError(
        f"index {index} is out of range: expected {-num_rows} to {num_rows - 1}, as there are "
        f"{num_rows} rows"
        if num_rows
        else f"index {index} is out of range: there are no rows"
    )
