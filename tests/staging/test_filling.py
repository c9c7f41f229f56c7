"""Spans of one remote file in a sparse local one: what is held, resumed, refused and forgotten. The
remote is a function.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from featstore.base.errors import ReplacedError, StagingError, StoreError
from featstore.files.retry import RetryPolicy
from featstore.files.transfer import RangeResponse
from featstore.staging.filling import Connection, Filling, Received
from featstore.staging.limits import Throttle
from featstore.staging.record import checksum
from featstore.staging.request_threads import RequestThreads
from featstore.staging.retry import Stopped

SIZE_BYTES, BLOCK_BYTES = 1000, 100
URL = "http://user:secret@store/a.bin"


def bytes_of(version: str, first: int, end: int) -> bytes:
    return bytes((place + len(version)) % 251 for place in range(first, end))


class Remote:
    """A store of one file, in blocks of 100 bytes. `cuts` holds after how many bytes each of the
    next answers breaks.
    """

    def __init__(self) -> None:
        self.tag, self.size_bytes = "v1", SIZE_BYTES
        self.cuts: list[int] = []
        self.requests: list[tuple[int, int]] = []
        self.received: list[Received] = []
        self.num_retries, self.extra = 0, b""
        self.true_bytes, self.num_looks = SIZE_BYTES, 0
        self.was_asked = threading.Event()

    def read(
        self, url: str, first: int, end: int, *, size_bytes: int, tag: str = ""
    ) -> RangeResponse:
        self.requests.append((first, end))
        self.was_asked.set()
        cut_at = first + self.cuts.pop(0) if self.cuts else end
        return RangeResponse(
            size_bytes=self.size_bytes, tag=self.tag, blocks=self._blocks(first, end, cut_at)
        )

    def _blocks(self, first: int, end: int, cut_at: int) -> Iterator[bytes]:
        for at in range(first, end, BLOCK_BYTES):
            if at >= cut_at:
                raise ConnectionResetError("cut")
            yield bytes_of(self.tag, at, min(at + BLOCK_BYTES, end))
        if self.extra:
            yield self.extra

    def size_of(self, url: str) -> int:
        self.num_looks += 1
        return self.true_bytes

    def count_retry(self) -> None:
        self.num_retries += 1


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def passing(stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only in pauses between attempts, which take none."""
    now_s = 0.0

    def wait(pause_s: float) -> bool:
        nonlocal now_s
        now_s += pause_s
        return stop.is_set()

    monkeypatch.setattr(stop, "wait", wait)
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("featstore.files.retry.time", clock)


Make = Callable[..., Filling]


@pytest.fixture
def make(remote: Remote, stop: threading.Event, tmp_path: Path) -> Iterator[Make]:
    made: list[Filling] = []
    threads = RequestThreads()

    def filling(**policy: float) -> Filling:
        connection = Connection(
            read=remote.read,
            size_of=remote.size_of,
            retry=RetryPolicy(
                **{"first_pause_s": 0.0, "progress_bytes": SIZE_BYTES} | policy,  # type: ignore[arg-type]
            ),
            throttle=Throttle(tmp_path / "limits", None),
            stop=stop,
            threads=threads,
            on_stream=remote.received.append,
            on_retry=remote.count_retry,
        )
        path = tmp_path / "a.part"
        path.touch()
        os.truncate(path, SIZE_BYTES)
        made.append(Filling(URL, SIZE_BYTES, path, connection))
        return made[-1]

    yield filling
    for each in made:
        each.close()
    threads.close()


@pytest.fixture
def held(tmp_path: Path) -> Callable[[int, int], bytes]:
    return lambda first, end: (tmp_path / "a.part").read_bytes()[first:end]


