"""Spans of one remote file into a local one of the same length, each byte to its own offset,
resumed where it breaks.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from featstore.errors import ReplacedError, StagingError
from featstore.files.transfer import RangeResponse, ReadSpan
from featstore.intervals import united
from featstore.redaction import redact, redact_text
from featstore.staging.cache import Pin
from featstore.staging.limits import Throttle
from featstore.staging.ranges import Span, covers
from featstore.staging.record import SpanChecksum, checksum
from featstore.staging.retry import RetryPolicy, Stopped, is_local, is_retryable

_LOG = logging.getLogger(__name__)
_COPY_BYTES = 8 << 20
_SYNC_BYTES = 16 << 20
_LEAVE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Received:
    """One answer of a remote as it was seen: seconds that its first block was waited for, since it
    was asked for or, where it `was_ahead`, since the answer before it ended; and the bytes after
    that block, in `stream_s`."""

    url: str
    waited_s: float
    was_ahead: bool
    num_bytes: int
    later_bytes: int
    stream_s: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """How bytes come: from where, with which retries, how fast, until when; and who is told of
    answers and retries.
    """

    read: ReadSpan
    retry: RetryPolicy
    throttle: Throttle
    stop: threading.Event
    on_stream: Callable[[Received], None]
    on_retry: Callable[[], None]

    def pause(self, failure: str, num_failures: int) -> None:
        """Tells of a failure and waits before the next attempt. Stopped once closed."""
        self.on_retry()
        _LOG.warning("%s; trying again", failure)
        if self.stop.wait(self.retry.pause_s(num_failures, random.random())):
            raise Stopped


class _Askers:
    """Threads that wait for answers which are not wanted yet. One for each that is waited for, and
    each serves again: to start one takes as long as a short answer where other threads compute."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[
            tuple[Callable[[], RangeResponse], Future[RangeResponse]] | None
        ] = SimpleQueue()
        self._threads = list[threading.Thread]()
        self._answers = list[Future[RangeResponse]]()

    def ask(self, question: Callable[[], RangeResponse]) -> Future[RangeResponse]:
        """The answer, or what `question` raises, as soon as that is there."""
        answer = Future[RangeResponse]()
        self._answers = [*(other for other in self._answers if not other.done()), answer]
        self._questions.put((question, answer))
        if len(self._answers) > len(self._threads):
            thread = threading.Thread(target=self._run, name="featstore-ask", daemon=True)
            self._threads.append(thread)
            thread.start()
        return answer

    def close(self) -> None:
        """Lets go of answers and ends the threads. Where the remote stalls, one ends later, when
        the client lets it.
        """
        self._answers = []
        for _ in self._threads:
            self._questions.put(None)
        deadline = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (entry := self._questions.get()) is not None:
            question, answer = entry
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001  a thread's boundary: who waits raises it
                answer.set_exception(error)
            del (
                entry,
                question,
                answer,
            )  # or an answer that nobody wants would stay until the next question


class _Watch:
    """Times one answer: the first block, of however many bytes, counts to what was waited, the
    others to the stream.
    """

    def __init__(self, *, was_ahead: bool) -> None:
        self._was_ahead = was_ahead
        self._since = time.monotonic()
        self._first_at_s: float | None = None
        self._setup_s, self._first_bytes, self._num_bytes = 0.0, 0, 0

    def begin(self, setup_s: float) -> None:
        """Leaves out what came before the request."""
        self._setup_s = 0.0 if self._was_ahead else setup_s

    def see(self, num_bytes: int) -> None:
        """A block has come."""
        if self._first_at_s is None:
            self._first_at_s, self._first_bytes = time.monotonic(), num_bytes
        self._num_bytes += num_bytes

    def received(self, url: str) -> Received:
        """All has come."""
        now_s = time.monotonic()
        first_at_s = now_s if self._first_at_s is None else self._first_at_s
        return Received(
            url=url,
            waited_s=first_at_s - self._since - self._setup_s,
            was_ahead=self._was_ahead,
            num_bytes=self._num_bytes,
            later_bytes=self._num_bytes - self._first_bytes,
            stream_s=now_s - first_at_s,
        )


