"""Two threads ahead of the consumer: one decodes, the other puts in order what was decoded. Each
has one owner, one queue, one close()."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Generic, TypeVar

from featstore.errors import StateError
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.blocks import Block
from featstore.loader.rows.memory_budget import Budget
from featstore.loader.rows.split_reader import Window
from featstore.loader.stats import Stats

Item = TypeVar("Item")
Windows = Generator[Window, None, None]


class Handoff(Generic[Item]):
    """From one producer to one consumer, one at a time: what is put waits until it is taken, and
    more `ahead` of it.
    """

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._has_ended = self._is_closed = False
        self._error: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Waits until at most `ahead` items wait, this one included; False once the handoff is
        closed.
        """
        with self._changed:
            if not self._is_closed:
                self._items.append(item)
                self._changed.notify_all()
            del item
            self._changed.wait_for(lambda: self._is_closed or len(self._items) <= self._ahead)
            return not self._is_closed

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows; the consumer gets the error, if there is one, after what was put before
        it.
        """
        with self._changed:
            self._has_ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Item | None:
        """The next, or None at the end; raises what the producer ended with, and StateError once
        the handoff is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_ended or bool(self._items))
            if self._is_closed:
                raise StateError(
                    "this iteration was closed before its end, by close(), an error or a newer "
                    "iteration; iterate anew"
                )
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None

    def close(self) -> None:
        """Wakes both sides and lets go of what waits."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()


class Pipeline:
    """Runs an iterator of windows in a thread of its own, and their assembling in another, ahead of
    the consumer. One consumer; close() from any thread.

    The threads are daemons only so that the interpreter's exit gets as far as the finalizers, one
    of which closes and joins.
    """

    def __init__(
        self,
        windows: Windows,
        assembler: Assembler,
        budget: Budget,
        stats: Stats,
        waits: str = "wait_s",
    ) -> None:
        self._budget, self._stats, self._waits = budget, stats, waits
        self._decoded, self._assembled = Handoff[Window](), Handoff[deque[Block]](ahead=1)
        self._threads = (
            _thread("featstore-decode", fill, self._decoded, windows),
            _thread(
                "featstore-assemble", _assemble, assembler, budget, self._decoded, self._assembled
            ),
        )

    def blocks(self) -> Iterator[Block]:
        """The blocks in order; raises in the consumer what went wrong in the threads."""
        while True:
            with self._stats.timed(self._waits):
                blocks = self._assembled.get()
            if blocks is None:
                return
            while blocks:
                held_bytes = blocks[0].held_bytes
                yield blocks.popleft()  # No name keeps the block: the consumer frees its memory.
                self._budget.exchange(held_bytes, 0)

    def close(self) -> None:
        """Ends and joins the threads; whatever the windows' iterator waits for must have been
        woken.
        """
        self._budget.close()
        for handoff in (self._decoded, self._assembled):
            handoff.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


class Prefetcher(Generic[Item]):
    """Runs an iterator in a thread of its own, two items ahead of the consumer. One consumer;
    close() from any thread.
    """

    def __init__(self, items: Generator[Item, None, None], stats: Stats) -> None:
        self._stats, self._taken = stats, Handoff[Item](ahead=2)
        self._thread = _thread("featstore-transform", fill, self._taken, items)

    def items(self) -> Iterator[Item]:
        """The items in order; raises in the consumer what went wrong in the thread."""
        while True:
            with self._stats.timed("wait_s"):
                item = self._taken.get()
            if item is None:
                return
            yield item
            del item

    def close(self) -> None:
        """Ends and joins the thread; whatever the iterator waits for must have been woken."""
        self._taken.close()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _thread(name: str, target: Callable[..., None], *of: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=of, name=name, daemon=True)
    thread.start()
    return thread


def fill(taken: Handoff[Item], items: Generator[Item, None, None]) -> None:
    """A thread's work. It knows the handoff and not its owner, so that nobody's garbage is kept
    alive by it.
    """
    error: BaseException | None = None
    try:
        with closing(items):
            while (item := next(items, None)) is not None and taken.put(item):
                del item
    except BaseException as raised:  # noqa: BLE001  a thread's boundary: the consumer raises it
        error = raised
    taken.end(error)


def _assemble(
    assembler: Assembler, budget: Budget, decoded: Handoff[Window], assembled: Handoff[deque[Block]]
) -> None:
    """A thread's work, as `fill`."""
    error: BaseException | None = None
    try:
        while (window := decoded.get()) is not None:
            blocks = _blocks(assembler, budget, window)
            del window  # The rows as read are freed before the next window is waited for.
            if not assembled.put(blocks):
                break
            del blocks
    except BaseException as raised:  # noqa: BLE001  a thread's boundary: the consumer raises it
        error = raised
    assembled.end(error)


def _blocks(assembler: Assembler, budget: Budget, window: Window) -> deque[Block]:
    """The window's blocks, the last of which holds what they take of the budget: in a shuffled
    window they share their memory.
    """
    try:
        blocks = deque(assembler.blocks(window))
    except BaseException as error:
        window.work.fail()
        if not assembler.leaves_out(window, error):
            raise
        blocks = deque()
    size_bytes = budget.exchange(window.held_bytes, sum(block.size_bytes for block in blocks))
    if blocks:
        blocks[-1].held_bytes = size_bytes
    return blocks
