"""One file into the cache: found there, or decided how, downloaded, checked and published."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from featstore.errors import DataFileError, ReplacedError, StagingError
from featstore.files import storage
from featstore.files.transfer import ReadSpan, read_span
from featstore.intervals import united
from featstore.redaction import redact, without_user
from featstore.staging.budget import require_fits
from featstore.staging.cache import (
    Cache,
    Download,
    Pin,
    Refusal,
    RemovedError,
    entry_name,
    removed_error,
)
from featstore.staging.cost import DIRECT, RANGES, WHOLE, Demand, Remote, choose, needs_no_footer
from featstore.staging.counts import Counts
from featstore.staging.filling import Filling, Line, Received
from featstore.staging.limits import Throttle
from featstore.staging.lookahead import RequestsAhead
from featstore.staging.options import Staging
from featstore.staging.ranges import (
    PlanRanges,
    Span,
    buffered,
    coalesce,
    covers,
    missing,
    num_bytes,
)
from featstore.staging.record import Record, SpanChecksum, united_checksum
from featstore.staging.retry import RetryPolicy, is_local

_LOG = logging.getLogger(__name__)
Key = TypeVar("Key")
_TAIL_BYTES, _MOST_REMOVED = 64 << 10, 5
# Called with each refusal and the bytes that are wanted; returns when it is time to try again, or
# raises.
AwaitRoom = Callable[[Refusal, int], None]
Check = Callable[[Path, str, Sequence[Span]], None]


@dataclass(frozen=True, kw_only=True)
class StageItem(Generic[Key]):
    """A file to stage.

    Attributes:
        key: The caller's own; it comes back with the staged file.
        url: Where the file is.
        size_bytes: Its size.
        version: Its ETag or modification time, where known, so that a replaced file is not taken
            for the one that was staged before.
        crc32: The CRC-32 of all its bytes; None where unknown.
    """

    key: Key
    url: str
    size_bytes: int
    version: str = ""
    crc32: int | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """What staging knows of files: how to read them, which ranges are wanted (None: all), what
    makes a staged one sound.

    `plan_ranges(tail, size_bytes, name)` gets a file's last bytes, and returns the spans to stage,
    or how many of the last bytes it needs to see. `check(path, name, held)` raises DataFileError
    where the spans that are held of a file are not what was written. `name`, the URL without
    credentials, is what errors call the file.
    """

    read: ReadSpan = read_span
    plan_ranges: PlanRanges | None = None
    check: Check | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True)
class Waiting:
    """What a download waits for, and who waits for it: `stop` ends it; `await_room` is called with
    each refusal; `pass_on` is called once the last bytes are coming, when another download may
    begin."""

    stop: threading.Event
    await_room: AwaitRoom
    pass_on: Callable[[], None] = lambda: None


class Fetcher:
    """Brings files into the cache. Safe for threads; what it learned of remotes and selections
    serves all of them.
    """

    def __init__(self, options: Staging, cache: Cache, source: Source, counts: Counts) -> None:
        self._options, self._cache, self._source, self._counts = options, cache, source, counts
        self._throttle = Throttle(cache.limits_path, options.num_bytes_per_s)
        self._remotes: dict[str, Remote] = {}
        # What the last file with a footer would cost by what is known of its remote at the time of
        # asking.
        self._last: Callable[[], Demand] | None = None
        self._under_way: list[tuple[threading.Event, Download]] = []
        self._damaged = set[str]()
        self._tail_bytes, self._plan_s = _TAIL_BYTES, 0.0

    def remote(self, url: str) -> Remote:
        """What is known of the URL's store."""
        known = self._remotes.get(_remote_name(url))
        if known is not None:
            return known
        # A limit of connections counts downloads. And fsspec's clients are of one thread, and do
        # all when a block is asked for.
        is_alone = self._options.max_connections is not None or not storage.has_object_store(url)
        return Remote(num_at_once=1) if is_alone else Remote()

    def expected_bytes(self, item: StageItem[Any]) -> int:
        """What the file will likely take of the cache."""
        if self._is_whole(item) or self._last is None:
            return item.size_bytes
        return min(item.size_bytes, self._last().scaled(item.size_bytes).range_bytes)

    def obtain(self, item: StageItem[Any], waiting: Waiting) -> Pin | None:
        """The file, pinned, with all that is wanted of it; None where it is better read in place.
        Stopped once closed.

        RemovedError where somebody removes the cache, or what is downloaded there, again and again.
        """
        num_removed = 0
        while True:
            try:
                with self._local_errors(item):
                    return self._obtained(item, waiting)
            except RemovedError as error:
                num_removed += 1
                if num_removed == _MOST_REMOVED:
                    raise
                _LOG.warning("%s; downloading it anew", error)

    def _obtained(self, item: StageItem[Any], waiting: Waiting) -> Pin | None:
        name, base, beyond_bytes = entry_name(item.url, item.size_bytes, item.version), None, -1
        if name in self._damaged:
            return None
        try:
            while True:
                first_bytes = self._first_bytes(item, base)
                answer = self._cache.request(
                    name, item.size_bytes, first_bytes, beyond_bytes=beyond_bytes
                )
                if isinstance(answer, Download):
                    return self._download(item, answer, base, waiting)
                if isinstance(answer, Pin):
                    if not self._is_intact(item, answer, waiting.stop):
                        self._cache.remove(answer)
                    elif self._serves(item, answer):
                        self._counts.add(num_hits=1)
                        return answer
                    else:
                        base, beyond_bytes = _let_go(base, answer), answer.num_bytes
                elif base is not None and answer is Refusal.FULL:
                    base = _let_go(base, None)  # its room may be what is lacking
                else:
                    waiting.await_room(answer, first_bytes)
        finally:
            _let_go(base, None)

    def let_go(self, stop: threading.Event) -> bool:
        """Removes what the threads that `stop` ends are downloading, without waiting for them;
        False where that is nothing.
        """
        under_way = [download for ended_by, download in list(self._under_way) if ended_by is stop]
        for download in under_way:
            download.abandon()
        return bool(under_way)

    def _is_intact(self, item: StageItem[Any], pin: Pin, stop: threading.Event) -> bool:
        try:
            is_intact = pin.is_intact(stop)
        except BaseException:
            pin.release()
            raise
        if not is_intact:
            _LOG.warning(
                "%s in the cache is not what was downloaded; downloading it anew", redact(item.url)
            )
        return is_intact

    @contextlib.contextmanager
    def _local_errors(self, item: StageItem[Any]) -> Iterator[None]:
        """A disk that is full or cannot be written, as a StagingError that names it; what somebody
        removed from the cache, or all of it, as RemovedError."""
        try:
            yield
        except OSError as error:
            if isinstance(error, StagingError):
                raise
            if isinstance(error, FileNotFoundError) and self._cache.holds(error.filename):
                raise removed_error(error.filename) from None
            if not is_local(error):
                raise
            raise StagingError(
                f"{redact(item.url)} cannot be written to {self._cache.root}: {error.strerror}; "
                "make room there, or name another staging.directory"
            ) from error

    def _is_whole(self, item: StageItem[Any]) -> bool:
        """Whether the file is taken whole without a look at its footer."""
        if self._source.plan_ranges is None or self._options.mode == WHOLE:
            return True
        may_be = self._options.mode != RANGES and item.size_bytes <= self._options.num_budget_bytes
        return may_be and needs_no_footer(
            item.size_bytes, self._last and self._last(), self.remote(item.url), self._plan_s
        )

    def _first_bytes(self, item: StageItem[Any], base: Pin | None) -> int:
        """What to reserve at first: the whole file, or its tail beside what is there already."""
        if self._is_whole(item):
            self._require_fits(item, item.size_bytes)
            return item.size_bytes
        held_bytes = 0 if base is None else base.record.held_bytes
        return min(item.size_bytes, held_bytes + self._tail_bytes)

    def _require_fits(self, item: StageItem[Any], wanted_bytes: int) -> None:
        require_fits([(redact(item.url), wanted_bytes)], self._options.num_budget_bytes)

    def _serves(self, item: StageItem[Any], pin: Pin) -> bool:
        """Whether a file in the cache holds what is wanted of it."""
        record = pin.record
        if record.is_whole or self._source.plan_ranges is None or self._options.mode == WHOLE:
            return record.is_whole
        last = record.held[-1] if record.held else (0, 0)
        tail_bytes = last[1] - last[0] if last[1] == item.size_bytes else 0
        with pin.open_path.open("rb") as file:

            def tail_of(num_bytes: int) -> bytes:
                if num_bytes > tail_bytes:
                    raise _NotHeld
                return os.pread(file.fileno(), num_bytes, item.size_bytes - num_bytes)

            try:
                return covers(
                    record.held, self._plan(item, min(tail_bytes, self._tail_bytes), tail_of).spans
                )
            except _NotHeld:
                return False

    def _plan(
        self, item: StageItem[Any], tail_bytes: int, tail_of: Callable[[int], bytes]
    ) -> "_Plan":
        """What is wanted, the tail with it."""
        name = redact(item.url)
        while isinstance(
            found := self._timed_plan(tail_of(tail_bytes), item.size_bytes, name), int
        ):
            if not tail_bytes < found <= item.size_bytes:
                raise StagingError(
                    f"{name}: expected a footer of at most {item.size_bytes} bytes, found one of "
                    f"{found}"
                )
            tail_bytes = found
        self._tail_bytes = max(self._tail_bytes, tail_bytes)
        spans = united([*found, (item.size_bytes - tail_bytes, item.size_bytes)])
        return _Plan(spans=spans, in_place=buffered(found, storage.BUFFER_BYTES))

    def _timed_plan(self, tail: bytes, size_bytes: int, name: str) -> Sequence[Span] | int:
        assert self._source.plan_ranges is not None
        since = time.monotonic()
        found = self._source.plan_ranges(tail, size_bytes, name)
        if not isinstance(found, int):
            self._plan_s = time.monotonic() - since
        return found

    def _download(
        self, item: StageItem[Any], download: Download, base: Pin | None, waiting: Waiting
    ) -> Pin | None:
        entry = (waiting.stop, download)
        self._under_way.append(entry)
        try:
            filling = Filling(item.url, item.size_bytes, download.path, self._line(waiting.stop))
            try:
                pin = self._fill_until_sound(item, download, filling, base, waiting)
            finally:
                filling.close()
            if pin is None:
                download.abandon()
                self._counts.add(num_direct=1)
            return pin
        except BaseException:
            download.abandon()
            raise
        finally:
            self._under_way.remove(entry)

    def _fill_until_sound(
        self,
        item: StageItem[Any],
        download: Download,
        filling: Filling,
        base: Pin | None,
        waiting: Waiting,
    ) -> Pin | None:
        """Fills and publishes the file; None where it is better read in place.

        Starts again where the remote file was replaced meanwhile: of two files not one byte each
        may be left. Starts again, too, where the bytes are not those that were written, as they may
        have changed on the way. Bytes that come twice are what the store has. The cache must not
        vouch for such a file, so it is read in place from now on, and its reader says what is wrong
        with it.
        """
        damaged, num_failures = list[SpanChecksum](), 0
        while True:
            num_failures += 1
            is_last = self._source.retry.gives_up(num_failures)
            try:
                if not self._fill(item, download, filling, base, waiting):
                    return None
                if not (failure := self._damage(item, download, filling)):
                    return self._publish(item, download, filling)
            except ReplacedError as error:
                if is_last:
                    raise
                failure = str(error)
            else:
                if is_last or sorted(filling.sums) == damaged:
                    _LOG.warning(
                        "%s; the cache does not keep the file, it is read in place", failure
                    )
                    self._damaged.add(entry_name(item.url, item.size_bytes, item.version))
                    return None
                damaged = sorted(filling.sums)
            if base is not None:
                self._cache.discard(base)
            base = None
            filling.restart()
            self._line(waiting.stop).pause(failure, num_failures)

    def _damage(self, item: StageItem[Any], download: Download, filling: Filling) -> str:
        """How the bytes that came differ from those that were written; empty where nothing says
        so.
        """
        name, crc32 = redact(item.url), united_checksum(filling.sums, item.size_bytes)
        if item.crc32 is not None and crc32 is not None:
            expected = f"{name}: expected the CRC-32 {item.crc32:08x} of its commit"
            return "" if crc32 == item.crc32 else f"{expected}, found {crc32:08x}"
        try:
            if self._source.check is not None:
                self._source.check(download.path, name, filling.held)
        except DataFileError as error:
            return str(error)
        return ""

    def _fill(
        self,
        item: StageItem[Any],
        download: Download,
        filling: Filling,
        base: Pin | None,
        waiting: Waiting,
    ) -> bool:
        if base is not None:
            filling.adopt(base)
            base.release()
        plan = None
        if (
            self._source.plan_ranges is not None
            and self._options.mode != WHOLE
            and not (base is None and self._is_whole(item))
        ):
            plan = self._plan(item, min(item.size_bytes, self._tail_bytes), filling.tail)
        requests = self._requests(item, filling, plan, self._options.num_budget_bytes)
        if requests:
            self._reserve(item, download, num_bytes(united([*filling.held, *requests])), waiting)

        ahead = RequestsAhead(
            remote=lambda: self.remote(item.url),
            plan=lambda: self._further_requests(item, download, filling, plan),
            filling=filling,
            pass_on=waiting.pass_on,
        )
        while requests:
            ahead.fetch(*requests[0])
            requests = filling.in_flight or self._further_requests(item, download, filling, plan)
        waiting.pass_on()
        return requests is not None

    def _reserve(
        self, item: StageItem[Any], download: Download, wanted_bytes: int, waiting: Waiting
    ) -> None:
        """Waits until the cache has room for so many bytes of the file."""
        self._require_fits(item, wanted_bytes)
        while (refusal := download.reserve(wanted_bytes)) is not None:
            waiting.await_room(refusal, wanted_bytes - download.num_bytes)

    def _further_requests(
        self, item: StageItem[Any], download: Download, filling: Filling, plan: "_Plan | None"
    ) -> tuple[Span, ...] | None:
        """What is still to be asked for: what the last request showed may change it. Only as far as
        there is room at once: with a file begun nobody may wait for room, which another one in the
        same place holds."""
        requests = self._requests(item, filling, plan, self._options.num_budget_bytes)
        wanted_bytes = num_bytes(united([*filling.coming, *(requests or ())]))
        if wanted_bytes > download.num_bytes and download.reserve(wanted_bytes) is not None:
            requests = self._requests(item, filling, plan, download.num_bytes)
        return requests

    def _requests(
        self, item: StageItem[Any], filling: Filling, plan: "_Plan | None", most_bytes: int
    ) -> tuple[Span, ...] | None:
        """What is to be asked for, by what is known of the remote now, so that no more than
        `most_bytes` are held where fewer are wanted. None where the file is better read in
        place."""
        whole = [(0, item.size_bytes)]
        coming = filling.coming
        if plan is None:
            return missing(whole, coming)

        def requests_for(held: tuple[Span, ...]) -> tuple[Span, ...]:
            remote = self.remote(item.url)
            gaps = missing(plan.spans, held)
            bridged = coalesce(
                gaps, hole_bytes=remote.hole_bytes, request_bytes=remote.request_bytes
            )
            if num_bytes(united([*held, *bridged])) <= most_bytes:
                return bridged
            return coalesce(gaps, hole_bytes=0, request_bytes=remote.request_bytes)

        self._last = lambda: _demand(item, plan, (), requests_for(()))
        requests = requests_for(coming)
        mode = RANGES
        if self._options.mode != RANGES and requests and self.remote(item.url).has_bandwidth:
            demand, has_room = _demand(item, plan, coming, requests), item.size_bytes <= most_bytes
            mode = choose(demand, self.remote(item.url), has_room=has_room)
        if mode == DIRECT:
            return None
        return missing(whole, coming) if mode == WHOLE else requests

    def _publish(self, item: StageItem[Any], download: Download, filling: Filling) -> Pin:
        since = time.monotonic()
        filling.sync()
        is_whole = covers(filling.held, [(0, item.size_bytes)])
        is_checked = self._source.check is not None or (item.crc32 is not None and is_whole)
        record = Record.of(
            item.url, item.size_bytes, filling.tag, filling.sums, is_checked=is_checked
        )
        pin = download.publish(record)
        self._counts.add(
            num_staged=1, staged_bytes=record.held_bytes, num_ranges=int(not record.is_whole)
        )
        self._remotes[_remote_name(item.url)] = self.remote(item.url).settled(
            time.monotonic() - since
        )
        return pin

    def _line(self, stop: threading.Event) -> Line:
        return Line(
            read=self._source.read,
            retry=self._source.retry,
            throttle=self._throttle,
            stop=stop,
            on_stream=self._learn,
            on_retry=self._count_retry,
        )

    def _learn(self, seen: Received) -> None:
        self._counts.add(fetched_bytes=seen.num_bytes)
        known = self.remote(seen.url)
        self._remotes[_remote_name(seen.url)] = known.observed(
            waited_s=seen.waited_s,
            num_bytes=seen.num_bytes,
            later_bytes=seen.later_bytes,
            stream_s=seen.stream_s,
            was_ahead=seen.was_ahead,
        )

    def _count_retry(self) -> None:
        self._counts.add(num_retries=1)


def _let_go(base: Pin | None, instead: Pin | None) -> Pin | None:
    if base is not None:
        base.release()
    return instead


class _NotHeld(Exception):
    """The end of a staged file that a plan asks for is a hole."""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    spans: tuple[Span, ...]
    in_place: tuple[Span, ...]


def _demand(
    item: StageItem[Any], plan: _Plan, held: tuple[Span, ...], requests: tuple[Span, ...]
) -> Demand:
    return Demand(
        whole_bytes=item.size_bytes - num_bytes(held),
        range_bytes=num_bytes(requests),
        num_requests=len(requests),
        direct_bytes=num_bytes(plan.in_place),
        num_direct_requests=len(plan.in_place),
        num_whole_requests=len(missing([(0, item.size_bytes)], held)),
    )


@lru_cache(maxsize=64)
def _remote_name(url: str) -> str:
    parts = urlsplit(without_user(url))
    return f"{parts.scheme}://{parts.netloc}"
