"""The stager: one thread that downloads data files ahead of the reader, in order, under a byte budget."""

import errno
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from featstore import files
from featstore.errors import BudgetError, StagingError
from featstore.staging.budget import format_bytes, require_fits
from featstore.staging.cache import Cache, Download, Pin, Refusal, entry_name
from featstore.staging.options import Staging

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
_LOG_EVERY_S = 60.0
_HOPELESS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, StagingError)
_LOCAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(frozen=True, kw_only=True)
class StageItem:
    """A file to stage for whoever knows `key`. `version`: ETag or modification time where known, so that a replaced file
    is not taken for the one that was staged before."""

    key: object
    url: str
    size_bytes: int
    version: str = ""


class Staged:
    """A file on the local disk, pinned there until `release()` (or the end of a `with` block)."""

    def __init__(self, item: StageItem, pin: Pin, on_release: Callable[["Staged"], None]) -> None:
        self.key, self.url, self.size_bytes, self.path = item.key, item.url, item.size_bytes, pin.path
        self._pin, self._on_release = pin, on_release

    def release(self) -> None:
        """Allows the file's eviction; `path` may vanish from now on. May be called more than once."""
        self._pin.release()
        self._on_release(self)

    def __enter__(self) -> "Staged":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


@dataclass(kw_only=True)
class StagingStats:
    """Counts since the stager was made.

    `num_hits`: files that were there already; `num_waits`, `wait_s`: how often and how long the reader found nothing ready.
    """

    num_staged: int = 0
    staged_bytes: int = 0
    num_hits: int = 0
    num_retries: int = 0
    num_evicted: int = 0
    num_waits: int = 0
    wait_s: float = 0.0


def _accept(path: Path) -> None:
    """The check of a stager that is given none."""


