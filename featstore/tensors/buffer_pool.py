"""A pool of buffers for columns that are put together. New memory costs as much as filling it,
since the kernel clears each page, so a buffer is reused once no batch refers to it.

Whether one does is told by the reference count of the buffer's array: every tensor and every view
made of it keeps it alive. No batch has to give anything back, and none can be forgotten.
"""

import sys
import threading
from collections.abc import Sequence

import numpy as np

from featstore.reading.buffers import Array

# More are in use only where a consumer keeps batches; keeping free ones for it would double memory.
_MAX_KEPT = 8


def _num_references(kept: Sequence[Array]) -> list[int]:
    return [sys.getrefcount(memory) for memory in kept]


# The count of an array that only a list refers to. Measured, since Pythons differ in what looking
# at it adds.
_UNUSED = _num_references([np.empty(0, np.uint8)])[0]


class BufferPool:
    """Buffers of one user. Any thread may take one, and drop what lies in it."""

    def __init__(self) -> None:
        self._kept: list[Array] = []
        self._taking = threading.Lock()

    def take(self, num_bytes: int) -> Array:
        """Memory of at least so many bytes: uint8, not cleared."""
        with self._taking:
            are_used = [count > _UNUSED for count in _num_references(self._kept)]
            for index, is_used in enumerate(are_used):
                if not is_used and len(self._kept[index]) >= num_bytes:
                    return self._kept[index]
            self._kept = [
                memory for memory, is_used in zip(self._kept, are_used, strict=True) if is_used
            ][-_MAX_KEPT:]
            self._kept.append(np.empty(num_bytes + num_bytes // 16, np.uint8))
            return self._kept[-1]
