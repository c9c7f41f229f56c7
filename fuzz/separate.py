"""For runs with sanitizers, as a plugin of pytest or imported: the kernels are those of
`sanitize.py`, and a column's offsets and its values each get memory of their own, so that the
sanitizer sees a write beyond the end of either."""

import importlib.util
import sys
from collections.abc import Sequence

import numpy as np

from fuzz.sanitize import MODULE

NAME = "featstore.native.kernels"
spec = importlib.util.spec_from_file_location(NAME, MODULE)
assert spec is not None
sys.modules[NAME] = importlib.util.module_from_spec(spec)

from featstore.native import kernels  # noqa: E402
from featstore.reading import pages  # noqa: E402
from featstore.reading.buffers import Array  # noqa: E402

assert kernels.__file__ == str(MODULE)


def separate(sizes: Sequence[tuple[int, int]], take: pages.Take | None) -> list[pages.ColumnMemory]:
    """Of exactly these sizes: Arrow rounds its allocations up, and a bytearray has one byte
    more.
    """
    return [
        _separate(np.empty(offsets, np.uint8), np.empty(values, np.uint8))
        for offsets, values in sizes
    ]


def _separate(offsets: Array, values: Array) -> pages.ColumnMemory:
    return pages.ColumnMemory(offsets.data, values.data)


pages.allocated = separate