class _Pace:
    """Notices a stream that only trickles. What passes between `see` and `ask` is not waited for
    the remote.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._in_flight_at_s, self._waited_s, self._num_bytes = time.monotonic(), 0.0, 0

    def ask(self) -> None:
        """The next block is waited for."""
        self._in_flight_at_s = time.monotonic()

    def see(self, num_bytes: int) -> None:
        """A block has come. TimeoutError where that took too long."""
        self._waited_s += time.monotonic() - self._in_flight_at_s
        self._num_bytes += num_bytes
        if self._policy.is_stalled(self._num_bytes, self._waited_s):
            raise TimeoutError(f"only {self._num_bytes} bytes came in {self._waited_s:.0f} s")
        if self._waited_s >= self._policy.stall_s:
            self._waited_s, self._num_bytes = 0.0, 0


class _WriteBack:
    """Has the disk write while the download goes on, so that the last sync, during which the line
    is idle, is short.
    """

    def __init__(self, file: int) -> None:
        self._file, self._num_bytes = file, 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="featstore-sync")
        self._sync: Future[None] | None = None

    def wrote(self, num_bytes: int) -> None:
        """So much was written; begins a sync where enough was, unless one is under way or has
        failed.
        """
        self._num_bytes += num_bytes
        is_free = self._sync is None or (self._sync.done() and self._sync.exception() is None)
        if self._num_bytes >= _SYNC_BYTES and is_free:
            self._num_bytes, self._sync = 0, self._pool.submit(os.fdatasync, self._file)

    def finish(self) -> None:
        """All is on the disk, or OSError: the kernel tells of a failure once, perhaps to a sync
        before the last.
        """
        if self._sync is not None:
            self._sync.result()
        os.fsync(self._file)

    def close(self) -> None:
        self._pool.shutdown()


class Filling:
    """Fills the file at `path`; `tag` is the version of which the bytes are, empty before the first
    and where the store does not say; `sums` are checksums of what is held. Owned by one thread,
    which closes it."""

    def __init__(self, url: str, size_bytes: int, path: Path, line: Line) -> None:
        self._url, self._size_bytes, self._line = url, size_bytes, line
        self._place = path.parent
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._write_back, self._crc = _WriteBack(self._file), 0
        self._askers, self._in_flight = _Askers(), dict[Span, Future[RangeResponse]]()
        # Of the span that is being downloaded: how far it is, and what failed in the last attempt.
        self._at, self._failure = 0, ""
        self._current: Span = (0, 0)
        self.tag, self.held, self.sums = "", tuple[Span, ...](), tuple[SpanChecksum, ...]()

    @property
    def in_flight(self) -> tuple[Span, ...]:
        """The spans whose requests were sent ahead, in the order in which they are to be
        downloaded.
        """
        return tuple(self._in_flight)

    @property
    def coming(self) -> tuple[Span, ...]:
        """What is held, being fetched or asked for."""
        return united([*self.held, self._current, *self._in_flight])

    def adopt(self, pin: Pin) -> None:
        """Takes over what another staged file of the same version holds, without a request."""
        source = os.open(pin.open_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for first, end in pin.record.held:
                self._copy(source, first, end)
        finally:
            os.close(source)
        self.tag, self.held, self.sums = pin.record.tag, pin.record.held, pin.record.sums

    def tail(self, num_bytes: int) -> bytes:
        """The last bytes of the file, fetched where they are not held."""
        first = self._size_bytes - num_bytes
        if not covers(self.held, [(first, self._size_bytes)]):
            end = (
                self.held[-1][0]
                if self.held and self.held[-1][1] == self._size_bytes
                else self._size_bytes
            )
            self.fetch(first, end)
        return os.pread(self._file, num_bytes, first)

    def send(self, first: int, end: int) -> None:
        """Sends the request for a span that is fetched later, in vain where one before that breaks.
        `fetch` raises for it.
        """
        self._in_flight[first, end] = self._askers.ask(partial(self._read, first, end))

    def fetch(self, first: int, end: int) -> None:
        """Downloads one span; errors as of `attempts`."""
        for attempt in self.attempts(first, end):
            for _ in attempt:
                pass

    def attempts(self, first: int, end: int) -> Iterator[Iterator[int]]:
        """Downloads one span, going on where a connection broke. To be iterated to its end.

        A store that does not name versions is asked again for all of the span: what comes might be
        of another file.

        Yields:
            One iterator for each attempt, to be iterated to its end, too. It yields how many bytes
            of the span are still to come, after each block.

        Raises:
            StagingError: It keeps failing, or the local disk does.
            ReplacedError: The file has changed.
            Stopped: The stager was closed.
        """
        self._current = (first, end)
        self._at, self._crc, num_failures = first, 0, 0
        while self._at < end:
            begun, self._failure = self._at, ""
            yield self._attempt(end)
            if not self._failure:
                break
            has_progress = self._at - begun >= self._line.retry.progress_bytes
            num_failures = 1 if has_progress else num_failures + 1
            if self._line.retry.gives_up(num_failures):
                raise StagingError(f"{self._failure}; gave up after {num_failures} attempts")
            if not self.tag:
                self._at, self._crc = first, 0
            # A store that serves one request of ours at a time would serve these first, and nobody
            # would read them.
            self._in_flight.clear()
            self._line.pause(self._failure, num_failures)
        self.held = united([*self.held, (first, end)])
        self.sums = (*self.sums, (first, end, self._crc))

    def restart(self) -> None:
        """Forgets all bytes: they are of a file that is no more."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, self._size_bytes)
        self.tag, self.held, self.sums = "", (), ()
        self._in_flight, self._current = {}, (0, 0)

    def sync(self) -> None:
        """Waits until the bytes are on the disk."""
        try:
            self._write_back.finish()
        except OSError as error:
            raise self._local(error) from error

    def close(self) -> None:
        self._write_back.close()
        os.close(self._file)
        self._in_flight.clear()
        self._askers.close()

    def _read(self, first: int, end: int) -> RangeResponse:
        return self._line.read(self._url, first, end, size_bytes=self._size_bytes, tag=self.tag)

    def _attempt(self, end: int) -> Iterator[int]:
        """One request, from `_at` on; says in `_failure` what failed if trying again may help."""
        sent = self._in_flight.pop((self._at, end), None)
        watch, pace = _Watch(was_ahead=sent is not None), _Pace(self._line.retry)
        try:
            answer = self._read(self._at, end) if sent is None else sent.result()
            watch.begin(answer.setup_s)
            self._identify(answer)
            pace.ask()
            for block in answer.blocks:
                watch.see(len(block))
                pace.see(len(block))
                self._at = self._write(block, self._at, end)
                yield end - self._at
                pace.ask()
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and is_local(error):
                raise self._local(error) from error
            if not is_retryable(error):
                raise
            self._failure = (
                f"download of {redact(self._url)} failed: "
                f"{type(error).__name__}: {redact_text(str(error))}"
            )
            return
        self._line.on_stream(watch.received(self._url))
        if self._at != end:
            self._failure = (
                f"download of {redact(self._url)} has the wrong size: expected {end} bytes, found "
                f"{self._at}"
            )

    def _identify(self, answer: RangeResponse) -> None:
        if answer.size_bytes != self._size_bytes:
            raise StagingError(
                f"download of {redact(self._url)} has the wrong size: expected {self._size_bytes} "
                f"bytes, found {answer.size_bytes}; was it replaced? open the table anew"
            )
        if self.tag and answer.tag != self.tag:
            raise ReplacedError(f"{redact(self._url)} was replaced while it was downloaded")
        self.tag = answer.tag

    def _write(self, block: bytes | memoryview | object, at: int, end: int) -> int:
        if self._line.stop.is_set():
            raise Stopped
        data = memoryview(block)  # type: ignore[arg-type]
        if at + len(data) > end:
            raise ConnectionError(f"{at + len(data) - end} more bytes came than were asked for")
        self._line.throttle.wait(len(data), self._line.stop)
        self._crc = checksum(data, self._crc)
        self._write_back.wrote(len(data))
        while data:
            written = os.pwrite(self._file, data, at)
            at, data = at + written, data[written:]
        return at

    def _copy(self, source: int, first: int, end: int) -> None:
        try:
            while first < end and (block := os.pread(source, min(_COPY_BYTES, end - first), first)):
                first += os.pwrite(self._file, block, first)
        except OSError as error:
            raise self._local(error) from error

    def _local(self, error: OSError) -> StagingError:
        return StagingError(
            f"{redact(self._url)} cannot be written to {self._place}: {error.strerror}"
        )
