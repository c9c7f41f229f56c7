"""Pools of reusable buffers for columns that are gathered or joined. New memory costs as much as
filling it, since the kernel clears each page, so a buffer is reused once no batch refers to it.

The reference count of the buffer's array shows whether a batch does: every tensor and view of the
array keeps it alive. So no batch has to give its memory back.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from featstore.reading.buffers import Array

# More buffers are in use only if a consumer keeps batches. Keeping as many free ones for it, too,
# would double the memory.
_MAX_KEPT = 8
# Takes for each kept buffer after which those that were not needed are let go. So even if all of
# them are needed again at once, at most one buffer in this many is new for that reason. Seen in
# shuffled epochs of 24 files: none or one of 167.
_TAKES_PER_BUFFER = 4
# Less memory is taken from the C library's heap, whose pages are there: it maps 128 KB and more.
_FEW_BYTES = 1 << 16


def _num_references(kept: Sequence[Array]) -> list[int]:
    return [sys.getrefcount(memory) for memory in kept]


# The reference count of an array that only a list refers to. It is measured here, since versions of
# Python differ in how many references the call itself adds.
_UNUSED = _num_references([np.empty(0, np.uint8)])[0]


class BufferPool:
    """Buffers for one use, all of similar sizes. Safe to use from any thread.

    There are as many as were in use at once lately. One that is too small is replaced by a larger
    one, so after a while all of them are large enough and no memory is new. A copy of a pool, as
    another process gets it, begins empty.

    Lock: `_taking` guards everything.
    """

    def __init__(self) -> None:
        self._kept: list[Array] = []
        # Since free buffers were let go last: the takes, and the most that were in use at once.
        self._num_takes = self._most_used = 0
        self._taking = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[], "BufferPool"], tuple[()]]:
        return BufferPool, ()

    def take(self, num_bytes: int) -> Array:
        """Memory of at least `num_bytes`: uint8, not cleared. It is reused when no view is left."""
        with self._taking:
            counts = _num_references(self._kept)
            free = [index for index, count in enumerate(counts) if count <= _UNUSED]
            free.sort(key=lambda index: len(self._kept[index]))
            num_excess = self._num_excess(len(free))
            dropped, free = free[:num_excess], free[num_excess:]
            # No reference to another buffer is left behind: it would not count as free.
            fitting = (self._kept[index] for index in free if len(self._kept[index]) >= num_bytes)
            if (memory := next(fitting, None)) is None:
                # The largest free one makes room. Others stay for smaller requests, up to a number.
                dropped += free[:-_MAX_KEPT] + free[-1:]
                memory = np.empty(num_bytes + num_bytes // 16, np.uint8)
                self._kept.append(memory)
            if dropped:
                gone = set(dropped)
                self._kept = [each for index, each in enumerate(self._kept) if index not in gone]
            return memory

    def _num_excess(self, num_free: int) -> int:
        """How many of the free buffers are to be let go: none mostly, and now and then as many as
        were not in use lately. Called at each take.
        """
        self._num_takes += 1
        self._most_used = max(self._most_used, len(self._kept) - num_free + 1)
        if self._num_takes < _TAKES_PER_BUFFER * len(self._kept):
            return 0
        num_excess = max(0, len(self._kept) - self._most_used)
        self._num_takes = self._most_used = 0
        return num_excess


@dataclass(frozen=True)
class BufferPools:
    """The reusable memory of a loader, by use. It outlives an epoch, so that the next one begins
    with memory that is there.

    Attributes:
        windows: For decoded rows that are shuffled.
        batches: For the batches of them.
        waiting: For shuffled rows that wait for more, to fill a batch.
        joined: For offsets, and for batches that straddle row groups.
        scratch: For what is free again when a batch is made.
    """

    windows: BufferPool = field(default_factory=BufferPool)
    batches: BufferPool = field(default_factory=BufferPool)
    waiting: BufferPool = field(default_factory=BufferPool)
    joined: BufferPool = field(default_factory=BufferPool)
    scratch: BufferPool = field(default_factory=BufferPool)

    def of_window(self, num_bytes: int) -> Array:
        """Memory for a decoded window: uint8, not cleared. That of a small one is new, since a pool
        looks at all of its buffers, and thousands of small windows may be open at once.
        """
        if num_bytes < _FEW_BYTES:
            return np.empty(num_bytes, np.uint8)
        return self.windows.take(num_bytes)
