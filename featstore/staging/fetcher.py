"""Brings one file into the cache: finds it there, or decides how to download it, downloads, checks
and publishes it.
"""

import logging
import os
import random
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import BudgetError, DataFileError, ReplacedError, StagingError
from featstore.base.intervals import Span, coalesce, covers, missing, num_bytes, united
from featstore.base.redaction import redact, redact_text, without_user
from featstore.base.telemetry import span
from featstore.files import storage
from featstore.files.retry import RetryPolicy
from featstore.files.transfer import ReadSpan, read_span
from featstore.staging.budget import format_bytes, require_fits
from featstore.staging.cache import (
    Cache,
    Download,
    Pin,
    Refusal,
    RemovedError,
    entry_name,
)
from featstore.staging.counts import Counts
from featstore.staging.filling import Connection, Filling, Received
from featstore.staging.limits import Throttle
from featstore.staging.lookahead import RequestsAhead
from featstore.staging.options import AUTO, WHOLE, Staging
from featstore.staging.record import Record, SpanChecksum, united_checksum
from featstore.staging.remote import Remote
from featstore.staging.request_threads import RequestThreads

_LOG = logging.getLogger(__name__)
Key = TypeVar("Key")
# How much of a file's end is fetched first, since its footer is there. Larger footers raise it.
_TAIL_BYTES = 64 << 10
# In mode `auto` a file of which at least this share is selected is downloaded whole: that takes a
# third more bytes at most, in fewer requests, and serves any later selection.
_WHOLE_SHARE = 0.75
# How often a download starts again because somebody removes the cache under it.
_MOST_REMOVED = 5
# Called with each refusal and the bytes that are wanted. Returns when it is time to try again, or
# raises.
AwaitRoom = Callable[[Refusal, int], None]
Check = Callable[[Path, str, Sequence[Span]], None]
# From the last bytes of a file, its size and its name to the spans to read. A number instead asks
# to be called again with that many last bytes.
PlanRanges = Callable[[bytes, int, str], Sequence[Span] | int]


# Azure and others list ETags without quotes: numbers in hexadecimal, or checksums. All other
# versions are times.
_LISTED_TAG = re.compile(r'"?((?<=")[^"]*(?=")|0x[0-9A-Fa-f]+|[0-9A-Fa-f]{32}(?:-\d+)?)"?')


@dataclass(frozen=True, kw_only=True)
class StageItem(Generic[Key]):
    """A file to stage.

    Attributes:
        key: Chosen by the caller, who gets it back with the staged file.
        url: The file.
        size_bytes: Its size.
        version: Its ETag or modification time, so that a file that was replaced is not confused
            with the one that was staged before; empty if unknown.
        crc32: The CRC-32 of all its bytes; None if unknown.
        in_place: Whether it stays where it is; it comes in its turn, without a look at the cache.
    """

    key: Key
    url: str
    size_bytes: int
    version: str = ""
    crc32: int | None = None
    in_place: bool = False

    @property
    def listed_tag(self) -> str:
        """The version, if it is one that object stores name in answers, too: a strong ETag, in
        quotes. Empty otherwise.
        """
        tag = _LISTED_TAG.fullmatch(self.version)
        return f'"{tag[1]}"' if tag and storage.has_object_store(self.url) else ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """How files are read, which of their byte ranges are wanted, and how a staged file is checked.

    Attributes:
        read: Reads a range of a URL.
        plan_ranges: `plan_ranges(tail, size_bytes, name)` gets the last bytes of a file. It returns
            the spans to stage, or the number of last bytes that it needs. None stages whole files.
        check: `check(path, name, held)` raises DataFileError if the spans `held` of a staged file
            are not what was written. None checks nothing. `name`, here and above, is the URL
            without credentials, for errors.
        retry: When and how often failed requests are sent again. For how long is a staging option.
        size_of: The size that a store says now for a URL.
    """

    read: ReadSpan = read_span
    plan_ranges: PlanRanges | None = None
    check: Check | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    size_of: Callable[[str], int] = storage.size_bytes


@dataclass(frozen=True)
class Waiting:
    """How a download waits, sends requests ahead, and lets others go on.

    Attributes:
        stop: Ends the download once it is set.
        await_room: Called with each refusal of the cache.
        threads: Where it sends requests ahead.
        pass_on: Called when the last bytes are coming, so that another download may begin.
    """

    stop: threading.Event
    await_room: AwaitRoom
    threads: RequestThreads
    pass_on: Callable[[], None] = lambda: None


