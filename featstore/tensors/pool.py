"""Memory that serves again once no batch refers to it: clearing new pages costs as much as filling
them.
"""

import sys
import threading
from collections.abc import Sequence

import numpy as np

from featstore.reading.buffers import Array

_MAX_KEPT = 8


def _num_references(kept: Sequence[Array]) -> list[int]:
    return [sys.getrefcount(memory) for memory in kept]


# What is counted where only the list refers to the memory: Pythons differ in what looking adds.
_UNUSED = _num_references([np.empty(0, np.uint8)])[0]


class Pool:
    """Memory for columns that are put together. Any thread may take it, and let go of what is in
    it.
    """

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
