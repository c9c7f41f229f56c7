"""Stages a sequence of files: threads download them in order, ahead of the reader, through a
bounded queue.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic

from featstore.base.closing import Closing
from featstore.base.errors import BudgetError
from featstore.base.intervals import Span
from featstore.base.redaction import redact
from featstore.staging.budget import format_bytes
from featstore.staging.cache import Pin, Refusal
from featstore.staging.counts import Counts
from featstore.staging.fetcher import Fetcher, Key, StageItem, Waiting
from featstore.staging.options import Staging
from featstore.staging.request_threads import RequestThreads
from featstore.staging.retry import LOG_EVERY_S, StoppableBackoff, Stopped

_LOG = logging.getLogger(__name__)
# How long `close` waits for threads before it abandons their downloads. A remote that answers ends
# them in milliseconds.
_CLOSE_S = 1.0
# One thread downloads while the other syncs, checks and publishes its last download.
_NUM_THREADS = 2


class Staged(Closing, Generic[Key]):
    """A file for the reader: pinned on the local disk until `release`, or the end of a `with`
    block; or to be read in place.

    Attributes:
        key: The key of its `StageItem`.
        url: The file.
        path: The local file; None: it is to be read in place.
        held: The spans that the local file holds; None is the whole file.
        held_bytes: How many bytes it takes in the cache.
        is_checked: Whether its bytes were compared with checksums of their writer.
    """

    def __init__(
        self, item: StageItem[Key], pin: Pin | None, on_release: Callable[["Staged[Key]"], object]
    ) -> None:
        self.key, self.url = item.key, item.url
        self.path: Path | None = None if pin is None else pin.path
        self.held: tuple[Span, ...] | None = (
            None if pin is None or pin.record.is_whole else pin.record.held
        )
        self.held_bytes = 0 if pin is None else pin.num_bytes
        self.is_checked = pin is not None and pin.record.is_checked
        self._pin, self._on_release = pin, on_release

    @property
    def open_path(self) -> Path | None:
        """A path by which to open the file. Unlike `path` it is valid until `release`, even if the
        file is removed from the cache.
        """
        return None if self._pin is None else self._pin.open_path

    def release(self) -> None:
        """Unpins the file, which may be evicted from then on. May be called more than once."""
        if self._pin is not None:
            self._pin.release()
        self._on_release(self)

    def close(self) -> None:
        """As `release`."""
        self.release()


@dataclass(eq=False)
class _QueuedFile(Generic[Key]):
    """A file in the queue.

    Attributes:
        url: The file, redacted for messages; empty until it is drawn.
        held_bytes: What it takes in the cache; until it is staged, what it will probably take.
        staged: The staged file, once it is.
        error: The error that came instead.
    """

    url: str = ""
    held_bytes: int = 0
    staged: Staged[Key] | None = None
    error: BaseException | None = None

    @property
    def is_settled(self) -> bool:
        return self.staged is not None or self.error is not None


class Stream(Closing, Iterator[Staged[Key]], Generic[Key]):
    """An iterator over staged files for one reader, in the order of `items`. An error is raised
    after the files before it.

    The two threads take turns. The one whose turn it is takes an item and downloads it, and passes
    the turn on when the last bytes are coming. So the connection is not idle while a file is
    synced, checked and published.

    Locks: `_changed` guards the queue and the turn. No thread downloads, or takes from `items`,
    while holding it.

    Args:
        fetcher: Brings files into the cache.
        items: The files, taken in the stream's threads, one at a time.
        counts: Where waiting is counted.
        options: The staging options: how far it may be ahead of the reader, and the budget.
        grace_s: How long the reader waits for room that only the reader itself could free, before a
            BudgetError.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        items: Iterable[StageItem[Key]],
        counts: Counts,
        options: Staging,
        grace_s: float,
    ) -> None:
        self._fetcher, self._counts = fetcher, counts
        self._options, self._budget_bytes = options, options.num_budget_bytes
        self._grace_s = grace_s
        self._items = iter(items)
        self._queue: deque[_QueuedFile[Key]] = deque()
        self._pinned: dict[int, int] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._is_starving = self._is_taken = self._is_drawn = False
        self._num_running = _NUM_THREADS
        self._threads = [
            # In the caller's context: its spans of a trace are children of the caller's.
            threading.Thread(
                target=copy_context().run, args=(self._run,), name="featstore-stager", daemon=True
            )
            for _ in range(_NUM_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the threads have ended and no staged file is left in the queue."""
        return not self._num_running and not self._queue

    def is_ready(self, num_files: int = 1) -> bool:
        """Whether `next` gives this many files, or all that follow, without waiting."""
        with self._changed:
            following = list(islice(self._queue, num_files))
            is_all = len(following) == num_files or not self._num_running
            return self._stop.is_set() or (is_all and all(file.is_settled for file in following))

    def __next__(self) -> Staged[Key]:
        with self._changed:
            if not self._has_answer():
                self._starve()
            if self._stop.is_set() or not self._queue:
                raise StopIteration
            queued = self._queue.popleft()
            self._changed.notify_all()
            if queued.error is not None:
                self._end()
                raise queued.error
            assert queued.staged is not None
            return queued.staged

    def close(self) -> None:
        """Stops and joins the threads, after which iteration ends. Does not wait for a thread that
        a stalled remote holds up: its download is abandoned, and the thread ends when the remote's
        client returns.
        """
        with self._changed:
            self._end()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads) and not self._fetcher.let_go(
            self._stop
        ):
            for thread in self._threads:
                thread.join()

    def _end(self) -> None:
        """Stops the threads, and releases files that the reader has not taken."""
        self._stop.set()
        while self._queue:
            queued = self._queue.popleft()
            if queued.staged is not None:
                queued.staged.release()
        self._changed.notify_all()

    def _has_answer(self) -> bool:
        is_at_end = not self._queue and not self._num_running
        return self._stop.is_set() or is_at_end or (bool(self._queue) and self._queue[0].is_settled)

    def _starve(self) -> None:
        since = time.monotonic()
        self._is_starving = True
        while not self._changed.wait_for(self._has_answer, LOG_EVERY_S):
            awaited = self._queue[0].url if self._queue else "a file to stage"
            _LOG.warning("the reader has waited %.0f s for %s", time.monotonic() - since, awaited)
        self._is_starving = False
        self._counts.add(num_waits=1, wait_s=time.monotonic() - since)

    def _run(self) -> None:
        threads = RequestThreads()
        try:
            while self._stage_next(threads):
                pass
        except Stopped:
            pass  # close() wakes the reader.
        finally:
            threads.close()
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    def _stage_next(self, threads: RequestThreads) -> bool:
        """Stages the next file, in one turn. False at the end."""
        with self._turn() as pass_on:
            queued = _QueuedFile[Key]()
            try:
                item = self._draw(queued)
                if item is None:
                    return False
                staged = self._stage(queued, item, threads, pass_on)
            except Stopped:
                raise
            except BaseException as error:  # noqa: BLE001  the thread's boundary: next() raises it
                self._settle(queued, error=error)
                return False
            self._settle(queued, staged=staged)
            return True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Callable[[], None]]:
        """Waits for the turn and holds it until the block ends, or the function that it yields is
        called.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_taken or self._stop.is_set())
            if self._stop.is_set():
                raise Stopped
            self._is_taken = True
        has_turn = True

        def pass_on() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                with self._changed:
                    self._is_taken = False
                    self._changed.notify_all()

        try:
            yield pass_on
        finally:
            pass_on()

    def _draw(self, queued: _QueuedFile[Key]) -> StageItem[Key] | None:
        """The next item, put into the queue as `queued`; None at the end. It is taken only when it
        may be fetched, since the loader claims a split for it.
        """
        if self._is_drawn:
            return None
        self._wait_for_room(0)
        item = next(self._items, None)
        if item is None:
            self._is_drawn = True
            return None
        queued.url, queued.held_bytes = redact(item.url), self._fetcher.expected_bytes(item)
        with self._changed:
            self._wait_for_room(queued.held_bytes)
            self._queue.append(queued)
        return item

    def _wait_for_room(self, next_bytes: int) -> None:
        """Waits until a file of `next_bytes` fits in with those that the reader has not taken.
        Raises Stopped once the stream is closed.
        """

        def may_go_on() -> bool:
            waiting_bytes = sum(queued.held_bytes for queued in self._queue)
            return self._stop.is_set() or self._options.may_stage(
                len(self._queue), waiting_bytes, next_bytes
            )

        with self._changed:  # Reentrant: a caller that holds it lets go of it for the wait.
            self._changed.wait_for(may_go_on)
            if self._stop.is_set():
                raise Stopped

    def _settle(
        self,
        queued: _QueuedFile[Key],
        *,
        staged: Staged[Key] | None = None,
        error: BaseException | None = None,
    ) -> None:
        with self._changed:
            if self._stop.is_set():
                if staged is not None:
                    staged.release()  # The reader will not take it any more.
                raise Stopped
            if queued not in self._queue:  # `items` raised the error.
                self._queue.append(queued)
            queued.staged, queued.error = staged, error
            self._is_drawn |= error is not None  # Nothing comes after an error.
            queued.held_bytes = 0 if staged is None else staged.held_bytes
            self._changed.notify_all()

    def _stage(
        self,
        queued: _QueuedFile[Key],
        item: StageItem[Key],
        threads: RequestThreads,
        pass_on: Callable[[], None],
    ) -> Staged[Key]:
        backoff = StoppableBackoff(self._stop)

        def await_room(refusal: Refusal, wanted_bytes: int) -> None:
            self._require_possible(queued, refusal, wanted_bytes, backoff.waited_s)
            waited_s = backoff.waited_s
            backoff.wait(f"staging {queued.url} waits: {refusal.value}")
            if refusal is Refusal.FULL:
                self._counts.add(room_wait_s=backoff.waited_s - waited_s)

        pin = self._fetcher.obtain(item, Waiting(self._stop, await_room, threads, pass_on))
        staged = Staged(item, pin, lambda staged: self._pinned.pop(id(staged), None))
        self._pinned[id(staged)] = staged.held_bytes
        return staged

    def _require_possible(
        self, queued: _QueuedFile[Key], refusal: Refusal, wanted_bytes: int, waited_s: float
    ) -> None:
        """BudgetError if the reader has waited too long for this file while it holds so much itself
        that the file cannot fit.
        """
        held_bytes, budget_bytes = sum(list(self._pinned.values())), self._budget_bytes
        is_awaited = self._is_starving and bool(self._queue) and self._queue[0] is queued
        is_impossible = (
            refusal is Refusal.FULL and is_awaited and held_bytes + wanted_bytes > budget_bytes
        )
        if is_impossible and waited_s >= self._grace_s:
            raise BudgetError(
                f"staging.budget_bytes is {format_bytes(budget_bytes)}: {len(self._pinned)} files "
                f"that are being read hold {format_bytes(held_bytes)}, no room for {queued.url} of "
                f"{format_bytes(wanted_bytes)}; raise the budget, or read fewer files at "
                "once (a smaller shuffle.interleave)"
            )
