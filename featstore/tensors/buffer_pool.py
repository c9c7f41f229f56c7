"""A pool of reusable buffers for columns that are gathered or joined. New memory costs as much as
filling it, since the kernel clears each page, so a buffer is reused once no batch refers to it.

The reference count of the buffer's array shows whether a batch does: every tensor and view of the
array keeps it alive. So no batch has to give its memory back.
"""

import sys
import threading
from collections.abc import Sequence

import numpy as np

from featstore.reading.buffers import Array

# More buffers are in use only if a consumer keeps batches. Keeping as many free ones for it, too,
# would double the memory.
_MAX_KEPT = 8


def _num_references(kept: Sequence[Array]) -> list[int]:
    return [sys.getrefcount(memory) for memory in kept]


# The reference count of an array that only a list refers to. It is measured here, since versions of
# Python differ in how many references the call itself adds.
_UNUSED = _num_references([np.empty(0, np.uint8)])[0]


class BufferPool:
    """Buffers of one user. Safe to use from any thread."""

    def __init__(self) -> None:
        self._kept: list[Array] = []
        self._taking = threading.Lock()

    def take(self, num_bytes: int) -> Array:
        """Memory of at least `num_bytes`: uint8, not cleared. It is reused when no view is left."""
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