class Fetcher:
    """Brings files into the cache. Safe to use from any thread. Remembers what it has measured of
    remote stores and selections.

    Args:
        options: The staging options.
        cache: The cache.
        source: How files are read and checked.
        counts: Where staged files and bytes are counted.
    """

    def __init__(self, options: Staging, cache: Cache, source: Source, counts: Counts) -> None:
        self._options, self._cache, self._source, self._counts = options, cache, source, counts
        self._retry = replace(source.retry, retry_s=options.retry_s)
        self._throttle = Throttle(cache.limits_path, options.num_bytes_per_s)
        self._remotes: dict[str, Remote] = {}
        # The selected share of the last file whose footer was seen: an estimate for the next one.
        self._range_share: float | None = None
        self._under_way: list[tuple[threading.Event, Download]] = []
        self._damaged = set[str]()
        self._tail_bytes = _TAIL_BYTES

    def remote(self, url: str) -> Remote:
        """What is known of the URL's store."""
        known = self._remotes.get(_remote_name(url))
        if known is not None:
            return known
        # Requests of one download are not sent at once if the number of connections is limited, as
        # the limit counts downloads. Nor by fsspec's clients, which work in the thread that asks
        # for a block.
        is_alone = self._options.max_connections is not None or not storage.has_object_store(url)
        return Remote(num_at_once=1) if is_alone else Remote()

    def expected_bytes(self, item: StageItem[Any]) -> int:
        """How many bytes of the cache the file will probably take."""
        if item.in_place:
            return 0
        if self._is_whole(item) or self._range_share is None:
            return item.size_bytes
        return int(item.size_bytes * self._range_share)

    def obtain(self, item: StageItem[Any], waiting: Waiting) -> Pin | None:
        """Brings a file into the cache.

        Args:
            item: The file.
            waiting: How to wait.

        Returns:
            The pinned file, with everything that is wanted of it; None if it is read in place: the
            item says so, or the store has damaged bytes.

        Raises:
            Stopped: The stager was closed.
            StagingError: The download keeps failing, or the disk does.
            BudgetError: The file does not fit into the cache.
            RemovedError: The cache, or the download in it, is removed again and again.
        """
        if item.in_place:
            return None
        num_removed = 0
        while True:
            try:
                with self._cache.named_errors(redact(item.url)):
                    return self._obtained(item, waiting)
            except RemovedError as error:
                num_removed += 1
                if num_removed == _MOST_REMOVED:
                    raise
                _LOG.warning("%s; downloading it again", error)

    def _obtained(self, item: StageItem[Any], waiting: Waiting) -> Pin | None:
        name, base, beyond_bytes = entry_name(item.url, item.size_bytes, item.version), None, -1
        if name in self._damaged:
            return None
        # `base` holds a part of what is wanted. It stays pinned while the rest is downloaded.
        with ExitStack() as held:
            while True:
                first_bytes = self._first_bytes(item, base)
                answer = self._cache.request(
                    name, item.size_bytes, first_bytes, beyond_bytes=beyond_bytes
                )
                if isinstance(answer, Download):
                    return self._download(item, answer, base, waiting)
                if isinstance(answer, Pin):
                    is_intact, serves = self._judged(item, answer, waiting.stop)
                    if not is_intact:
                        self._cache.remove(answer)
                    elif serves:
                        self._counts.add(num_hits=1)
                        return answer
                    else:
                        held.close()
                        held.callback(answer.release)
                        base, beyond_bytes = answer, answer.num_bytes
                elif base is not None and answer is Refusal.FULL:
                    held.close()  # Its bytes may be those that are lacking.
                    base = None
                else:
                    waiting.await_room(answer, first_bytes)

    def let_go(self, stop: threading.Event) -> bool:
        """Abandons the downloads that `stop` ends, without waiting for their threads. Returns
        whether there were any.
        """
        under_way = [download for ended_by, download in list(self._under_way) if ended_by is stop]
        for download in under_way:
            download.abandon()
        return bool(under_way)

    def _judged(self, item: StageItem[Any], pin: Pin, stop: threading.Event) -> tuple[bool, bool]:
        """Whether a file in the cache is intact, and has everything that is wanted. After an error
        it is released.
        """
        with cleaned_up_on_failure(pin.release):
            if pin.is_intact(stop):
                return True, self._serves(item, pin)
        _LOG.warning(
            "%s in the cache is not what was downloaded; downloading it again", redact(item.url)
        )
        return False, False

    def _is_whole(self, item: StageItem[Any]) -> bool:
        """Whether the whole file is staged without a look at its footer: in mode `auto` one that
        comes within a round trip, which its footer would take, too.
        """
        if self._source.plan_ranges is None or self._options.mode == WHOLE:
            return True
        is_short = item.size_bytes <= self.remote(item.url).round_trip_bytes
        return is_short and self._may_be_whole(item)

    def _may_be_whole(self, item: StageItem[Any]) -> bool:
        is_auto = self._options.mode == AUTO
        return is_auto and item.size_bytes <= self._options.num_budget_bytes

    def _first_bytes(self, item: StageItem[Any], base: Pin | None) -> int:
        """How much to reserve at first: the whole file, or its tail and what is held already."""
        if self._is_whole(item):
            named = [(redact(item.url), item.size_bytes)]
            require_fits(named, self._options.num_budget_bytes)
            return item.size_bytes
        held_bytes = 0 if base is None else base.record.held_bytes
        return min(item.size_bytes, held_bytes + self._tail_bytes)

    def _serves(self, item: StageItem[Any], pin: Pin) -> bool:
        """Whether the file in the cache has everything that is wanted of it."""
        record = pin.record
        if record.is_whole or self._source.plan_ranges is None or self._options.mode == WHOLE:
            return record.is_whole
        last = record.held[-1] if record.held else (0, 0)
        tail_bytes = last[1] - last[0] if last[1] == item.size_bytes else 0

        def tail_of(num_bytes: int) -> bytes:
            if num_bytes > tail_bytes:
                raise _NotHeld
            return os.pread(pin.descriptor, num_bytes, item.size_bytes - num_bytes)

        try:
            return covers(record.held, self._plan(item, min(tail_bytes, self._tail_bytes), tail_of))
        except _NotHeld:
            return False

    def _plan(
        self, item: StageItem[Any], tail_bytes: int, tail_of: Callable[[int], bytes]
    ) -> tuple[Span, ...]:
        """The selected spans, with the tail.

        Args:
            item: The file.
            tail_bytes: How many of its last bytes to look at first.
            tail_of: Gives that many last bytes.
        """
        name, plan_ranges = redact(item.url), self._source.plan_ranges
        assert plan_ranges is not None
        while isinstance(found := plan_ranges(tail_of(tail_bytes), item.size_bytes, name), int):
            if not tail_bytes < found <= item.size_bytes:
                raise StagingError(
                    f"{name}: expected a footer of at most {item.size_bytes} bytes, found one of "
                    f"{found}"
                )
            tail_bytes = found
        self._tail_bytes = max(self._tail_bytes, tail_bytes)
        return united([*found, (item.size_bytes - tail_bytes, item.size_bytes)])

    def _download(
        self, item: StageItem[Any], download: Download, base: Pin | None, waiting: Waiting
    ) -> Pin | None:
        entry, connection = (waiting.stop, download), self._connection(waiting)
        self._under_way.append(entry)
        try:
            with (
                span("stage.download", url=redact(item.url), file_bytes=item.size_bytes) as note,
                closing(
                    Filling(item.url, item.size_bytes, download.path, connection, item.listed_tag)
                ) as filling,
            ):
                pin = self._fill_until_sound(item, download, filling, base, waiting)
                note(staged_bytes=num_bytes(filling.held))
            if pin is None:
                self._counts.add(num_direct=1)
            return pin
        finally:
            download.abandon()  # Does nothing once the file is published.
            self._under_way.remove(entry)

    def _fill_until_sound(
        self,
        item: StageItem[Any],
        download: Download,
        filling: Filling,
        base: Pin | None,
        waiting: Waiting,
    ) -> Pin | None:
        """Fills and publishes the file; None if it is gone or damaged at the store. It is read in
        place then, so that its reader reports what is wrong, and may leave it out.

        Starts again if the remote file was replaced during the download, since bytes of two files
        must not be mixed; it is an error if the version was listed. Starts again, too, if the bytes
        are not those that were written, since they may have changed on the way. If the same wrong
        bytes come twice, they are what the store has. The cache must not vouch for such a file, so
        it is read in place from then on, and its reader reports what is wrong with it.
        """
        damaged, num_starts = list[SpanChecksum](), 0
        while True:
            num_starts += 1
            is_last = num_starts == self._retry.max_starts
            try:
                self._fill(item, download, filling, base, waiting)
                if not (failure := self._damage(item, download, filling)):
                    return self._publish(item, download, filling)
            except FileNotFoundError as error:
                # Its reader raises this error, or another one that says more.
                _LOG.info("%s; it is left to its reader", redact_text(str(error)))
                return None
            except ReplacedError as error:
                if item.listed_tag:
                    raise ReplacedError(
                        f"{redact(item.url)} was replaced: expected version {item.listed_tag}, "
                        f"which was listed; open the table again"
                    ) from error
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
            pause_s = self._retry.pause_s(num_starts, random.random()) or 0.0
            self._connection(waiting).pause(failure, pause_s)

    def _damage(self, item: StageItem[Any], download: Download, filling: Filling) -> str:
        """How the downloaded bytes differ from those that were written; empty if no checksum shows
        a difference.
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
    ) -> None:
        """Fills the file with everything that is wanted."""
        if base is not None:
            filling.adopt(base)
            base.release()
        spans = self._wanted(item, filling)
        if requests := self._requests(item, filling, spans, self._options.num_budget_bytes):
            self._reserve(item, download, num_bytes(united([*filling.held, *requests])), waiting)
        ahead = RequestsAhead(
            choose=lambda: self._further_requests(item, download, filling, spans),
            remote=partial(self.remote, item.url),
            filling=filling,
            pass_on=waiting.pass_on,
        )
        while requests := filling.in_flight or ahead.remaining():
            ahead.fetch(*requests[0])
        waiting.pass_on()

    def _wanted(self, item: StageItem[Any], filling: Filling) -> tuple[Span, ...]:
        """The spans to stage: the selected ones, which the file's footer names, or the file."""
        whole = ((0, item.size_bytes),)
        is_whole = not filling.held and self._is_whole(item)
        if self._source.plan_ranges is None or self._options.mode == WHOLE or is_whole:
            return whole
        spans = self._plan(item, min(item.size_bytes, self._tail_bytes), filling.tail)
        self._range_share = num_bytes(spans) / max(item.size_bytes, 1)
        is_most = self._range_share >= _WHOLE_SHARE and self._may_be_whole(item)
        return whole if is_most else spans

    def _reserve(
        self, item: StageItem[Any], download: Download, wanted_bytes: int, waiting: Waiting
    ) -> None:
        """Waits until the cache has room for `wanted_bytes` of the file."""
        if wanted_bytes > (budget_bytes := self._options.num_budget_bytes):
            raise BudgetError(
                f"staging.budget_bytes is {format_bytes(budget_bytes)}, but the selected columns "
                f"of {redact(item.url)} take {format_bytes(wanted_bytes)}; raise the budget, or "
                f"select fewer columns"
            )
        while (refusal := download.reserve(wanted_bytes)) is not None:
            # All of it, since what is reserved for this file is not among what the reader holds.
            waiting.await_room(refusal, wanted_bytes)

    def _further_requests(
        self, item: StageItem[Any], download: Download, filling: Filling, spans: tuple[Span, ...]
    ) -> tuple[Span, ...]:
        """The requests that remain, by what the answers so far have shown of the remote.

        More is requested only if the cache has room for it at once. A download that has begun must
        not wait for room: two of them would wait for each other.
        """
        requests = self._requests(item, filling, spans, self._options.num_budget_bytes)
        wanted_bytes = num_bytes(united([*filling.coming, *requests]))
        if wanted_bytes > download.num_bytes and download.reserve(wanted_bytes) is not None:
            requests = self._requests(item, filling, spans, download.num_bytes)
        return requests

    def _requests(
        self, item: StageItem[Any], filling: Filling, spans: tuple[Span, ...], most_bytes: int
    ) -> tuple[Span, ...]:
        """The requests that bring what is missing of the spans, by what is known of the remote now.
        Holes between them are bridged only if no more than `most_bytes` are held then.
        """
        gaps = missing(spans, filling.coming)
        if spans == ((0, item.size_bytes),):
            return gaps
        remote = self.remote(item.url)
        requests_for = partial(coalesce, gaps, request_bytes=remote.request_bytes)
        bridged = requests_for(hole_bytes=remote.hole_bytes)
        if num_bytes(united([*filling.coming, *bridged])) <= most_bytes:
            return bridged
        return requests_for(hole_bytes=0)

    def _publish(self, item: StageItem[Any], download: Download, filling: Filling) -> Pin:
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
        return pin

    def _connection(self, waiting: Waiting) -> Connection:
        return Connection(
            read=self._source.read,
            size_of=self._source.size_of,
            retry=self._retry,
            throttle=self._throttle,
            stop=waiting.stop,
            threads=waiting.threads,
            on_stream=self._learn,
            on_retry=partial(self._counts.add, num_retries=1),
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


class _NotHeld(Exception):
    """The staged file does not hold the last bytes that the plan needs."""


@lru_cache(maxsize=64)
def _remote_name(url: str) -> str:
    parts = urlsplit(without_user(url))
    return f"{parts.scheme}://{parts.netloc}"
