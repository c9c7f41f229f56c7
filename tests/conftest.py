"""Fixtures shared by several packages of tests: a real HTTP server on loopback that can be told to
misbehave, and one Spark session.
"""

import gc
import os
import shutil
import subprocess
import tempfile
import threading
import xml.sax.saxutils
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, settings

from featstore.extraction.spark.runners import spark_session
from tests.distribution import SPARK, OnePerFixture, uses, watch
from tests.hadoop.clusters import HadoopCluster, hadoop_cluster
from tests.http_servers import Handler, serving
from tests.known_skips import pytest_addoption as pytest_addoption
from tests.known_skips import pytest_sessionfinish as pytest_sessionfinish
from tests.process import await_that, begin_test

# torch looks up the name of whom it connects to (docs/design/dispatch.md): a lost answer is to cost 1 s
# here, not 5 or 10.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# How fast the machine is decides over no test.
settings.register_profile("featstore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
_profile = settings.get_profile("featstore")
settings.register_profile("few", _profile, max_examples=20)  # with sanitizers, in CI
settings.register_profile("campaign", _profile, max_examples=2_000)  # `make faults`
settings.load_profile("featstore")


def pytest_configure(config: pytest.Config) -> None:
    """Gives each process of a run its own temporary directory, since tests inspect what is left
    there; ends a process that hangs.
    """
    watch(config)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        place = tempfile.mkdtemp(prefix=f"{worker}-")
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
        tempfile.tempdir = os.environ["TMPDIR"] = place


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OnePerFixture:
    config.option.loadscopereorder = False  # by numbers of tests: see below
    return OnePerFixture(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the modules first that take longest: Spark's, then those with slow tests, however few,
    then those with many. One that comes last keeps one process busy while the others have ended.
    """
    counts = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(
        key=lambda item: (not uses(item.path, SPARK), item.path not in slow, -counts[item.path])
    )


def pytest_collection_finish() -> None:
    """Excludes modules and tests from garbage collection, since they live until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _threads_of_others() -> None:
    begin_test()


@dataclass
class Loopback:
    """The server's files by path, and its log.

    `cuts`: how many of the next bodies are cut off in the middle, by path. `status`: the response
    for a path instead of its file. `gates`: a body is sent to its end only once the path's event is
    set. `log`: (method, path, Range header). `flips`: by path, a byte of the file, and the number
    of further responses with that byte in which one of its bits is flipped.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    flips: dict[str, tuple[int, int]] = field(default_factory=dict)
    log: list[tuple[str, str, str | None]] = field(default_factory=list)
    num_cuts: int = 0
    num_flips: int = 0
    half_sent: threading.Event = field(default_factory=threading.Event)

    def changed(self, path: str, first: int, data: bytes) -> bytes:
        """A part of a file as it arrives over a line that may flip a bit of it."""
        at, left = self.flips.get(path, (0, 0))
        if not left or not first <= at < first + len(data):
            return data
        self.flips[path] = at, left - 1
        self.num_flips += 1
        return data[: at - first] + bytes([data[at - first] ^ 16]) + data[at - first + 1 :]

    def num_gets(self, path: str) -> int:
        return sum(method == "GET" and logged == path for method, logged, _ in self.log)


class _Handler(Handler):
    site: Loopback
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.site.log.append((self.command, path, self.headers.get("Range")))
        if "list-type" in parts.query and path not in self.site.status:
            self._send(200, _s3_listing(self.site, path.strip("/"), parse_qs(parts.query)))
        elif path in self.site.status or path not in self.site.files:
            self._send(self.site.status.get(path, 404), b"")
        else:
            self._send_file(path, self.site.files[path])

    def _send_file(self, path: str, data: bytes) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, self._as_sent(path, 0, data), path=path)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else len(data) - int(last)
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        part = self._as_sent(path, start, data[start:end])
        self._send(206, part, path=path, content_range=f"bytes {start}-{end - 1}/{len(data)}")

    def _as_sent(self, path: str, first: int, data: bytes) -> bytes:
        return self.site.changed(path, first, data) if self.command == "GET" else data

    def _send(self, status: int, data: bytes, *, path: str = "", content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command == "GET":
            self._send_body(path, data)

    def _send_body(self, path: str, data: bytes) -> None:
        half = len(data) // 2
        self.wfile.write(data[:half])
        self.wfile.flush()
        if self.site.cuts.get(path, 0) > 0:
            self.site.cuts[path] -= 1
            self.site.num_cuts += 1
            self.close_connection = True
            return
        if path in self.site.gates:
            self.site.half_sent.set()
            assert self.site.gates[path].wait(120)
        self.wfile.write(data[half:])


def _s3_listing(site: Loopback, bucket: str, query: dict[str, list[str]]) -> bytes:
    prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
    keys = [
        path.removeprefix(f"/{bucket}/")
        for path in sorted(site.files)
        if path.startswith(f"/{bucket}/{prefix}")
    ]
    below = {key: key[len(prefix) :] for key in keys}
    folders = {
        prefix + rest.partition("/")[0] + "/"
        for rest in below.values()
        if delimiter and "/" in rest
    }
    objects = "".join(
        f"<Contents><Key>{xml.sax.saxutils.escape(key)}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>"
        f'<ETag>"1"</ETag><Size>{len(site.files[f"/{bucket}/{key}"])}</Size></Contents>'
        for key, rest in below.items()
        if not (delimiter and "/" in rest)
    )
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(folders)
    )
    head = f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
    return f'<?xml version="1.0"?><ListBucketResult>{head}{objects}{prefixes}</ListBucketResult>'.encode()


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    site = Loopback()
    with serving(_Handler, site=site) as port:
        site.url = f"http://127.0.0.1:{port}"
        yield site
        for gate in site.gates.values():
            gate.set()


SPARK_OPTIONS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The only Spark session of a test run: small, quick to start, and leaving nothing in the
    working directory.
    """
    home = tmp_path_factory.mktemp("spark")
    options = SPARK_OPTIONS | {
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "local"),
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dderby.system.home={home}",
    }
    session = spark_session("featstore tests", options, hive=True)
    yield session
    session.stop()


@pytest.fixture
def disk_size() -> str:
    """The size of `small_disk`, which a module may override."""
    return "2m"


@pytest.fixture
def small_disk(tmp_path: Path, disk_size: str) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={disk_size}", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield place

    def is_unmounted() -> bool:
        gc.collect()  # An error's trace may hold files there, and for a moment a worker of Spark.
        return subprocess.call(["umount", str(place)]) == 0

    await_that(is_unmounted)


@pytest.fixture
def closed_at_end() -> Iterator[Callable[[Any], Any]]:
    """Takes what is to be closed at the end of the test, and returns it."""
    with ExitStack() as stack:

        def take(made: Any) -> Any:
            stack.callback(made.close)
            return made

        yield take


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    """A real HDFS of one name node, for all modules of a process: tests undo what they do to it."""
    with hadoop_cluster(tmp_path_factory.mktemp("hadoop")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def hadoop_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    """As `hadoop`, with two name nodes, and Hadoop's default heartbeats: they believe in a data node
    that is gone for 10.5 minutes.
    """
    heartbeats: dict[str, Any] = {
        "dfs_heartbeat_interval": 3,
        "dfs_namenode_heartbeat_recheck-interval": 300_000,
    }
    directory = tmp_path_factory.mktemp("hadoop")
    with hadoop_cluster(directory, num_name_nodes=2, **heartbeats) as cluster:
        yield cluster


@pytest.fixture
def is_campaign(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--hypothesis-profile") == "campaign")
