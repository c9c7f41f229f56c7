"""Real servers of files, each started on a free port for the tests of one module and ended with
them.
"""

import base64
import contextlib
import errno
import hashlib
import hmac
import http.client
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from featstore.files import storage
from tests.programs import free_ports
from tests.store_clients import clients_of
from tests.tiers import tiered
from tests.webhdfs_server import hdfs_cluster

BUCKET = "features"
_AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
NGINX = """
daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/error.log;
events {{}}
http {{ access_log off; tcp_nopush off; sendfile on; client_body_temp_path {root}/b; proxy_temp_path {root}/p;
  fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  server {{ listen 127.0.0.1:{port}; root {root}/files; }} }}
"""


@dataclass(frozen=True, kw_only=True)
class LoaderWorker:
    """Where files can be put and read. `put(name, data)` writes or replaces one; `is_listed`,
    `is_written`: what else the store can do."""

    url: str
    put: Callable[[str, bytes], object]
    is_listed: bool = True
    is_written: bool = True
    environment: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path, **environment: str) -> Iterator[None]:
    """A server's process, from when it listens to the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | environment
        )
    try:
        deadline = time.monotonic() + 300
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"{command[0]} does not listen: {log.read_text()}"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(300)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def binary(name: str, package: str) -> str:
    """The path of a server that pip does not bring; the test is skipped without it."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"no {name} on PATH: install {package}")
    return found


def _put_by_path(root: Path) -> Callable[[str, bytes], object]:
    clock = itertools.count(1_700_000_000)

    def put(name: str, data: bytes) -> None:
        """Each a second later than the one before: servers tell no finer times."""
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(data)
        os.utime(new, 2 * (next(clock),))
        new.replace(path)

    return put


def _put_by_featstore(url: str) -> Callable[[str, bytes], object]:
    def put(name: str, data: bytes) -> None:
        with storage.open_write(f"{url}/{name}") as file:
            file.write(data)

    return put


