"""Converts an operator's result to a slot's column: signs, indices or float32.

Slots hold no nulls: a missing value is 0 in an id slot and NaN in a float slot.
"""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.ops.arrays import array_of, count_true, list_of, nulls_of, offsets_of, values_of
from featstore.ops.hashing import MISSING, sign
from featstore.ops.ids import fields_of
from featstore.ops.lists import drop_elements, is_list, mark_missing

_OVERFLOW = "overflow"


def sign_column(hashes: pa.Array, *, slot: int, arrow_type: pa.DataType) -> pa.Array:
    """Value hashes as signs of a slot: int64, missing 0; lists of int64, missing `[0]`."""
    if not is_list(arrow_type):
        return sign(slot, *fields_of(hashes))
    signs = sign(slot, *fields_of(hashes.values))
    return mark_missing(list_of(offsets_of(hashes), signs, nulls_of(hashes)), MISSING, arrow_type)


def index_column(array: pa.Array, *, arrow_type: pa.DataType) -> pa.Array:
    """Indices from 0 as int64 from 1, missing 0; lists of them, missing `[0]`."""
    if is_list(arrow_type):
        indices = array_of(values_of(array.values) + 1)
        lists = list_of(offsets_of(array), indices, nulls_of(array))
        return mark_missing(lists, MISSING, arrow_type)
    return pc.fill_null(pc.add(array, 1), MISSING)


def float_column(array: pa.Array, *, arrow_type: pa.DataType, counts: Counter[str]) -> pa.Array:
    """Float64 as float32, missing NaN; lists of float32, missing `[NaN]`.

    A value that float32 cannot hold becomes missing, or is dropped from a list, and is counted.
    """
    if is_list(arrow_type):
        return _float_lists(array, arrow_type, counts)
    floats = _cast(values_of(array))
    if (nulls := nulls_of(array)) is not None:
        floats[nulls] = np.nan
    floats[_overflows(floats, counts)] = np.nan
    return array_of(floats)


def _float_lists(
    lists: pa.ListArray, arrow_type: pa.DataType, counts: Counter[str]
) -> pa.ListArray:
    floats = _cast(values_of(lists.values))
    overflows = _overflows(floats, counts)
    narrow = list_of(offsets_of(lists), array_of(floats), nulls_of(lists))
    if overflows.any():
        narrow = drop_elements(narrow, overflows)
    return mark_missing(narrow, np.nan, arrow_type)


def _cast(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The values as float32; those that round to -0.0 become 0.0."""
    # Adding 0.0 turns -0.0 into 0.0 and leaves every other value as it is.
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32) + np.float32(0)


def _overflows(floats: NDArray[np.float32], counts: Counter[str]) -> NDArray[np.bool_]:
    found = np.isinf(floats)
    count_true(found, counts, _OVERFLOW)
    return found