def test_a_span_comes_to_its_own_offset_with_its_checksum(
    make: Make, remote: Remote, held: Callable[[int, int], bytes]
) -> None:
    filling = make()
    filling.fetch(300, 700)
    assert held(0, SIZE_BYTES) == bytes(300) + bytes_of("v1", 300, 700) + bytes(300)
    assert filling.held == filling.coming == ((300, 700),)
    assert filling.sums == [(300, 700, checksum(bytes_of("v1", 300, 700), 0))]
    assert filling.tag == "v1"
    assert [seen.num_bytes for seen in remote.received] == [400]


def test_a_span_goes_on_where_the_connection_broke_and_has_the_checksum_of_the_whole(
    make: Make, remote: Remote, held: Callable[[int, int], bytes]
) -> None:
    remote.cuts = [200, 100]
    filling = make()
    filling.fetch(0, 500)
    assert remote.requests == [(0, 500), (200, 500), (300, 500)]
    assert held(0, 500) == bytes_of("v1", 0, 500)
    assert filling.sums == [(0, 500, checksum(bytes_of("v1", 0, 500), 0))]
    assert remote.num_retries == 2


def test_without_versions_a_broken_span_is_requested_again_as_a_whole(
    make: Make, remote: Remote
) -> None:
    remote.tag, remote.cuts = "", [200]
    filling = make()
    filling.fetch(0, 500)
    assert remote.requests == [(0, 500), (0, 500)]
    assert filling.sums == [(0, 500, checksum(bytes_of("", 0, 500), 0))]


def test_failures_in_a_row_are_final_and_the_error_shows_no_password(
    make: Make, remote: Remote
) -> None:
    remote.cuts = [0, 0, 0]
    filling = make(max_attempts=3)
    with pytest.raises(
        StagingError, match=r"http://.*store/a\.bin failed: .*cut; gave up after 3 attempts"
    ) as found:
        filling.fetch(0, 500)
    assert "secret" not in str(found.value)
    assert filling.held == ()


@pytest.mark.usefixtures("passing")
def test_failures_are_tried_again_for_some_time_and_the_error_says_for_how_long(
    make: Make, remote: Remote
) -> None:
    remote.cuts = [0] * 1000
    filling = make(first_pause_s=0.01, longest_pause_s=0.02, retry_s=0.6)
    with pytest.raises(
        StagingError, match=r"gave up after \d+ attempts in 1 s \(staging.retry_s is 0.6\)"
    ):
        filling.fetch(0, 500)
    assert remote.num_retries > 5


@pytest.mark.usefixtures("passing")
def test_bytes_that_come_begin_the_time_anew(make: Make, remote: Remote) -> None:
    remote.cuts = [100] * 4
    filling = make(first_pause_s=0.01, retry_s=0.0, progress_bytes=100)
    with pytest.raises(StagingError, match="gave up after 1 attempts in 0 s"):
        filling.fetch(0, 500)
    remote.cuts = [100] * 4
    filling = make(first_pause_s=0.2, longest_pause_s=0.2, retry_s=0.3, progress_bytes=100)
    filling.fetch(0, 500)
    assert remote.num_retries == 4


