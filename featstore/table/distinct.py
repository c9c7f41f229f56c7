"""How many different values a column has, exactly: what decides on its dictionary."""

import pyarrow as pa
import pyarrow.compute as pc

from featstore._native.loading import KERNELS

_WIDTHS = {pa.int64(): 8, pa.float32(): 4}


def count_distinct(values: pa.ChunkedArray) -> int:
    """The number of different values, null being one of them."""
    width = _WIDTHS.get(values.type)
    if KERNELS is None or width is None or values.num_chunks != 1 or values.null_count:
        return int(pc.count_distinct(values, mode="all").as_py())
    column = values.chunk(0)
    data = column.buffers()[1]
    return int(KERNELS.count_distinct(data.slice(column.offset * width, len(column) * width), width)) if len(column) else 0
