"""The decode thread: one owner, one bounded queue, one close()."""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Generic, Protocol, TypeVar

from featstore.errors import StateError
from featstore.loader.stats import Stats

_MAX_BLOCKS = 2


class Sized(Protocol):
    """A block, or what stands for one."""

    @property
    def size_bytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


class BlockQueue(Generic[Item]):
    """Blocks from one producer to one consumer, bounded by bytes and by number; one block always fits."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._blocks: deque[tuple[Item, int]] = deque()
        self._held_bytes = 0
        self._changed = threading.Condition()
        self._has_ended = self._is_closed = False
        self._error: BaseException | None = None

    def put(self, block: Item) -> bool:
        """Waits for room; False once the queue is closed."""
        size = block.size_bytes
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(size))
            if not self._is_closed:
                self._blocks.append((block, size))
                self._held_bytes += size
                self._changed.notify_all()
            return not self._is_closed

    def end(self, error: BaseException | None = None) -> None:
        """No block follows; the consumer gets the error, if there is one, after the blocks before it."""
        with self._changed:
            self._has_ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Item | None:
        """The next block, or None at the end; raises what the producer ended with, and StateError once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_ended or bool(self._blocks))
            if self._is_closed:
                raise StateError(
                    "this iteration was closed before its end, by close(), an error or a newer iteration; iterate anew"
                )
            if self._blocks:
                block, size = self._blocks.popleft()
                self._held_bytes -= size
                self._changed.notify_all()
                return block
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None

    def close(self) -> None:
        """Wakes both sides and lets go of the blocks."""
        with self._changed:
            self._is_closed = True
            self._blocks.clear()
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        fits = len(self._blocks) < _MAX_BLOCKS and self._held_bytes + size <= self._budget_bytes
        return not self._blocks or fits


class Pipeline(Generic[Item]):
    """Runs an iterator of blocks in a thread of its own, ahead of the consumer. One consumer; close() from any thread.

    The thread is a daemon only so that the interpreter's exit gets as far as the finalizers, one of which closes and joins.
    """

    def __init__(self, blocks: Generator[Item, None, None], budget_bytes: int, stats: Stats, waits: str = "wait_s") -> None:
        self._queue = BlockQueue[Item](budget_bytes)
        self._stats, self._waits = stats, waits
        self._thread = threading.Thread(target=_decode, args=(blocks, self._queue), name="featstore-decode", daemon=True)
        self._thread.start()

    def blocks(self) -> Iterator[Item]:
        """The blocks in order; raises in the consumer what went wrong in the thread."""
        while True:
            with self._stats.timed(self._waits):
                block = self._queue.get()
            if block is None:
                return
            yield block
            del block

    def close(self) -> None:
        """Ends and joins the thread; whatever the blocks' iterator waits for must have been woken."""
        self._queue.close()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _decode(blocks: Generator[Item, None, None], queue: BlockQueue[Item]) -> None:
    """The thread's work. It knows the queue and not the pipeline, so that nobody's garbage is kept alive by it."""
    error: BaseException | None = None
    try:
        with closing(blocks):
            while (block := next(blocks, None)) is not None and queue.put(block):
                del block
    except BaseException as raised:  # noqa: BLE001  a thread's boundary: the consumer raises it
        error = raised
    queue.end(error)
