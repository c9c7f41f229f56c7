"""The stager with a real HTTP server that cuts, stalls and refuses, and with several processes over
one cache.
"""

import contextlib
import http.client
import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from featstore.base.errors import BudgetError, StagingError, StateError
from featstore.files.retry import RetryPolicy
from featstore.files.transfer import RangeResponse, read_span
from featstore.staging import Source, StageItem, Stager, Staging
from featstore.staging.cache import entry_name
from featstore.staging.stream import Stream
from tests.process import our_threads
from tests.programs import Program, run_python, start_together
from tests.threads import beside

DATA = {f"/t/{i}.bin": bytes([i]) * 100_000 for i in range(8)}


@pytest.fixture
def site(loopback: Any) -> Any:
    loopback.files |= DATA
    return loopback


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made = ExitStack()

    def stager(
        *,
        read: Any = read_span,
        check: Any = None,
        plan_ranges: Any = None,
        grace_s: float = 30.0,
        **options: Any,
    ) -> Any:
        options = (
            dict[str, Any](directory=str(tmp_path / "cache"), budget_bytes=1_000_000) | options
        )
        retry = RetryPolicy(first_pause_s=0.01, max_attempts=5)
        source = Source(read=read, check=check, plan_ranges=plan_ranges, retry=retry)
        return made.enter_context(Stager(Staging(**options), source, grace_s=grace_s))

    with made:
        yield stager
    assert not our_threads("-stager")


def _items(site: Any, numbers: Any = range(8)) -> Any:
    return [StageItem(key=i, url=f"{site.url}/t/{i}.bin", size_bytes=100_000) for i in numbers]


def _entries(stager: Any) -> Any:
    return sorted(path.name for path in stager.cache.root.iterdir() if path.suffix != ".held")


