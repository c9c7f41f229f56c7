"""One pass over files to stage: threads that download them in order, ahead of the reader, and the
queue between.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic

from featstore.errors import BudgetError
from featstore.redaction import redact
from featstore.staging.budget import StageAheadLimit, format_bytes
from featstore.staging.cache import Pin, Refusal
from featstore.staging.counts import Counts
from featstore.staging.fetcher import Fetcher, Key, StageItem, Waiting
from featstore.staging.ranges import Span
from featstore.staging.retry import LOG_EVERY_S, StoppableBackoff, Stopped

_LOG = logging.getLogger(__name__)
_CLOSE_S = 1.0
# One downloads while the other syncs, checks and publishes what it has downloaded.
_NUM_THREADS = 2


class Staged(Generic[Key]):
    """A file for the reader: on the local disk, pinned there until `release()` (or the end of a
    `with` block), or, where `path` is None, to be read where it is. `held`: the spans that are
    there, None for all of them. `is_checked`: they were compared with what their writer said of
    them."""

    def __init__(
        self, item: StageItem[Key], pin: Pin | None, on_release: Callable[["Staged[Key]"], None]
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
        """As `path`, for whoever opens the file: it leads there until `release()`, also where
        somebody has removed the file.
        """
        return None if self._pin is None else self._pin.open_path

    def release(self) -> None:
        """Allows the file's eviction; `path` may vanish from now on. May be called more than
        once.
        """
        if self._pin is not None:
            self._pin.release()
        self._on_release(self)

    def __enter__(self) -> "Staged[Key]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@dataclass(frozen=True, kw_only=True)
class StreamTerms:
    """What a pass keeps to: how far ahead it may be, under which budget, and how long a reader
    waits for room that only it can give."""

    ahead: StageAheadLimit
    budget_bytes: int
    grace_s: float


@dataclass(eq=False)
class _Place(Generic[Key]):
    """A file's place in the queue: what it will likely hold until it is there, then it, or what
    came instead.
    """

    url: str
    held_bytes: int = 0
    staged: Staged[Key] | None = None
    error: BaseException | None = None

    @property
    def is_settled(self) -> bool:
        return self.staged is not None or self.error is not None


class Stream(Iterator[Staged[Key]], Generic[Key]):
    """Iterated by one reader. Files come in the order of `items`, and what went wrong comes after
    the files before it.

    The threads take turns: whoever has the turn draws an item and downloads it, and passes the turn
    on when the last bytes are coming, so that the line is never idle while a file is synced,
    checked and published.
    """

    def __init__(
        self, fetcher: Fetcher, items: Iterable[StageItem[Key]], counts: Counts, terms: StreamTerms
    ) -> None:
        self._fetcher, self._counts, self._terms = fetcher, counts, terms
        self._items = iter(items)
        self._queue: deque[_Place[Key]] = deque()
        self._pinned: dict[int, int] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._is_starving = self._is_taken = self._is_drawn = False
        self._num_running = _NUM_THREADS
        self._threads = [
            threading.Thread(target=self._run, name="featstore-stager", daemon=True)
            for _ in range(_NUM_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing runs, and nothing is left that must be let go of."""
        return not self._num_running and not self._queue

    def __next__(self) -> Staged[Key]:
        with self._changed:
            if not self._has_answer():
                self._starve()
            if self._stop.is_set() or not self._queue:
                raise StopIteration
            place = self._queue.popleft()
            self._changed.notify_all()
            if place.error is not None:
                self._end()
                raise place.error
            assert place.staged is not None
            return place.staged

    def close(self) -> None:
        """Stops and joins the threads; `next()` then ends. Does not wait for a thread that a
        stalled remote holds up: its download is given up, and it ends when the remote's client lets
        it."""
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
        """Stops the threads, and lets go of what nobody takes any more."""
        self._stop.set()
        while self._queue:
            place = self._queue.popleft()
            if place.staged is not None:
                place.staged.release()
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
        try:
            while self._stage_next():
                pass
        except Stopped:
            pass  # close() says so to whoever waits
        finally:
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    def _stage_next(self) -> bool:
        """One turn: False at the end."""
        with self._turn() as pass_on:
            drawn = self._draw()
            if drawn is None:
                return False
            place, item = drawn
            try:
                staged = self._stage(place, item, pass_on)
            except Stopped:
                raise
            except BaseException as error:  # noqa: BLE001  the thread's boundary: next() raises it
                self._settle(place, error=error)
                return False
            self._settle(place, staged=staged)
            return True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Callable[[], None]]:
        """The right to draw and to download, until the block ends or what it gets is called."""
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

    def _draw(self) -> tuple[_Place[Key], StageItem[Key]] | None:
        """The next item, drawn only when it may be fetched: drawing one takes a lease. None at the
        end.
        """
        if self._is_drawn:
            return None
        try:
            self._wait_for_room(0)
            item = next(self._items, None)
        except Stopped:
            raise
        except BaseException as error:  # noqa: BLE001  the thread's boundary: next() raises it
            self._enqueue(_Place[Key](url=""))
            self._settle(self._queue[-1], error=error)
            return None
        if item is None:
            self._is_drawn = True
            return None
        expected_bytes = self._fetcher.expected_bytes(item)
        self._wait_for_room(expected_bytes)
        place = _Place[Key](url=redact(item.url), held_bytes=expected_bytes)
        self._enqueue(place)
        return place, item

    def _wait_for_room(self, next_bytes: int) -> None:
        """Waits until a file of so many bytes may join those that the reader has not taken. Stopped
        once closed.
        """

        def may_go_on() -> bool:
            waiting_bytes = sum(place.held_bytes for place in self._queue)
            return self._stop.is_set() or self._terms.ahead.has_room(
                len(self._queue), waiting_bytes, next_bytes
            )

        with self._changed:
            self._changed.wait_for(may_go_on)
        if self._stop.is_set():
            raise Stopped

    def _enqueue(self, place: _Place[Key]) -> None:
        with self._changed:
            if self._stop.is_set():
                raise Stopped
            self._queue.append(place)

    def _settle(
        self,
        place: _Place[Key],
        *,
        staged: Staged[Key] | None = None,
        error: BaseException | None = None,
    ) -> None:
        with self._changed:
            if self._stop.is_set():
                if staged is not None:
                    staged.release()  # nobody takes it any more
                raise Stopped
            place.staged, place.error = staged, error
            self._is_drawn |= error is not None
            place.held_bytes = 0 if staged is None else staged.held_bytes
            self._changed.notify_all()

    def _stage(
        self, place: _Place[Key], item: StageItem[Key], pass_on: Callable[[], None]
    ) -> Staged[Key]:
        backoff = StoppableBackoff(self._stop)

        def await_room(refusal: Refusal, wanted_bytes: int) -> None:
            self._require_hope(place, refusal, wanted_bytes, backoff.waited_s)
            backoff.wait(f"staging {place.url} waits: {refusal.value}")

        pin = self._fetcher.obtain(item, Waiting(self._stop, await_room, pass_on))
        staged = Staged(item, pin, self._forget)
        self._pinned[id(staged)] = staged.held_bytes
        return staged

    def _forget(self, staged: Staged[Key]) -> None:
        self._pinned.pop(id(staged), None)

    def _require_hope(
        self, place: _Place[Key], refusal: Refusal, wanted_bytes: int, waited_s: float
    ) -> None:
        """BudgetError where the reader waits for this file, and itself holds what the budget has no
        room beside.
        """
        held_bytes = sum(list(self._pinned.values()))
        budget_bytes = self._terms.budget_bytes
        is_awaited = self._is_starving and bool(self._queue) and self._queue[0] is place
        hopeless = (
            refusal is Refusal.FULL and is_awaited and held_bytes + wanted_bytes > budget_bytes
        )
        if hopeless and waited_s >= self._terms.grace_s:
            raise BudgetError(
                f"staging.budget_bytes is {format_bytes(budget_bytes)}: {len(self._pinned)} files "
                f"that are being read hold {format_bytes(held_bytes)}, no room for {place.url} of "
                f"{format_bytes(wanted_bytes)}; raise the budget, or read fewer files at once"
            )
