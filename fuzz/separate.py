"""For runs with sanitizers, as a plugin of pytest or imported: a column's offsets and its values
each get memory of their own, so that the sanitizer sees a write beyond the end of either."""

import numpy as np
import pyarrow as pa

from featstore.reading import pages


def separate(offset_bytes: int, value_bytes: int) -> pages.Memory:
    """Of exactly these sizes: Arrow rounds its allocations up, and a bytearray has one byte
    more.
    """
    offsets, values = np.empty(offset_bytes, np.uint8), np.empty(value_bytes, np.uint8)
    return pages.Memory(offsets.data, values.data, pa.py_buffer(offsets), pa.py_buffer(values))


pages.allocated = separate