def plain_read(url: Any, first: Any, end: Any, *, size_bytes: Any, tag: str = "") -> RangeResponse:
    """A transport without versions, which takes a cut connection for the end of the file."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request("GET", parts.path, headers={"Range": f"bytes={first}-{end - 1}"})
    response = connection.getresponse()
    size_bytes = int(response.headers["Content-Range"].rpartition("/")[2])

    def blocks() -> Iterator[Any]:
        with contextlib.closing(connection):
            yield from iter(lambda: response.read(10_000), b"")

    return RangeResponse(size_bytes=size_bytes, tag="", blocks=blocks())


def strict_read(url: Any, first: Any, end: Any, *, size_bytes: Any, tag: str = "") -> RangeResponse:
    """A transport that notices a cut connection."""
    answer = plain_read(url, first, end, size_bytes=size_bytes)

    def blocks() -> Iterator[Any]:
        left = end - first
        for block in answer.blocks:
            left -= len(block)
            yield block
        if left:
            raise ConnectionError(f"{url} was cut")

    return RangeResponse(size_bytes=answer.size_bytes, tag="", blocks=blocks())


def failing_read(error: Any) -> Any:
    def read(url: Any, first: Any, end: Any, *, size_bytes: Any, tag: str = "") -> None:
        raise error

    return read


def test_files_come_in_order_each_whole_and_once(site: Any, make: Callable[..., Any]) -> None:
    stager = make()
    seen = []
    for staged in stager.stage(_items(site)):
        with staged:
            assert staged.path.read_bytes() == DATA[f"/t/{staged.key}.bin"]
            assert staged.url.endswith(f"/{staged.key}.bin")
            seen.append(staged.key)
    assert seen == list(range(8))
    stats = stager.stats()
    assert (stats.num_staged, stats.staged_bytes, stats.num_hits, stats.num_evicted) == (
        8,
        800_000,
        0,
        0,
    )
    assert all(site.num_gets(path) == 1 for path in DATA)


def test_a_file_that_stays_in_place_comes_in_its_turn(site: Any, make: Callable[..., Any]) -> None:
    stager = make()
    first, second = _items(site, range(2))
    left = StageItem(key="left", url="http://127.0.0.1:9/none", size_bytes=1, in_place=True)
    with stager.stage([first, left, second]) as stream:
        found = [(staged.key, staged.path is None) for staged in stream if not staged.release()]
    assert found == [(0, False), ("left", True), (1, False)]
    assert (stager.stats().num_staged, stager.stats().num_direct) == (2, 0)


def test_a_second_iteration_reads_from_the_cache(site: Any, make: Callable[..., Any]) -> None:
    stager = make()
    for _ in range(2):
        for staged in stager.stage(_items(site)):
            staged.release()
    assert (stager.stats().num_staged, stager.stats().num_hits) == (8, 8)


def test_another_version_of_a_file_is_staged_again(site: Any, make: Callable[..., Any]) -> None:
    stager = make()
    for version in ("1", "1", "2"):
        item = StageItem(key=0, url=f"{site.url}/t/0.bin", size_bytes=100_000, version=version)
        next(stager.stage([item])).release()
    assert (stager.stats().num_staged, stager.stats().num_hits) == (2, 1)


def test_a_full_budget_evicts_the_least_recently_used_unpinned_file(
    site: Any, make: Callable[..., Any]
) -> None:
    stager = make(budget_bytes=350_000, ahead_files=1)
    staged = {item.key: next(stager.stage([item])) for item in _items(site, range(3))}
    for key in (1, 0):
        staged[key].release()
    next(stager.stage(_items(site, [3]))).release()
    kept = [entry_name(f"{site.url}/t/{key}.bin", 100_000) + ".100000.staged" for key in (0, 2, 3)]
    assert _entries(stager) == sorted(kept)
    assert stager.stats().num_evicted == 1
    assert staged[2].path.read_bytes() == DATA["/t/2.bin"]


def test_local_files_can_be_staged_too(tmp_path: Path, make: Callable[..., Any]) -> None:
    (tmp_path / "x.bin").write_bytes(b"12345")
    staged = next(
        make(mode="whole").stage([StageItem(key=0, url=str(tmp_path / "x.bin"), size_bytes=5)])
    )
    assert staged.path.read_bytes() == b"12345"
    assert staged.path != tmp_path / "x.bin"


def test_no_more_is_fetched_ahead_than_the_options_say(site: Any, make: Callable[..., Any]) -> None:
    drawn = []

    def items() -> Iterator[Any]:
        for item in _items(site):
            drawn.append(item.key)
            yield item

    for options, most in (
        ({"ahead_files": 2}, 2),
        ({"ahead_bytes": 250_000}, 3),
        ({"ahead_bytes": 1}, 2),
    ):
        drawn.clear()
        stager = make(**options)
        for number, staged in enumerate(stager.stage(items()), 1):
            assert len(drawn) - number <= most
            staged.release()
        assert drawn == list(range(8))


@pytest.mark.parametrize("budget_bytes", [99_999])
def test_a_budget_smaller_than_a_file_is_an_error_before_any_download(
    site: Any, make: Callable[..., Any], budget_bytes: int
) -> None:
    stager = make(budget_bytes=budget_bytes)
    (first, *_) = _items(site)
    item = replace(first, url=first.url.replace("http://", "http://user:secret@"))
    with pytest.raises(
        BudgetError,
        match=r"budget_bytes is 100 kB \(99999 bytes\), but file http.*/t/0\.bin has 100 kB",
    ) as found:
        next(stager.stage([item]))
    assert "secret" not in str(found.value)
    assert site.log == []


def test_a_reader_that_holds_the_whole_budget_gets_an_error_instead_of_a_deadlock(
    site: Any, make: Callable[..., Any]
) -> None:
    stager = make(budget_bytes=250_000, grace_s=0.0)
    stream = stager.stage(_items(site))
    held = [next(stream), next(stream)]
    with pytest.raises(
        BudgetError,
        match=r"2 files that are being read hold 200 kB .*no room for http.*read fewer files at "
        r"once",
    ):
        next(stream)
    assert all(staged.path.exists() for staged in held)


def test_what_the_awaited_file_has_reserved_for_its_footer_is_no_room_for_the_rest_of_it(
    site: Any, make: Callable[..., Any]
) -> None:
    """The reader waited forever where what it holds and the rest of the file fit, but not all of
    the file.
    """
    stager = make(
        budget_bytes=190_000,
        mode="ranges",
        grace_s=0.0,
        plan_ranges=lambda tail, size_bytes, name: [(0, size_bytes)],
    )
    stream = stager.stage(_items(site))
    held = next(stream)
    assert held.held_bytes == 100_000
    with pytest.raises(BudgetError, match=r"hold 100 kB .*no room for http.* of 100 kB"):
        next(stream)


def test_a_released_file_makes_room_for_a_reader_that_waits(
    site: Any, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is released once the log says that the reader waits, and the counts that there was no
    room, however long that takes.
    """
    monkeypatch.setattr("featstore.staging.stream.LOG_EVERY_S", 0.05)
    stager = make(budget_bytes=250_000)
    stream = stager.stage(_items(site))
    held = [next(stream), next(stream)]

    class Releaser(logging.Handler):
        def emit(self, record: Any) -> None:
            has_waited = "the reader has waited" in record.getMessage()
            if has_waited and stager.stats().room_wait_s >= 0.05:
                held[0].release()

    releaser = Releaser()
    logging.getLogger("featstore.staging.stream").addHandler(releaser)
    try:
        assert next(stream).key == 2
    finally:
        logging.getLogger("featstore.staging.stream").removeHandler(releaser)
    assert stager.stats().num_waits >= 1
    assert stager.stats().wait_s >= 0.05