def _request(port: int, path: str, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("PUT", path, headers=headers)
    answer = connection.getresponse()
    assert answer.status in (200, 201), answer.read()
    connection.close()


@contextlib.contextmanager
def local(root: Path) -> Iterator[LoaderWorker]:
    url = str(root / "files")
    yield LoaderWorker(url=url, put=_put_by_featstore(url))


@contextlib.contextmanager
def nginx(root: Path) -> Iterator[LoaderWorker]:
    (port,) = free_ports(1)
    (root / "files").mkdir()
    root.chmod(0o755)
    (root / "nginx.conf").write_text(NGINX.format(root=root, port=port))
    command = [
        binary("nginx", "nginx-light"),
        "-p",
        str(root),
        "-e",
        str(root / "error.log"),
        "-c",
        str(root / "nginx.conf"),
    ]

    with running(command, port, root / "log"):
        yield LoaderWorker(
            url=f"http://127.0.0.1:{port}",
            put=_put_by_path(root / "files"),
            is_listed=False,
            is_written=False,
        )


def _s3(port: int, user: str) -> LoaderWorker:
    url = f"s3://{BUCKET}"
    names = {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": user, "AWS_REGION": "us-east-1"}
    return LoaderWorker(
        url=url,
        put=_put_by_featstore(url),
        environment={"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"} | names,
    )


@contextlib.contextmanager
def moto(root: Path) -> Iterator[LoaderWorker]:
    pytest.importorskip("moto")
    (port,) = free_ports(1)
    with running([sys.executable, "-m", "moto.server", "-p", str(port)], port, root / "log"):
        _request(port, f"/{BUCKET}", {})
        yield _s3(port, "moto")


@contextlib.contextmanager
def s3rver(root: Path) -> Iterator[LoaderWorker]:
    (port,) = free_ports(1)
    command = [
        binary("s3rver", "s3rver by npm"),
        "-d",
        str(root),
        "-p",
        str(port),
        "--configure-bucket",
        BUCKET,
    ]
    with running(command, port, root.with_suffix(".log")):
        yield _s3(port, "S3RVER")


@contextlib.contextmanager
def azurite(root: Path) -> Iterator[LoaderWorker]:
    (port,) = free_ports(1)
    program = binary("azurite-blob", "azurite by npm")
    command = [
        program,
        "--silent",
        "--skipApiVersionCheck",
        "-l",
        str(root),
        "--blobPort",
        str(port),
    ]
    with running(command, port, root / "log"):
        _make_container(port)
        url = f"az://{BUCKET}"
        names = {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
        }
        yield LoaderWorker(url=url, put=_put_by_featstore(url), environment=names)


def _make_container(port: int) -> None:
    """Signed by the emulator's public key, as the service's reference of `SharedKey` describes
    it.
    """
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    account = "devstoreaccount1"
    text = f"PUT{12 * chr(10)}{named}/{account}/{account}/{BUCKET}\nrestype:container"
    digest = hmac.new(base64.b64decode(_AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    signature = {"Authorization": f"SharedKey {account}:{base64.b64encode(digest).decode()}"}
    _request(port, f"/{account}/{BUCKET}?restype=container", headers | signature)


@contextlib.contextmanager
def sftp(root: Path) -> Iterator[LoaderWorker]:
    pytest.importorskip("paramiko")
    (port,) = free_ports(1)
    (root / "files").mkdir()
    address = [
        "--addr",
        f"127.0.0.1:{port}",
        "--user",
        "reader",
        "--pass",
        "secret",
        "--vfs-cache-mode",
        "writes",
    ]
    command = [
        binary("rclone", "rclone"),
        "serve",
        "sftp",
        str(root / "files"),
        *address,
        "--dir-cache-time",
        "0s",
    ]
    with running(
        command, port, root / "log", RCLONE_CONFIG=str(root / "rclone.conf"), HOME=str(root)
    ):
        yield LoaderWorker(
            url=f"sftp://reader:secret@127.0.0.1:{port}",
            put=_put_by_path(root / "files"),
            is_written=False,
        )


@contextlib.contextmanager
def webhdfs(root: Path) -> Iterator[LoaderWorker]:
    with hdfs_cluster() as cluster:
        url = f"webhdfs://127.0.0.1:{cluster.name_ports[0]}/files"
        yield LoaderWorker(
            url=url, put=_put_by_featstore(url), environment={"HADOOP_USER_NAME": "reader"}
        )


class FakeHost(MemoryFileSystem):  # type: ignore[misc]
    """In the place of GCS, which has no server here: paths below a host."""

    protocol = "fakehost"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        rest = path.partition("://")[2].partition("/")[2] if "://" in path else path.lstrip("/")
        return f"/{rest}".rstrip("/")


@contextlib.contextmanager
def fake_host(root: Path) -> Iterator[LoaderWorker]:
    fsspec.register_implementation("fakehost", FakeHost, clobber=True)
    url = "fakehost://namenode:8020"
    yield LoaderWorker(url=url, put=_put_by_featstore(url))
    FakeHost.store.clear()


@contextlib.contextmanager
def failing_looks(place: LoaderWorker) -> Iterator[str]:
    """The URL of the place, while nothing there can be looked at: its server is gone, or the system
    answers EIO.
    """

    def fails(*args: object, **options: object) -> object:
        raise OSError(errno.EIO, "Input/output error", str(args[-1]))

    port = re.compile(r"127\.0\.0\.1:\d+")
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.MonkeyPatch.context() as patch:
        if "://" not in place.url:
            patch.setattr(os, "scandir", fails)
            patch.setattr(os, "stat", fails)
        patch.setattr(FakeHost, "ls", fails)
        patch.setattr(FakeHost, "info", fails)
        with clients_of({k: port.sub(nobody, text) for k, text in place.environment.items()}):
            yield port.sub(nobody, place.url)


SERVERS = {
    server.__name__: server
    for server in (local, nginx, moto, s3rver, azurite, sftp, webhdfs, fake_host)
}
HADOOP = {"hadoop_by_rpc": "hdfs", "hadoop_by_rest": "webhdfs"}


@pytest.fixture(scope="module", params=tiered([*SERVERS, *HADOOP], HADOOP.__contains__))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoaderWorker]:
    if scheme := HADOOP.get(request.param):
        cluster = request.getfixturevalue("hadoop")
        url = f"{cluster.root(scheme)}/files"
        yield LoaderWorker(url=url, put=_put_by_featstore(url), environment=cluster.environment)
        return
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as place:
        yield place


@pytest.fixture
def place(server: LoaderWorker) -> Iterator[LoaderWorker]:
    """The server's place for one test, with the environment that its client needs."""
    with clients_of(server.environment):
        yield server
