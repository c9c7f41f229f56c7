"""How many different values a column has: what decides on its dictionary.

Numbers are counted linearly (Whang, Vander-Zanden, Taylor 1990): each value marks one of 2^18 bits, and of m bits the number
still empty after n different values is m exp(-n / m) on average. A map of 32 KiB stays in the processor's first cache, where an
exact count walks through megabytes.
"""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore._native.loading import KERNELS
from featstore.ops.arrays import values_of
from featstore.ops.hashing import mark_of

MARK_BITS = 18
_WIDTHS = {pa.int64(): 8, pa.float32(): 4}


def count_distinct(values: pa.ChunkedArray) -> int:
    """The number of different values, null being one of them: exact for texts, times and where there are nulls; of int64 and
    float32 (by their bits) to within 1 %, or 1, up to a million. With and without kernels the same.
    """
    if values.type not in _WIDTHS or values.null_count:
        return int(pc.count_distinct(values, mode="all").as_py())
    column = values_of(pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type))
    num_bits = 1 << MARK_BITS
    num_empty = num_bits - _count_marks(column, _WIDTHS[values.type])
    return min(len(column), round(num_bits * math.log(num_bits / max(num_empty, 1))))


def _count_marks(values: NDArray[np.int64] | NDArray[np.float32], width: int) -> int:
    if KERNELS is not None:
        return int(KERNELS.count_marks(values, width))
    marked = np.zeros(1 << MARK_BITS, np.bool_)
    marked[mark_of(values.view(np.uint64 if width == 8 else np.uint32).astype(np.uint64), MARK_BITS)] = True
    return int(np.count_nonzero(marked))
