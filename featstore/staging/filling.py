"""Downloads spans of one remote file into a local sparse file of the same size, each byte at its
own offset. Continues where a connection breaks.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from featstore.base.errors import ReplacedError, StagingError, StoreError
from featstore.base.intervals import Span, covers, united
from featstore.base.redaction import redact, redact_text
from featstore.files.private_directory import disk_error
from featstore.files.retry import Failures, RetryPolicy, gave_up
from featstore.files.transfer import RangeResponse, ReadSpan
from featstore.staging.cache import Pin
from featstore.staging.limits import Throttle
from featstore.staging.record import SpanChecksum, checksum, spans_of
from featstore.staging.request_threads import RequestThreads
from featstore.staging.retry import Stopped, is_retryable

_LOG = logging.getLogger(__name__)
_COPY_BYTES = 8 << 20  # How much is copied at once from another file of the cache.
# The disk is made to write after this many bytes. More leave a longer sync to the end, during which
# the connection is idle; fewer make the disk write small pieces.
_SYNC_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Received:
    """Measurements of one answer of a remote.

    Attributes:
        url: The file.
        waited_s: Seconds until the first block, from the request, or, if it `was_ahead`, from the
            end of the answer before.
        was_ahead: Whether the request was sent while an earlier answer was still coming.
        num_bytes: Bytes of the answer.
        later_bytes: Bytes after the first block.
        stream_s: Seconds in which they came.
    """

    url: str
    waited_s: float
    was_ahead: bool
    num_bytes: int
    later_bytes: int
    stream_s: float


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How bytes are requested.

    Attributes:
        read: Reads a range of a URL.
        size_of: The size that the store says now for a URL.
        retry: When and how often failed requests are sent again.
        throttle: Limits bytes per second.
        stop: Ends the download once it is set.
        threads: Where requests are sent ahead.
        on_stream: Called with the measurements of each complete answer.
        on_retry: Called before each retry.
    """

    read: ReadSpan
    size_of: Callable[[str], int]
    retry: RetryPolicy
    throttle: Throttle
    stop: threading.Event
    threads: RequestThreads
    on_stream: Callable[[Received], None]
    on_retry: Callable[[], None]

    def pause(self, failure: str, pause_s: float) -> None:
        """Logs a failure and waits before the next attempt. Raises Stopped once `stop` is set."""
        self.on_retry()
        _LOG.warning("%s; trying again", failure)
        if self.stop.wait(pause_s):
            raise Stopped


class _Watch:
    """Measures one answer: the time until the first block is waiting, the rest is the stream.

    Detects a stream that only trickles by the time from `ask` to `see`, which is spent waiting for
    the remote, unlike that between `see` and `ask`.
    """

    def __init__(self, policy: RetryPolicy, *, was_ahead: bool) -> None:
        self._policy, self._was_ahead = policy, was_ahead
        self._since_s = self._asked_at_s = time.monotonic()
        self._first_at_s: float | None = None
        self._setup_s, self._first_bytes, self._num_bytes = 0.0, 0, 0
        # Since the pace was last judged.
        self._waited_s, self._new_bytes = 0.0, 0

    def begin(self, setup_s: float) -> None:
        """Excludes the seconds that the client took before it sent the request."""
        self._setup_s = 0.0 if self._was_ahead else setup_s

    def ask(self) -> None:
        """Called before the next block is waited for."""
        self._asked_at_s = time.monotonic()

    def see(self, num_bytes: int) -> None:
        """Called when a block has come. TimeoutError if too few bytes came in too long a time."""
        now_s = time.monotonic()
        if self._first_at_s is None:
            self._first_at_s, self._first_bytes = now_s, num_bytes
        self._num_bytes += num_bytes
        self._new_bytes += num_bytes
        self._waited_s += now_s - self._asked_at_s
        if self._policy.is_stalled(self._new_bytes, self._waited_s):
            raise TimeoutError(f"only {self._new_bytes} bytes came in {self._waited_s:.0f} s")
        if self._waited_s >= self._policy.stall_s:
            self._waited_s, self._new_bytes = 0.0, 0

    def received(self, url: str) -> Received:
        """The measurements, once the answer is complete."""
        now_s = time.monotonic()
        first_at_s = now_s if self._first_at_s is None else self._first_at_s
        return Received(
            url=url,
            waited_s=first_at_s - self._since_s - self._setup_s,
            was_ahead=self._was_ahead,
            num_bytes=self._num_bytes,
            later_bytes=self._num_bytes - self._first_bytes,
            stream_s=now_s - first_at_s,
        )