def test_an_interrupted_download_is_resumed_with_the_right_bytes(
    site: Any, make: Callable[..., Any]
) -> None:
    site.cuts["/t/0.bin"] = 1
    staged = next(make().stage(_items(site)))
    assert staged.path.read_bytes() == DATA["/t/0.bin"]
    assert site.num_cuts == 1
    assert site.num_gets("/t/0.bin") == 2


@pytest.mark.parametrize("read", [plain_read, strict_read])
def test_a_transport_that_cannot_resume_is_retried_from_the_start(
    site: Any, make: Callable[..., Any], read: Any
) -> None:
    site.cuts["/t/0.bin"] = 2
    stager = make(read=read)
    staged = next(stager.stage(_items(site, [0])))
    assert staged.path.read_bytes() == DATA["/t/0.bin"]
    assert (site.num_cuts, stager.stats().num_retries) == (2, 2)


SHORT = (
    r"download of http.*/t/0\.bin has the wrong size: expected 100000 bytes, found 50000; gave up "
    r"after 5 attempts"
)
CUT = r"download of http.*/t/0\.bin failed: ConnectionError: .* was cut; gave up after 5 attempts"


@pytest.mark.parametrize(("read", "message"), [(plain_read, SHORT), (strict_read, CUT)])
def test_a_download_that_keeps_failing_is_given_up_and_leaves_nothing(
    site: Any, make: Callable[..., Any], caplog: pytest.LogCaptureFixture, read: Any, message: Any
) -> None:
    site.cuts["/t/0.bin"] = 99
    stager = make(read=read)
    with caplog.at_level(logging.WARNING), pytest.raises(StagingError, match=message):
        next(stager.stage(_items(site, [0])))
    assert site.num_cuts == 5
    assert caplog.text.count("trying again") == 4
    assert _entries(stager) == []


def test_a_file_of_the_wrong_size_is_never_published(site: Any, make: Callable[..., Any]) -> None:
    stager = make()
    item = StageItem(key=0, url=f"{site.url}/t/0.bin", size_bytes=99_000)
    with pytest.raises(
        StagingError,
        match=r"/t/0\.bin has the wrong size: expected 99000 bytes, found 100000; if the file was replaced",
    ):
        next(stager.stage([item]))
    assert _entries(stager) == []