class Stager:
    """Stages files into one cache. A context manager, to be closed by the one that made it.

    `fetch(url, target)` writes a file front to back and returns the bytes written; `check(path)` raises for a file whose
    content is not to be read. `backoff_s`: the pause after a first failed download. `grace_s`: how long `next()` waits for
    room that only the reader itself can give, before BudgetError.
    """

    def __init__(
        self,
        options: Staging,
        *,
        fetch: Callable[[str, IO[bytes]], int] = files.fetch,
        check: Callable[[Path], None] = _accept,
        backoff_s: float = 0.2,
        grace_s: float = 30.0,
    ) -> None:
        self.options, self.fetch, self.check = options, fetch, check
        self.backoff_s, self.grace_s = backoff_s, grace_s
        self.cache = Cache(options.directory, options.num_budget_bytes)
        self.counts = StagingStats()
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

    def stats(self) -> StagingStats:
        """A copy of the counts."""
        return StagingStats(**(vars(self.counts) | {"num_evicted": self.cache.num_evicted}))

    def close(self) -> None:
        """Ends downloads, joins the thread, unpins what was not taken, and removes a private directory.

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
        self._thread.join()
        while self._ready:
            self._ready.popleft().release()

    def _starve(self) -> None:
        counts, since = self._stager.counts, time.monotonic()
        self._is_starving = True
        self._changed.wait_for(lambda: self._ready or self.is_over)
        self._is_starving = False
        counts.num_waits += 1
        counts.wait_s += time.monotonic() - since

    def _run(self) -> None:
        try:
            for item in self._drawn():
                staged = self._stage(item)
                if staged is None:
                    break
                with self._changed:
                    self._ready.append(staged)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  the thread's boundary: next() raises it
            self._error = error
        finally:
            with self._changed:
                self.is_over = True
                self._changed.notify_all()

    def _drawn(self) -> Iterator[StageItem]:
        """Items, each drawn only when it may be fetched: drawing one takes a lease."""
        items = iter(self._items)
        while self._wait_for_room(0) and (item := next(items, None)) is not None:
            if not self._wait_for_room(item.size_bytes):
                return
            yield item

    def _wait_for_room(self, next_bytes: int) -> bool:
        """False once closed."""
        ahead = self._stager.options.ahead

        def may_go_on() -> bool:
            waiting_bytes = sum(staged.size_bytes for staged in self._ready)
            return self._stop.is_set() or ahead.has_room(len(self._ready), waiting_bytes, next_bytes)

        with self._changed:
            self._changed.wait_for(may_go_on)
        return not self._stop.is_set()

    def _stage(self, item: StageItem) -> Staged | None:
        """The file, pinned; None once closed."""
        cache, counts = self._stager.cache, self._stager.counts
        self._stager.require_fits([(item.url, item.size_bytes)])
        name = entry_name(item.url, item.size_bytes, item.version)
        patience = _Patience(self._stop)
        while not self._stop.is_set():
            answer = cache.request(name, item.size_bytes)
            if isinstance(answer, Refusal):
                self._require_hope(item, answer, patience.waited_s)
                patience.wait(f"staging {files.redact(item.url)} waits: {answer.value}")
                continue
            if isinstance(answer, Pin):
                counts.num_hits += 1
                return self._pin(item, answer)
            pin = self._download(item, answer)
            return None if pin is None else self._pin(item, pin)
        return None

    def _pin(self, item: StageItem, pin: Pin) -> Staged:
        staged = Staged(item, pin, self._forget)
        self._pinned[id(staged)] = item.size_bytes
        return staged

    def _forget(self, staged: Staged) -> None:
        self._pinned.pop(id(staged), None)

    def _require_hope(self, item: StageItem, refusal: Refusal, waited_s: float) -> None:
        """BudgetError where the reader waits for this file, and itself holds what the budget has no room beside."""
        held_bytes = sum(list(self._pinned.values()))
        budget_bytes = self._stager.options.num_budget_bytes
        hopeless = refusal is Refusal.FULL and self._is_starving and held_bytes + item.size_bytes > budget_bytes
        if hopeless and waited_s >= self._stager.grace_s:
            raise BudgetError(
                f"staging.budget_bytes is {format_bytes(budget_bytes)}: {len(self._pinned)} files that are being read hold "
                f"{format_bytes(held_bytes)}, no room for {files.redact(item.url)} of {format_bytes(item.size_bytes)}; raise "
                "the budget, or read fewer files at once"
            )

    def _download(self, item: StageItem, download: Download) -> Pin | None:
        try:
            if not self._fill(item, download.path):
                download.abandon()
                return None
            self._stager.check(download.path)
            pin = download.publish()
        except BaseException:
            download.abandon()
            raise
        self._stager.counts.num_staged += 1
        self._stager.counts.staged_bytes += item.size_bytes
        return pin

    def _fill(self, item: StageItem, path: Path) -> bool:
        """Downloads, again where the transport failed, until the file has its size; False once closed."""
        failure = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._stager.counts.num_retries += 1
                _LOG.warning("%s; trying again", failure)
                self._stop.wait(self._stager.backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
            if self._stop.is_set():
                return False
            failure = self._try_fill(item, path)
            if not failure:
                return not self._stop.is_set()
        raise StagingError(f"{failure}; gave up after {_ATTEMPTS} attempts")

    def _try_fill(self, item: StageItem, path: Path) -> str:
        """One download, synced to the disk; returns what failed, if trying again may help."""
        url = files.redact(item.url)
        try:
            with path.open("r+b") as file:
                written = self._stager.fetch(item.url, cast(IO[bytes], _Target(file, self._stop)))
                file.flush()
                os.fsync(file.fileno())
        except _Stopped:
            return ""
        except _HOPELESS:
            raise
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in _LOCAL:
                raise StagingError(f"{url} cannot be written to {path.parent}: {error.strerror}") from error
            return f"download of {url} failed: {type(error).__name__}: {files.redact_text(str(error))}"
        if written != item.size_bytes:
            return f"download of {url} has the wrong size: expected {item.size_bytes} bytes, found {written}"
        return ""


class _Stopped(Exception):
    """The stager was closed in the middle of a download."""


class _Target:
    """What a fetch writes into: lets a closed stager end a download between two blocks."""

    def __init__(self, file: IO[bytes], stop: threading.Event) -> None:
        self._file, self._stop = file, stop

    def write(self, block: Any) -> int:
        if self._stop.is_set():
            raise _Stopped
        return self._file.write(block)


class _Patience:
    """Pauses that grow to a limit, end when `stop` is set, and are told of in the log when they add up."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._since = stop, time.monotonic()
        self._pause_s, self._told_at = _FIRST_PAUSE_S, self._since

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._since

    def wait(self, why: str) -> None:
        self._stop.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if time.monotonic() - self._told_at >= _LOG_EVERY_S:
            self._told_at = time.monotonic()
            _LOG.warning("%s (%.0f s so far)", why, self.waited_s)
