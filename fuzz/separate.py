"""For runs with sanitizers, as a plugin of pytest or imported: a column's offsets and its values each
get memory of their own, so that the sanitizer sees a write beyond the end of either."""

import numpy as np
import pyarrow as pa

from featstore.reading import pages


def separate(offset_bytes: int, value_bytes: int) -> tuple[pa.Buffer, pa.Buffer]:
    """Of exactly the sizes that are asked for: Arrow's own allocations are rounded up."""
    return pa.py_buffer(np.empty(offset_bytes, np.uint8)), pa.py_buffer(np.empty(value_bytes, np.uint8))


pages.allocated = separate