def test_a_store_that_asks_for_a_pause_gets_it(
    make: Make, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, busy = remote.read, StoreError("busy")
    busy.errno, busy.retry_after_s, answers = errno.EIO, 0.5, [busy]

    def read(*args: Any, **options: Any) -> RangeResponse:
        if answers:
            raise answers.pop()
        return whole(*args, **options)

    monkeypatch.setattr(remote, "read", read)
    since_s = time.monotonic()
    make().fetch(0, 500)
    assert time.monotonic() - since_s >= 0.5


def test_an_answer_of_the_wrong_size_is_asked_for_again_if_the_file_is_the_same(
    make: Make, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = remote.read

    def read(*args: Any, **options: Any) -> RangeResponse:
        remote.size_bytes = SIZE_BYTES + (not remote.requests)
        return whole(*args, **options)

    monkeypatch.setattr(remote, "read", read)
    make().fetch(0, 500)
    assert (remote.num_looks, len(remote.requests)) == (1, 2)


def test_a_file_that_changes_between_two_spans_is_refused(make: Make, remote: Remote) -> None:
    filling = make()
    filling.fetch(0, 100)
    remote.tag = "v2"
    with pytest.raises(ReplacedError, match="was replaced while it was downloaded"):
        filling.fetch(100, 200)


def test_after_a_restart_nothing_is_held_and_bytes_are_of_the_new_version(
    make: Make, remote: Remote, held: Callable[[int, int], bytes]
) -> None:
    filling = make()
    filling.fetch(0, 100)
    filling.send(100, 200)
    remote.tag = "v22"
    filling.restart()
    assert (filling.held, filling.sums, filling.tag, filling.in_flight) == ((), [], "", ())
    assert held(0, SIZE_BYTES) == bytes(SIZE_BYTES)
    filling.fetch(100, 200)
    assert held(0, 300) == bytes(100) + bytes_of("v22", 100, 200) + bytes(100)


def test_a_file_of_another_size_and_an_answer_of_more_bytes_are_refused(
    make: Make, remote: Remote
) -> None:
    filling = make(max_attempts=1)
    remote.extra = b"more"
    with pytest.raises(StagingError, match="4 more bytes came than were requested"):
        filling.fetch(0, 100)
    remote.extra, remote.size_bytes, remote.true_bytes = b"", 999, 999
    with pytest.raises(StagingError, match="wrong size: expected 1000 bytes, found 999"):
        filling.fetch(0, 100)


def test_an_answer_that_ends_early_without_an_error_is_continued(
    make: Make, remote: Remote, held: Callable[[int, int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = remote.read

    def short(url: str, first: int, end: int, *, size_bytes: int, tag: str = "") -> RangeResponse:
        return whole(url, first, min(end, first + 300), size_bytes=size_bytes, tag=tag)

    monkeypatch.setattr(remote, "read", short)
    make().fetch(0, 500)
    assert held(0, 500) == bytes_of("v1", 0, 500)
    assert remote.requests == [(0, 300), (300, 500)]


def test_the_tail_is_fetched_only_as_far_as_it_is_not_held(make: Make, remote: Remote) -> None:
    filling = make()
    filling.fetch(900, SIZE_BYTES)
    assert filling.tail(50) == bytes_of("v1", 950, SIZE_BYTES)
    assert filling.tail(300) == bytes_of("v1", 700, SIZE_BYTES)
    assert remote.requests == [(900, SIZE_BYTES), (700, 900)]
    assert filling.held == ((700, SIZE_BYTES),)


def test_requests_sent_ahead_answer_their_own_spans_in_order(
    make: Make, remote: Remote, held: Callable[[int, int], bytes]
) -> None:
    filling = make()
    filling.send(100, 200)
    filling.send(400, 500)
    assert filling.in_flight == filling.coming == ((100, 200), (400, 500))
    filling.fetch(100, 200)
    filling.fetch(400, 500)
    assert not filling.in_flight
    assert filling.held == ((100, 200), (400, 500))
    assert held(100, 200) + held(400, 500) == bytes_of("v1", 100, 200) + bytes_of("v1", 400, 500)
    assert sorted(remote.requests) == [(100, 200), (400, 500)]
    assert [seen.was_ahead for seen in remote.received] == [True, True]


def test_a_broken_span_drops_the_requests_behind_it(make: Make, remote: Remote) -> None:
    filling = make()
    filling.send(400, 500)
    assert remote.was_asked.wait(30)
    remote.cuts = [0]
    filling.fetch(0, 100)
    assert filling.in_flight == ()
    filling.fetch(400, 500)
    assert remote.requests == [(400, 500), (0, 100), (0, 100), (400, 500)]


def test_a_stopped_download_ends_at_the_next_block(
    make: Make, stop: threading.Event, remote: Remote
) -> None:
    filling = make()
    (attempt,) = [next(iter(filling.attempts(0, 500)))]
    assert next(attempt) == 400
    stop.set()
    with pytest.raises(Stopped):
        next(attempt)
    assert filling.held == ()