def test_a_missing_file_is_not_retried(site: Any, make: Callable[..., Any]) -> None:
    stager = make()
    with next(stager.stage([StageItem(key=0, url=f"{site.url}/none.bin", size_bytes=5)])) as left:
        assert left.path is None
    assert stager.stats().num_retries == 0
    assert _entries(stager) == []


def test_a_file_that_fails_its_check_is_never_published(
    site: Any, make: Callable[..., Any]
) -> None:
    def refuse(path: Any, name: Any, held: Any) -> None:
        assert name == f"{site.url}/t/0.bin"
        assert path.read_bytes() == DATA["/t/0.bin"]
        raise ValueError("no footer")

    stager = make(check=refuse)
    with pytest.raises(ValueError, match="no footer"):
        next(stager.stage(_items(site, [0])))
    assert _entries(stager) == []


def test_a_full_disk_is_named_and_not_retried(site: Any, make: Callable[..., Any]) -> None:
    stager = make(read=failing_read(OSError(28, "No space left on device")))
    with pytest.raises(
        StagingError, match=r"/t/0\.bin cannot be written to .*: No space left on device"
    ):
        next(stager.stage(_items(site)))
    assert stager.stats().num_retries == 0


def test_credentials_are_in_no_name_no_error_and_no_log(
    site: Any, make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    def read(url: Any, first: Any, end: Any, *, size_bytes: Any, tag: str = "") -> None:
        assert "secret" in url
        raise ConnectionError(f"cannot reach {url}")

    stager = make(read=read)
    item = StageItem(key=0, url="https://user:secret@host/x?sig=secret", size_bytes=5)
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(StagingError, match="cannot reach https://host/x; gave up") as found,
    ):
        next(stager.stage([item]))
    chain = [
        found.value,
        found.value.__cause__,
        None if found.value.__suppress_context__ else found.value.__context__,
    ]
    assert not any("secret" in str(error) for error in chain)
    assert "secret" not in caplog.text


