"""The stager: one thread that stages data files ahead of the reader, in order, under a byte budget."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from featstore import files
from featstore.errors import BudgetError
from featstore.staging.budget import format_bytes, require_fits
from featstore.staging.cache import Cache, Limits, Pin, Refusal, entry_name
from featstore.staging.fetcher import Fetcher, Source, StageItem, StagingStats
from featstore.staging.options import Staging
from featstore.staging.patience import LOG_EVERY_S, Patience, Stopped
from featstore.staging.ranges import Span

_LOG = logging.getLogger(__name__)
_CLOSE_S = 1.0


class Staged:
    """A file for the reader: on the local disk, pinned there until `release()` (or the end of a `with` block), or, where
    `path` is None, to be read where it is. `held`: the spans that are there, None for all of them."""

    def __init__(self, item: StageItem, pin: Pin | None, on_release: Callable[["Staged"], None]) -> None:
        self.key, self.url = item.key, item.url
        self.path: Path | None = None if pin is None else pin.path
        self.held: tuple[Span, ...] | None = None if pin is None or pin.record.is_whole else pin.record.held
        self.held_bytes = 0 if pin is None else pin.num_bytes
        self._pin, self._on_release = pin, on_release

    def release(self) -> None:
        """Allows the file's eviction; `path` may vanish from now on. May be called more than once."""
        if self._pin is not None:
            self._pin.release()
        self._on_release(self)

    def __enter__(self) -> "Staged":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class Stager:
    """Stages files into one cache. A context manager, to be closed by the one that made it.

    `grace_s`: how long `next()` waits for room that only the reader itself can give, before BudgetError.
    """

    def __init__(self, options: Staging, source: Source | None = None, *, grace_s: float = 30.0) -> None:
        self.options, self.grace_s = options, grace_s
        limits = Limits(
            budget_bytes=options.num_budget_bytes,
            min_free_bytes=options.num_min_free_bytes,
            max_connections=options.max_connections,
        )
        self.cache = Cache(options.directory, limits)
        self.counts = StagingStats()
        self.fetcher = Fetcher(options, self.cache, source or Source(), self.counts)
        self._streams: list[Stream] = []

    def require_fits(self, sizes: Iterable[tuple[str, int]], *, num_open: int = 1) -> None:
        """BudgetError, before anything is downloaded, unless the `num_open` largest of (URL, bytes) fit at once."""
        named = ((files.redact(url), size_bytes) for url, size_bytes in sizes)
        require_fits(named, self.options.num_budget_bytes, num_open=num_open)

    def stage(self, items: Iterable[StageItem]) -> "Stream":
        """The items' files in order, each pinned until released. Starts downloading at once; one pass may be closed alone.

        `items` is drawn from by the stager's thread, no further ahead than the options say. What goes wrong there, and in
        `items` itself, is raised by `next()` after the files before it.
        """
        stream = Stream(self, items)
        self._streams = [*(s for s in self._streams if not s.is_over), stream]
        return stream

    def has(self, url: str, size_bytes: int, version: str = "") -> bool:
        """Whether the file, or some of it, is in the cache now."""
        return self.cache.has(entry_name(url, size_bytes, version))

    def stats(self) -> StagingStats:
        """A copy of the counts."""
        return StagingStats(**(vars(self.counts) | {"num_evicted": self.cache.num_evicted}))

    def close(self) -> None:
        """Ends downloads, joins the thread, unpins what was not taken, and removes a private directory.

        A download that a stalled remote holds up is given up at once; its thread ends when the remote's client lets it.
        `items` that wait must be ended by their owner first (close the coordinator before the stager).
        """
        for stream in self._streams:
            stream.close()
        self.cache.close()

    def __enter__(self) -> "Stager":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Stream(Iterator[Staged]):
    """One pass over items: the thread, and the bounded queue between it and the reader."""

    def __init__(self, stager: Stager, items: Iterable[StageItem]) -> None:
        self._stager, self._items = stager, items
        self._ready: deque[Staged] = deque()
        self._pinned: dict[int, int] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._is_starving, self.is_over = False, False
        self._under_way = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="featstore-stager", daemon=True)
        self._thread.start()

    def __next__(self) -> Staged:
        with self._changed:
            if not self._ready and not self.is_over:
                self._starve()
            if self._ready:
                staged = self._ready.popleft()
                self._changed.notify_all()
                return staged
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration

    def close(self) -> None:
        """Stops and joins the thread; `next()` then ends."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive() and not self._stager.fetcher.let_go(self._stop):
            self._thread.join()
        with self._changed:
            self.is_over = True
            self._changed.notify_all()
            while self._ready:
                self._ready.popleft().release()

    def _starve(self) -> None:
        counts, since = self._stager.counts, time.monotonic()
        self._is_starving = True
        while not self._changed.wait_for(lambda: self._ready or self.is_over, LOG_EVERY_S):
            _LOG.warning("the reader has waited %.0f s for %s", time.monotonic() - since, self._under_way or "a file to stage")
        self._is_starving = False
        counts.num_waits += 1
        counts.wait_s += time.monotonic() - since

    def _run(self) -> None:
        try:
            for item in self._drawn():
                staged = self._stage(item)
                with self._changed:
                    if self._stop.is_set():
                        staged.release()  # nobody takes it any more
                        return
                    self._ready.append(staged)
                    self._changed.notify_all()
        except Stopped:
            pass  # close() says so to whoever waits
        except BaseException as error:  # noqa: BLE001  the thread's boundary: next() raises it
            self._error = None if self._stop.is_set() else error
        finally:
            with self._changed:
                self.is_over = True
                self._changed.notify_all()

    def _drawn(self) -> Iterator[StageItem]:
        """Items, each drawn only when it may be fetched: drawing one takes a lease."""
        items = iter(self._items)
        while self._wait_for_room(0) and (item := next(items, None)) is not None:
            if not self._wait_for_room(self._stager.fetcher.expected_bytes(item)):
                return
            yield item

    def _wait_for_room(self, next_bytes: int) -> bool:
        """False once closed."""
        ahead = self._stager.options.ahead

        def may_go_on() -> bool:
            waiting_bytes = sum(staged.held_bytes for staged in self._ready)
            return self._stop.is_set() or ahead.has_room(len(self._ready), waiting_bytes, next_bytes)

        with self._changed:
            self._changed.wait_for(may_go_on)
        return not self._stop.is_set()

    def _stage(self, item: StageItem) -> Staged:
        patience = Patience(self._stop)
        self._under_way = files.redact(item.url)

        def await_room(refusal: Refusal, wanted_bytes: int) -> None:
            self._require_hope(item, refusal, wanted_bytes, patience.waited_s)
            patience.wait(f"staging {files.redact(item.url)} waits: {refusal.value}")

        staged = Staged(item, self._stager.fetcher.obtain(item, self._stop, await_room), self._forget)
        self._pinned[id(staged)] = staged.held_bytes
        return staged

    def _forget(self, staged: Staged) -> None:
        self._pinned.pop(id(staged), None)

    def _require_hope(self, item: StageItem, refusal: Refusal, wanted_bytes: int, waited_s: float) -> None:
        """BudgetError where the reader waits for this file, and itself holds what the budget has no room beside."""
        held_bytes = sum(list(self._pinned.values()))
        budget_bytes = self._stager.options.num_budget_bytes
        hopeless = refusal is Refusal.FULL and self._is_starving and held_bytes + wanted_bytes > budget_bytes
        if hopeless and waited_s >= self._stager.grace_s:
            raise BudgetError(
                f"staging.budget_bytes is {format_bytes(budget_bytes)}: {len(self._pinned)} files that are being read hold "
                f"{format_bytes(held_bytes)}, no room for {files.redact(item.url)} of {format_bytes(wanted_bytes)}; raise "
                "the budget, or read fewer files at once"
            )
