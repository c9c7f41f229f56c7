"""The threads that run ahead of the consumer: one decodes, the next assembles blocks, and a third
applies a transform. Each has one owner that joins it, and one bounded queue.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Generic, TypeVar

from featstore.base.closing import Closing
from featstore.base.errors import StateError
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixtures import Mixture
from featstore.loader.batches.stats import Stats

Item = TypeVar("Item")


class StageQueue(Generic[Item]):
    """A bounded queue between one producer and one consumer, through which errors and the end pass
    too.

    Unlike `queue.Queue`, `put` waits after it has put, until at most `ahead` items are left. So
    with 0 the producer makes the next item only when the last one was taken, and no more than one
    is in memory.
    """

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._has_ended = self._is_closed = False
        self._error: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Puts an item, and waits until at most `ahead` items are in the queue.

        Returns:
            False once the queue is closed; the producer should end then.
        """
        with self._changed:
            if not self._is_closed:
                self._items.append(item)
                self._changed.notify_all()
            del item  # The waiting producer must not keep what the consumer has taken.
            while len(self._items) > self._ahead and not self._is_closed:
                self._changed.wait()
            return not self._is_closed

    def end(self, error: BaseException | None = None) -> None:
        """Ends the queue. The consumer gets what was put before, then the error if there is one."""
        with self._changed:
            self._has_ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Item | None:
        """The next item; None at the end.

        Raises:
            StateError: The queue was closed.
            BaseException: The producer ended with an error.
        """
        with self._changed:
            while not (self._items or self._has_ended or self._is_closed):
                self._changed.wait()
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

    @property
    def num_items(self) -> int:
        """How many items wait in the queue."""
        return len(self._items)

    def close(self) -> None:
        """Wakes both sides and drops what is in the queue."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()


class Stage(StageQueue[Item], Closing):
    """A queue with the thread that fills it ahead of the consumer. For one consumer; `close` may be
    called from any thread.

    The thread is a daemon only because the interpreter joins other threads before it runs
    finalizers, and a finalizer is what closes and joins this one. It has a reference to the stage,
    and none to the owner of the stage, so that the owner can be garbage-collected while it runs.
    """

    _thread: threading.Thread | None = None

    def begin(self, name: str, produce: Callable[..., None], *of: object) -> None:
        """Starts the thread: it calls `produce` with the stage and these arguments, and ends the
        queue.
        """
        thread = threading.Thread(target=self._run, args=(produce, *of), name=name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self, produce: Callable[..., None], *of: object) -> None:
        error: BaseException | None = None
        try:
            produce(self, *of)
        except BaseException as raised:  # noqa: BLE001  a thread's boundary: the consumer raises it
            error = raised
        self.end(error)

    def close(self) -> None:
        """Ends and joins the thread. The caller has to wake whatever else it may wait for."""
        super().close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


class Pipeline(Closing):
    """Decodes mixtures in one thread and assembles their blocks in another, ahead of the consumer.
    For one consumer; `close` may be called from any thread.

    Args:
        mixtures: Decodes; runs in its thread, which closes it.
        assembler: Makes blocks; used by its thread only.
        budget: The memory budget, which `close` closes.
        stats: Where waiting is counted.
        waits: The name under which the consumer's waiting is counted.
    """

    def __init__(
        self,
        mixtures: Generator[Mixture, None, None],
        assembler: Assembler,
        budget: Budget,
        stats: Stats,
        waits: str = "wait_s",
    ) -> None:
        self._budget, self._stats, self._waits = budget, stats, waits
        self._decoded, self._assembled = Stage[Mixture](), Stage[deque[Block]](ahead=1)
        self._decoded.begin("featstore-decode", fill, mixtures)
        self._assembled.begin("featstore-assemble", _assemble, assembler, self._decoded)

    def blocks(self) -> Iterator[Block]:
        """The blocks in order. An error of either thread is raised here."""
        with self._stats.timed("first_wait_s"):
            blocks = self._next_blocks()
        while blocks is not None:
            while blocks:
                held_bytes = blocks[0].held_bytes
                yield blocks.popleft()  # Held by no name here, so the consumer can free its memory.
                if held_bytes:
                    self._budget.exchange(held_bytes, 0)
            blocks = self._next_blocks()

    def _next_blocks(self) -> deque[Block] | None:
        with self._stats.timed(self._waits):
            return self._assembled.get()

    @property
    def waiting(self) -> dict[str, int]:
        """How many mixtures wait in each queue: `decoded`, and `assembled` as blocks."""
        return {"decoded": self._decoded.num_items, "assembled": self._assembled.num_items}

    def close(self) -> None:
        """Ends and joins the threads. The caller has to wake whatever `mixtures` may wait for."""
        self._budget.close()
        self._decoded.close()
        self._assembled.close()


def fill(queue: StageQueue[Item], items: Generator[Item, None, None]) -> None:
    """Puts the items until the queue is closed, and closes them."""
    with closing(items):
        while (item := next(items, None)) is not None and queue.put(item):
            del item  # Frees its memory before the next one is made.


def _assemble(
    assembled: StageQueue[deque[Block]], assembler: Assembler, decoded: StageQueue[Mixture]
) -> None:
    is_open = True
    while is_open and (mixture := decoded.get()) is not None:
        blocks = deque(assembler.blocks(mixture))
        del mixture  # Frees the rows as read before the next ones are waited for.
        is_open = assembled.put(blocks)
        del blocks  # Frees their memory before the next ones are waited for.
    if is_open:
        assembled.put(deque(assembler.rest()))
