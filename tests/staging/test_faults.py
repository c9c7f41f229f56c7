"""Faults between a store and the local disk, each of which really happens: no wrong byte, no hang,
and nothing left behind.
"""

import errno
import hashlib
import itertools
import json
import logging
import os
import random
import re
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from featstore.base.errors import ReplacedError, StagingError
from featstore.files.retry import RetryPolicy
from featstore.staging import Source, StageItem, Stager, Staging
from tests.process import our_threads
from tests.programs import Program, start_together
from tests.store_clients import clients_of

DATA = random.Random(1).randbytes(900_000)
OTHER = random.Random(2).randbytes(900_000)
PATH = "/t/a.bin"
QUICK = RetryPolicy(first_pause_s=0.01)


@pytest.fixture(scope="module", autouse=True)
def _web() -> None:
    """fsspec's own HTTP client, under a scheme that featstore does not read with obstore."""
    http = pytest.importorskip("fsspec.implementations.http")

    class Web(http.HTTPFileSystem):  # type: ignore[name-defined, misc]
        protocol = "web"

        def encode_url(self, url: str) -> Any:
            return super().encode_url(url.replace("web://", "http://", 1))

    fsspec.register_implementation("web", Web, clobber=True)


@pytest.fixture(params=["http", "web"], ids=["obstore", "fsspec"])
def url(request: pytest.FixtureRequest, unruly: Any) -> str:
    unruly.files[PATH] = DATA
    return f"{request.param}{unruly.url.removeprefix('http')}{PATH}"


@pytest.fixture
def make(tmp_path: Path, closed_at_end: Callable[[Any], Any]) -> Callable[..., Any]:
    def stager(retry: Any = QUICK, **options: Any) -> Any:
        options = {"directory": str(tmp_path / "cache"), "mode": "whole"} | options
        return closed_at_end(Stager(Staging(**options), Source(retry=retry)))

    return stager


def _next(stager: Any, url: str, size_bytes: int = 900_000) -> Any:
    return next(stager.stage([StageItem(key=0, url=url, size_bytes=size_bytes)]))


def _names(stager: Any) -> Any:
    return sorted(path.suffix for path in stager.cache.root.iterdir())


