"""Memory that serves again once no batch refers to it: clearing new pages costs as much as filling them."""

import sys
import threading

import numpy as np

from featstore.reading.columns import Array

# References to memory of which the pool alone knows: its list, the loop that looks, and the count's own argument.
_UNUSED = 3
_MAX_KEPT = 8


class Pool:
    """Memory for columns that are put together. Any thread may take it, and let go of what is in it."""

    def __init__(self) -> None:
        self._kept: list[Array] = []
        self._taking = threading.Lock()

    def take(self, num_bytes: int) -> Array:
        """Memory of at least so many bytes: uint8, not cleared."""
        with self._taking:
            for memory in self._kept:
                if len(memory) >= num_bytes and sys.getrefcount(memory) <= _UNUSED:
                    return memory
            self._kept = [memory for memory in self._kept if sys.getrefcount(memory) > _UNUSED][-_MAX_KEPT:]
            self._kept.append(np.empty(num_bytes + num_bytes // 16, np.uint8))
            return self._kept[-1]