def test_an_error_while_drawing_items_is_raised_after_the_files_before_it(
    site: Any, make: Callable[..., Any]
) -> None:
    def items() -> Iterator[Any]:
        yield from _items(site, range(2))
        raise RuntimeError("the store is lost")

    stream = make().stage(items())
    assert [next(stream).key, next(stream).key] == [0, 1]
    with pytest.raises(RuntimeError, match="the store is lost"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_close_ends_a_download_wakes_the_reader_and_leaves_nothing(
    site: Any, make: Callable[..., Any]
) -> None:
    def endless(url: Any, first: Any, end: Any, *, size_bytes: Any, tag: str = "") -> RangeResponse:
        return RangeResponse(size_bytes=size_bytes, tag="", blocks=(b"" for _ in itertools.count()))

    stager = make(read=endless)
    stream = stager.stage(_items(site))
    ended = threading.Event()

    def read() -> None:
        assert list(stream) == []
        ended.set()

    with beside(read):
        stager.close()
        assert ended.wait(60)
    assert _entries(stager) == []
    stager.close()


def test_close_releases_files_that_nobody_took(site: Any, make: Callable[..., Any]) -> None:
    stager = make()
    stream = stager.stage(_items(site, range(3)))
    taken = next(stream)
    stager.close()
    taken.release()
    again = make(budget_bytes=100_000)
    assert next(again.stage(_items(site, [7]))).key == 7


def test_a_private_cache_is_removed_with_its_stager(site: Any, make: Callable[..., Any]) -> None:
    stager = make(directory=None)
    staged = next(stager.stage(_items(site)))
    assert staged.path.exists()
    staged.release()
    stager.close()
    assert not staged.path.exists()


def test_close_ends_a_stream_that_begins_meanwhile_before_it_removes_the_cache(
    site: Any, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads would make the private cache again, which nobody removes then."""
    stager, threads = make(directory=None), list[threading.Thread]()
    removes = stager.cache.close

    def close() -> None:
        assert all(stream.is_over for stream in streams)
        removes()

    class Beginning(Stream[Any]):
        """Its threads have started, and the stager does not know it yet."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            streams.append(self)
            threads.append(threading.Thread(target=stager.close))
            threads[0].start()
            threads[0].join(0.2)

    streams = list[Stream[Any]]()
    monkeypatch.setattr("featstore.staging.stager.Stream", Beginning)
    monkeypatch.setattr(stager.cache, "close", close)
    stream = stager.stage(_items(site))
    threads[0].join(60)
    assert list(stream) == []
    assert not stager.cache.root.parent.exists()
    with pytest.raises(StateError, match="the stager was closed"):
        stager.stage(_items(site))


READER = """
import hashlib, json, sys
from featstore.staging import StageItem, Stager, Staging
directory, url, num_files = sys.argv[1], sys.argv[2], int(sys.argv[3])
items = [StageItem(key=i, url=f"{url}/t/{i}.bin", size_bytes=100_000) for i in range(num_files)]
print("ready", flush=True)
sys.stdin.readline()
digests = []
with Stager(Staging(directory=directory, budget_bytes=1_000_000)) as stager:
    for staged in stager.stage(items):
        with staged:
            digests.append(hashlib.sha256(staged.path.read_bytes()).hexdigest())
    print(json.dumps([digests, stager.stats().num_staged]), flush=True)
"""


def _start_reader(directory: Any, site: Any, num_files: int = 8) -> Any:
    reader = Program(READER, directory, site.url, num_files)
    start_together([reader])
    return reader


def test_two_processes_over_one_cold_cache_download_each_file_once(
    site: Any, tmp_path: Path
) -> None:
    gate = site.gates["/t/0.bin"] = threading.Event()
    readers = [_start_reader(tmp_path, site) for _ in range(2)]
    assert site.half_sent.wait(60)
    gate.set()
    results = [json.loads(reader.result()) for reader in readers]
    assert results[0][0] == results[1][0]
    assert results[0][1] + results[1][1] == 8
    assert all(site.num_gets(path) == 1 for path in DATA)


def test_a_kill_during_a_download_leaves_nothing_that_a_next_run_would_read(
    site: Any, tmp_path: Path, make: Callable[..., Any]
) -> None:
    site.gates["/t/0.bin"] = threading.Event()
    reader = _start_reader(tmp_path / "cache", site, 1)
    assert site.half_sent.wait(60)
    root = tmp_path / "cache" / "featstore-staging-3"
    assert [path.suffix for path in root.iterdir()] == [".part"]
    reader.die()
    assert [path.suffix for path in root.iterdir()] == [".part"]
    site.gates.pop("/t/0.bin").set()
    stager = make()
    assert _entries(stager) == []
    assert next(stager.stage(_items(site, [0]))).path.read_bytes() == DATA["/t/0.bin"]


def test_a_process_that_waits_takes_over_when_the_downloading_one_is_killed(
    site: Any, tmp_path: Path, make: Callable[..., Any]
) -> None:
    gate = site.gates["/t/0.bin"] = threading.Event()
    reader = _start_reader(tmp_path / "cache", site, 1)
    assert site.half_sent.wait(60)
    stream = make().stage(_items(site, [0]))
    reader.die()
    gate.set()
    assert next(stream).path.read_bytes() == DATA["/t/0.bin"]
    assert site.num_gets("/t/0.bin") == 2


@pytest.mark.parametrize("part", ["featstore.staging", "featstore.dispatch"])
def test_importing_staging_loads_neither_torch_nor_pyarrow(part: str) -> None:
    code = f"import {part}, sys; assert not {{'torch', 'pyarrow', 'numpy'}} & set(sys.modules)"
    run_python(code)