class _WriteBack:
    """Makes the disk write while the download goes on, so that the last sync, during which the
    connection is idle, is short.
    """

    def __init__(self, file: int) -> None:
        self._file, self._num_bytes = file, 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="featstore-sync")
        self._sync: Future[None] | None = None

    def wrote(self, num_bytes: int) -> None:
        """Called after each write. Starts a sync when enough was written, unless one is running or
        has failed.
        """
        self._num_bytes += num_bytes
        is_free = self._sync is None or (self._sync.done() and self._sync.exception() is None)
        if self._num_bytes >= _SYNC_BYTES and is_free:
            self._num_bytes, self._sync = 0, self._pool.submit(os.fdatasync, self._file)

    def finish(self) -> None:
        """Waits until everything is on the disk. OSError if any sync failed: the kernel reports a
        failure only once, perhaps to a sync before the last one.
        """
        if self._sync is not None:
            self._sync.result()
        os.fsync(self._file)

    def close(self) -> None:
        self._pool.shutdown()


class Filling:
    """Fills a local file with spans of a remote one. Owned by one thread, which closes it.

    Args:
        url: The remote file.
        size_bytes: Its size.
        path: The local file, which exists.
        connection: How bytes are requested.
        listed: The version that the file had when it was listed; empty if unknown.

    Attributes:
        tag: The version of the remote file to which the bytes belong; `listed` before the first
            answer, and empty if the store does not name versions.
        sums: Checksums of the spans as they were downloaded.
        num_broken: How many requests broke. With each those in flight are dropped.
    """

    def __init__(
        self, url: str, size_bytes: int, path: Path, connection: Connection, listed: str = ""
    ) -> None:
        self._url, self._size_bytes, self._connection = url, size_bytes, connection
        self._listed = listed
        self._place = path.parent
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._write_back, self._crc = _WriteBack(self._file), 0
        self._in_flight = dict[Span, Future[RangeResponse]]()
        # How far the current span is downloaded, what failed in the last attempt, and how long a
        # pause the store asked for.
        self._at, self._failure, self._asked_s = 0, "", 0.0
        self._current: Span = (0, 0)
        self._fetched, self.num_broken = set[Span](), 0
        self.tag, self.sums = listed, list[SpanChecksum]()

    @property
    def held(self) -> tuple[Span, ...]:
        """The spans that are held."""
        return spans_of(self.sums)

    @property
    def in_flight(self) -> tuple[Span, ...]:
        """The spans whose requests were sent ahead, in the order in which to fetch them."""
        return tuple(self._in_flight)

    @property
    def coming(self) -> tuple[Span, ...]:
        """The spans that are held, being fetched, or in flight."""
        return united([*self.held, self._current, *self._in_flight])

    def is_coming(self, span: Span) -> bool:
        """Whether just this span was fetched, is being fetched, or is in flight."""
        return span in self._fetched or span == self._current or span in self._in_flight

    def adopt(self, pin: Pin) -> None:
        """Copies what another staged file of the same version holds."""
        for first, end in pin.record.held:
            self._copy(pin.descriptor, first, end)
        self.tag, self.sums = pin.record.tag, list(pin.record.sums)

    def tail(self, num_bytes: int) -> bytes:
        """The last bytes of the file. Fetches what is not held of them."""
        first = self._size_bytes - num_bytes
        held = self.held
        if not covers(held, [(first, self._size_bytes)]):
            has_end = bool(held) and held[-1][1] == self._size_bytes
            self.fetch(first, held[-1][0] if has_end else self._size_bytes)
        return os.pread(self._file, num_bytes, first)

    def send(self, first: int, end: int) -> None:
        """Sends the request for a span ahead of its `fetch`, which raises its errors. If a span
        fetched before breaks, the request is dropped.
        """
        self._in_flight[first, end] = self._connection.threads.send(partial(self._read, first, end))

    def fetch(self, first: int, end: int) -> None:
        """Downloads one span; see `attempts` for errors."""
        for attempt in self.attempts(first, end):
            for _ in attempt:
                pass

    def attempts(self, first: int, end: int) -> Iterator[Iterator[int]]:
        """Downloads one span, and continues it after a connection broke. To be iterated to its end.

        If the store does not name versions, the whole span is requested again, since the file could
        be another one by then.

        Yields:
            One iterator for each attempt, also to be iterated to its end. After each block it
            yields how many bytes of the span are still to come.

        Raises:
            StagingError: The download keeps failing, or the local disk fails.
            ReplacedError: The file has changed.
            Stopped: The stager was closed.
        """
        self._current = (first, end)
        retry, failures = self._connection.retry, Failures()
        self._at, self._crc = first, 0
        while self._at < end:
            begun, self._failure, self._asked_s = self._at, "", 0.0
            yield self._attempt(end)
            if not self._failure:
                break
            if self._at - begun >= retry.progress_bytes:
                failures = Failures()
            pause_s = failures.add(retry, asked_s=self._asked_s)
            if pause_s is None:
                told = gave_up(failures.num, failures.tried_s, "staging.retry_s", retry.retry_s)
                raise StagingError(f"{self._failure}{told}")
            if not self.tag:
                self._at, self._crc = first, 0
            # A store that serves only one of our requests at a time would serve those in flight
            # first, whose answers nobody reads now.
            self._in_flight.clear()
            self.num_broken += 1
            self._connection.pause(self._failure, pause_s)
        self._fetched.add((first, end))
        self.sums.append((first, end, self._crc))

    def restart(self) -> None:
        """Drops all bytes, after the remote file was replaced."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, self._size_bytes)
        self.tag, self.sums = self._listed, []
        self._in_flight, self._current, self._fetched = {}, (0, 0), set()

    def sync(self) -> None:
        """Waits until the bytes are on the disk."""
        with self._disk():
            self._write_back.finish()

    def close(self) -> None:
        self._write_back.close()
        os.close(self._file)
        self._in_flight.clear()
        self._connection.threads.drop_answers()

    def _read(self, first: int, end: int) -> RangeResponse:
        return self._connection.read(
            self._url, first, end, size_bytes=self._size_bytes, tag=self.tag
        )

    def _attempt(self, end: int) -> Iterator[int]:
        """Sends one request, from `_at` on. Sets `_failure` if it failed and a retry may help."""
        sent = self._in_flight.pop((self._at, end), None)
        watch = _Watch(self._connection.retry, was_ahead=sent is not None)
        try:
            answer = self._read(self._at, end) if sent is None else sent.result()
            watch.begin(answer.setup_s)
            self._identify(answer)
            watch.ask()
            for block in answer.blocks:
                watch.see(len(block))
                self._at = self._write(block, self._at, end)
                yield end - self._at
                watch.ask()
        except (OSError, EOFError) as error:
            if not is_retryable(error):
                raise
            self._failure = (
                f"download of {redact(self._url)} failed: "
                f"{type(error).__name__}: {redact_text(str(error))}"
            )
            self._asked_s = error.retry_after_s if isinstance(error, StoreError) else 0.0
            return
        self._connection.on_stream(watch.received(self._url))
        if self._at != end:
            self._failure = (
                f"download of {redact(self._url)} has the wrong size: expected {end} bytes, found "
                f"{self._at}"
            )

    def _identify(self, answer: RangeResponse) -> None:
        if answer.size_bytes != self._size_bytes:
            wrong = f"wrong size: expected {self._size_bytes} bytes, found {answer.size_bytes}"
            if self._connection.size_of(self._url) == self._size_bytes:
                raise ConnectionError(f"{wrong} in the answer, though the file is the same")
            raise StagingError(
                f"download of {redact(self._url)} has the {wrong}; if the file was replaced, open "
                "the table again"
            )
        if self.tag and answer.tag != self.tag:
            raise ReplacedError(f"{redact(self._url)} was replaced while it was downloaded")
        self.tag = answer.tag

    def _write(self, block: bytes | memoryview | object, at: int, end: int) -> int:
        if self._connection.stop.is_set():
            raise Stopped
        data = memoryview(block)  # type: ignore[arg-type]
        if at + len(data) > end:
            raise ConnectionError(f"{at + len(data) - end} more bytes came than were requested")
        self._crc = checksum(data, self._crc)
        with self._disk():
            self._connection.throttle.wait(len(data), self._connection.stop)
            self._write_back.wrote(len(data))
            while data:
                written = os.pwrite(self._file, data, at)
                at, data = at + written, data[written:]
        return at

    def _copy(self, source: int, first: int, end: int) -> None:
        with self._disk():
            while first < end and (block := os.pread(source, min(_COPY_BYTES, end - first), first)):
                first += os.pwrite(self._file, block, first)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Turns errors of the local disk within the block into a StagingError, which no further
        request helps. A file that somebody removed is a FileNotFoundError.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            what = f"{redact(self._url)} cannot be written to {self._place}"
            raise disk_error(what, error) from error