@pytest.fixture
def s3(unruly: Any) -> Iterator[Any]:
    """The server as an S3 store: the first part of a path is the bucket."""
    keys = {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    with clients_of(keys | {"AWS_ENDPOINT_URL": unruly.url}):
        yield unruly


def test_one_name_in_two_buckets_is_two_files_in_the_cache(
    s3: Any, make: Callable[..., Any]
) -> None:
    """Both have one size and version, as copies have at stores whose ETag does not depend on the
    bytes.
    """
    s3.files |= {"/one/t/a.bin": DATA, "/two/t/a.bin": OTHER}
    items = [
        StageItem(key=key, url=f"s3://{bucket}/t/a.bin", size_bytes=len(DATA), version="1")
        for key, bucket in enumerate(["one", "two", "one", "two"])
    ]
    with make() as stager:
        found = []
        for staged in stager.stage(items):
            with staged:
                found.append((staged.path, staged.path.read_bytes()))
        assert [data for _, data in found] == [DATA, OTHER, DATA, OTHER]
        assert len({path for path, _ in found}) == 2
        assert (stager.stats().num_staged, stager.stats().num_hits) == (2, 2)
    assert s3.sent_bytes("/one/t/a.bin") == s3.sent_bytes("/two/t/a.bin") == len(DATA)


FAULTS = {
    "the connection is cut": {"after_bytes": 300_000, "cuts": True},
    "the server fails": {"status": 503},
    "the server is busy": {"status": 429},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_transient_fault_is_logged_and_the_bytes_are_right(
    unruly: Any, url: str, make: Callable[..., Any], caplog: pytest.LogCaptureFixture, fault: Any
) -> None:
    unruly.fail(PATH, unruly.fault(**FAULTS[fault]), unruly.fault(**FAULTS[fault]))
    stager = make()
    with _next(stager, url) as staged:
        assert staged.path.read_bytes() == DATA
    assert not unruly.faults[PATH]
    assert stager.stats().num_retries >= 1
    assert "trying again" in caplog.text
    assert _names(stager) == [".held", ".staged"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_permanent_fault_is_an_error_that_names_the_file_and_leaves_nothing(
    unruly: Any, url: str, make: Callable[..., Any], fault: Any
) -> None:
    unruly.fail(PATH, *[unruly.fault(**FAULTS[fault] | {"after_bytes": 0}) for _ in range(40)])
    stager = make(retry=RetryPolicy(first_pause_s=0.01, max_attempts=3))
    with pytest.raises(StagingError, match=r"a\.bin failed: .* gave up after 3 attempts"):
        _next(stager, url)
    assert _names(stager) == []


def test_a_store_that_fails_over_is_waited_for(
    unruly: Any, url: str, make: Callable[..., Any]
) -> None:
    unruly.fail(PATH, *[unruly.fault(status=503) for _ in range(40)])
    stager = make(retry=RetryPolicy(first_pause_s=0.01, longest_pause_s=0.02))
    with _next(stager, url) as staged:
        assert staged.path.read_bytes() == DATA
    assert not unruly.faults[PATH]


def test_a_store_that_stays_away_is_given_up_after_the_time_of_the_option(
    unruly: Any, url: str, make: Callable[..., Any]
) -> None:
    unruly.fail(PATH, *[unruly.fault(status=503) for _ in range(4000)])
    stager = make(retry=RetryPolicy(first_pause_s=0.01, longest_pause_s=0.1), retry_s=1)
    with pytest.raises(StagingError, match=r"gave up after \d+ attempts in 1 s \(staging.retry_s"):
        _next(stager, url)
    assert _names(stager) == []


def test_a_file_beyond_the_limit_of_sizes_says_what_to_raise(
    unruly: Any, url: str, make: Callable[..., Any]
) -> None:
    unruly.files[PATH] = DATA
    stager, limits = make(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(StagingError, match=r"File too large; raise the limit .*ulimit -f"):
            _next(stager, url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert stager.stats().num_retries == 0


def test_no_bytes_remain_of_an_object_replaced_during_a_download(
    unruly: Any, url: str, make: Callable[..., Any]
) -> None:
    def replace(site: Any, _: Any) -> None:
        site.replace(PATH, OTHER)

    unruly.fail(PATH, unruly.fault(after_bytes=300_000, act=replace, cuts=True))
    with _next(make(), url) as staged:
        assert staged.path.read_bytes() == OTHER


def test_a_download_of_an_object_that_is_replaced_each_time_is_given_up(
    unruly: Any, url: str, make: Callable[..., Any]
) -> None:
    turns = itertools.count(3)

    def replace(site: Any, _: Any) -> None:
        site.replace(PATH, random.Random(next(turns)).randbytes(len(DATA)))

    unruly.fail(
        PATH, *[unruly.fault(after_bytes=300_000, act=replace, cuts=True) for _ in range(40)]
    )
    stager = make(retry=RetryPolicy(first_pause_s=0.01, max_attempts=3))
    with pytest.raises(ReplacedError, match=r"a\.bin was replaced"):
        _next(stager, url)
    assert _names(stager) == []


def test_a_truncated_object_is_an_error_and_not_a_short_file(
    unruly: Any, url: str, make: Callable[..., Any]
) -> None:
    unruly.files[PATH] = DATA[:500_000]
    stager = make()
    with pytest.raises(
        StagingError,
        match=r"wrong size: expected 900000 bytes, found 500000; if the file was replaced",
    ):
        _next(stager, url)
    assert _names(stager) == []


def test_a_false_length_never_makes_a_file_of_that_length(
    unruly: Any, url: str, make: Callable[..., Any]
) -> None:
    """It is asked for again, once the store has said that the file is the one of the table."""
    unruly.fail(PATH, unruly.fault(claimed_bytes=50_000))
    stager = make()
    with _next(stager, url) as staged:
        assert staged.path.read_bytes() == DATA
    assert stager.stats().num_retries == 1


def test_a_trickling_stream_is_dropped_and_resumed(
    unruly: Any, make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    unruly.files[PATH] = DATA
    unruly.fail(PATH, unruly.fault(after_bytes=300_000, trickle_s=0.02))
    retry = RetryPolicy(
        first_pause_s=0.01, stall_s=0.3, stall_bytes=1000
    )  # a slow machine brings more than 1000 bytes
    stager = make(retry=retry)
    with _next(stager, f"{unruly.url}{PATH}") as staged:
        assert staged.path.read_bytes() == DATA
    assert [get.span is None for get in unruly.gets(PATH)] == [True, False]
    assert re.search(r"bytes came in \d+ s; trying again", caplog.text)


def test_a_trickling_stream_is_dropped_by_a_client_that_returns_whole_blocks(
    unruly: Any,
    make: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("featstore.files.transfer._LONGEST_BLOCK_S", 1.0)
    unruly.files[PATH] = DATA
    unruly.fail(PATH, unruly.fault(), unruly.fault(after_bytes=100_000, trickle_s=0.02))
    stager = make()
    with _next(stager, f"web{unruly.url.removeprefix('http')}{PATH}") as staged:
        assert staged.path.read_bytes() == DATA
    assert stager.stats().num_retries >= 1
    assert "does not answer (TimeoutError: no block came in 1 s)" in caplog.text
    assert "trying again" in caplog.text
    first, trickled, again, *_ = [get.span for get in unruly.gets(PATH)]
    assert first.startswith("bytes=0-")
    assert trickled.partition("-")[0] == again.partition("-")[0] == "bytes=262144"


def test_close_does_not_wait_for_a_server_that_stalls(
    unruly: Any, url: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    begun, act = unruly.stall()
    unruly.fail(PATH, unruly.fault(after_bytes=300_000, act=act))
    stager = make()
    stream = stager.stage([StageItem(key=0, url=url, size_bytes=len(DATA))])
    assert begun.wait(60)
    stager.close()
    assert not unruly.has_gone_on
    assert _names(stager) == []
    with pytest.raises(StopIteration):
        next(stream)
    unruly.released.set()
    for thread in our_threads("-stager"):
        thread.join(60)
    assert _names(stager) == []
    with _next(make(), url) as staged:
        assert staged.path.read_bytes() == DATA


STALLED = """
import sys
from featstore.staging import StageItem, Stager, Staging
stager = Stager(Staging(directory=sys.argv[2], mode="whole"))
stream = stager.stage([StageItem(key=0, url=sys.argv[1], size_bytes=int(sys.argv[3]))])
print("begun", flush=True)
sys.stdin.readline()
stager.close()
"""


def test_a_process_exits_cleanly_while_a_server_stalls(unruly: Any, tmp_path: Path) -> None:
    begun, act = unruly.stall()
    unruly.files[PATH] = DATA
    unruly.fail(PATH, unruly.fault(after_bytes=300_000, act=act))
    process = Program(STALLED, f"{unruly.url}{PATH}", tmp_path, len(DATA))
    assert begun.wait(60)
    _, log = process.communicate("\n", timeout=120)
    assert (process.returncode, log) == (0, "")
    assert list((tmp_path / "featstore-staging-3").iterdir()) == []


def test_a_reader_that_waits_for_a_stalled_server_logs_it(
    unruly: Any,
    make: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("featstore.staging.stream.LOG_EVERY_S", 0.1)
    was_logged = threading.Event()
    unruly.files[PATH] = DATA
    unruly.fail(PATH, unruly.fault(after_bytes=300_000, act=lambda site, _: was_logged.wait(60)))

    class Listener(logging.Handler):
        def emit(self, record: Any) -> None:
            if "the reader has waited" in record.getMessage():
                was_logged.set()

    listener = Listener()
    logging.getLogger("featstore.staging.stream").addHandler(listener)
    try:
        with _next(make(), f"{unruly.url}{PATH}") as staged:
            assert staged.path.read_bytes() == DATA
    finally:
        logging.getLogger("featstore.staging.stream").removeHandler(listener)
    assert was_logged.is_set()
    assert f"for {unruly.url}{PATH}" in caplog.text


@pytest.mark.parametrize("change", ["a flipped bit", "a hole", "cut short"])
def test_a_corrupted_staged_file_is_noticed_and_staged_again(
    unruly: Any, url: str, make: Callable[..., Any], caplog: pytest.LogCaptureFixture, change: str
) -> None:
    with _next(make(), url) as staged:
        path = staged.path
    with path.open("r+b") as file:
        if change == "cut short":
            file.truncate(len(DATA) - 1)
        else:
            file.seek(450_000)
            file.write(bytes([DATA[450_000] ^ 1]) if change == "a flipped bit" else bytes(4096))
    stager = make()
    with _next(stager, url) as staged:
        assert staged.path.read_bytes() == DATA
    assert (stager.stats().num_hits, stager.stats().num_staged) == (0, 1)
    assert change == "cut short" or "is not what was downloaded" in caplog.text


def test_a_wider_selection_is_not_built_from_a_corrupted_file(
    unruly: Any, make: Callable[..., Any]
) -> None:
    unruly.files[PATH] = DATA
    item = StageItem(key=0, url=f"{unruly.url}{PATH}", size_bytes=len(DATA))

    def ranges(tail: Any, size_bytes: Any, name: Any) -> Any:
        return [(0, 100_000)] if tail else 8

    with Stager(make().options, Source(plan_ranges=ranges, retry=QUICK)) as first:
        first.options = Staging(directory=first.options.directory, mode="ranges")
        first.fetcher._options = first.options
        with next(first.stage([item])) as staged:
            assert staged.held is not None
            path = staged.path
    assert path is not None
    with path.open("r+b") as file:
        file.write(b"not these")
    with next(make().stage([item])) as staged:
        assert staged.path.read_bytes() == DATA


@pytest.fixture
def disk_size() -> str:
    return "512k"


def test_a_full_disk_is_an_error_that_names_it_and_leaves_it_as_it_was(
    unruly: Any, url: str, make: Callable[..., Any], small_disk: Path
) -> None:
    stager = make(directory=str(small_disk))
    with pytest.raises(
        StagingError, match=r"a\.bin cannot be written to .*disk.*: No space left on device"
    ):
        _next(stager, url)
    assert stager.stats().num_retries == 0
    assert _names(stager) == []
    unruly.files["/t/b.bin"] = DATA[:100_000]
    with _next(stager, url.replace("a.bin", "b.bin"), 100_000) as staged:
        assert staged.path.read_bytes() == DATA[:100_000]


def test_a_cache_on_a_disk_that_became_read_only_is_an_error_that_names_it(
    unruly: Any, make: Callable[..., Any], small_disk: Path
) -> None:
    unruly.files[PATH] = DATA
    stager = make(directory=str(small_disk))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(
        StagingError,
        match=r"/disk/.*\.part: the cache fails: Read-only file system; mount the disk writable",
    ):
        _next(stager, f"{unruly.url}{PATH}")
    with pytest.raises(StagingError, match=r"disk cannot hold the cache .*it cannot be written"):
        make(directory=str(small_disk))
    stager.close()


def test_nothing_that_featstore_did_not_create_is_ever_removed(
    unruly: Any, url: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    root = make().cache.root
    strangers = [
        "notes.txt",
        f"{'a' * 39}.5.staged",
        f"{'a' * 40}.5.staged.bak",
        ".hidden",
        f"{'b' * 40}.x.part",
    ]
    for name in strangers:
        (root / name).write_bytes(b"mine")
        (root.parent / name).write_bytes(b"mine")
    (root / f"{'c' * 40}.5.staged").mkdir()
    stager = make(budget_bytes=len(DATA))
    for path in ("/t/a.bin", "/t/b.bin"):
        unruly.files[path] = DATA
        _next(stager, url.replace("/t/a.bin", path)).release()
    assert stager.stats().num_evicted == 1
    stager.cache.clear()
    for name in strangers:
        assert (root / name).read_bytes() == (root.parent / name).read_bytes() == b"mine"
    assert (root / f"{'c' * 40}.5.staged").is_dir()


MANY = """
import hashlib, json, os, re, sys
from featstore.staging import StageItem, Stager, Staging
print("ready", flush=True)
sys.stdin.readline()
digests = {}
with Stager(Staging(directory=sys.argv[1], mode="whole")) as stager:
    items = [StageItem(key=url, url=url, size_bytes=size_bytes) for url, size_bytes in json.loads(sys.argv[2])]
    imported_bytes = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
    for staged in stager.stage(items):
        with staged:
            digests[staged.key] = hashlib.sha256(staged.path.read_bytes()).hexdigest()
print(json.dumps([digests, imported_bytes, "torch" in sys.modules or "pyarrow" in sys.modules]), flush=True)
"""


def test_many_processes_starting_on_one_cold_cache_download_each_byte_once(
    unruly: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """64 processes in `make faults`, 12 in `make test`."""
    num_processes = 64 if request.config.getoption("--hypothesis-profile") == "campaign" else 12
    contents = {f"/t/{i}.bin": random.Random(i).randbytes(200_000) for i in range(4)}
    unruly.files |= contents
    sizes = [(f"{unruly.url}{path}", len(data)) for path, data in contents.items()]
    processes = [Program(MANY, tmp_path, json.dumps(sizes)) for _ in range(num_processes)]
    start_together(processes)
    expected = {
        f"{unruly.url}{path}": hashlib.sha256(data).hexdigest() for path, data in contents.items()
    }
    for process in processes:
        digests, imported_bytes, is_heavy = json.loads(process.result(timeout_s=240))
        assert digests == expected
        assert imported_bytes < 60 * 1024 * 1024
        assert not is_heavy
    assert {path: unruly.sent_bytes(path) for path in contents} == {
        path: len(data) for path, data in contents.items()
    }
    suffixes = sorted(path.suffix for path in (tmp_path / "featstore-staging-3").iterdir())
    assert suffixes == 4 * [".held"] + 4 * [".staged"]


def test_a_disk_failure_during_a_download_is_noticed_at_its_end(
    unruly: Any, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unruly.files[PATH] = DATA
    monkeypatch.setattr("featstore.staging.filling._SYNC_BYTES", 100_000)
    with _next(make(), f"{unruly.url}{PATH}") as staged:
        assert staged.path.read_bytes() == DATA
    failed = threading.Event()

    def failing(file: Any) -> None:
        failed.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    stager = make(directory=None)
    with pytest.raises(StagingError, match=r"a\.bin cannot be written to .*: Input/output error"):
        _next(stager, f"{unruly.url}{PATH}")
    assert failed.is_set()
    assert _names(stager) == []
