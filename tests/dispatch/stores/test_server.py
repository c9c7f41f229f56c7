"""A dispatch server: who it talks to, what it survives, and how it ends."""

import contextlib
import gc
import logging
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DispatchError, DispatchUnavailableError
from featstore.dispatch import serve
from featstore.dispatch.stores import sqlite
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.stores.server import serve_until_signal
from featstore.dispatch.stores.wire import (
    ACCEPTED,
    GREETING,
    LENGTH,
    MAX_FRAME_BYTES,
    NONCE_BYTES,
    REFUSED,
    pack,
    proof,
)
from featstore.tools.cli import main
from tests.dispatch.stores.served import ServerProcess
from tests.full_disk import fill
from tests.process import our_threads
from tests.programs import CLI, Program, run_python
from tests.tiers import tiered

WITHOUT_DESCRIPTORS = """
import os, resource
from featstore.dispatch import serve
from featstore.base.errors import DispatchError
serve().close()  # Loads what it needs.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
errors = []
for num_more in range(3, 30):
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + num_more, hard))
    try:
        with serve() as server:
            break
    except DispatchError as error:
        errors.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(server.url, *errors, sep="\\n")
"""


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection that has read the greeting."""
    endpoint = parse_endpoint(url)
    with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as connection:
        yield connection


def greeted(connection: socket.socket, token: str = "") -> None:
    """Goes through the handshake."""
    greeting = connection.recv(len(GREETING) + NONCE_BYTES, socket.MSG_WAITALL)
    theirs, ours = greeting[len(GREETING) :], b"n" * NONCE_BYTES
    connection.sendall(ours + proof(token, "client", theirs, ours))
    assert connection.recv(1) == ACCEPTED
    connection.recv(32, socket.MSG_WAITALL)


def ended(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return True


@pytest.mark.parametrize("number", tiered([signal.SIGTERM, signal.SIGINT], signal.SIGINT.__eq__))
def test_serve_prints_its_address_and_ends_cleanly(number: Any, tmp_path: Path) -> None:
    arguments = ("dispatch", "serve", "--port", 0, "--file", tmp_path / "d.db")
    with Program(CLI, *arguments) as process:
        store = bind(process.line()).open()
        assert store.add("n", 3) == 3
        store.close()
        process.send_signal(number)
        assert process.wait(60) == 0
    with closing(bind(f"sqlite://{tmp_path}/d.db").open()) as left:
        assert left.get_or_none("n") == "3"


def test_a_server_in_a_with_block_ends_with_it(tmp_path: Path) -> None:
    before, found = our_threads(), set(Path(os.environ.get("TMPDIR", "/tmp")).iterdir())
    with serve() as server:
        store = bind(server.url).open()
        assert store.add("n", 1) == 1
    server.close()
    with pytest.raises(DispatchError, match="is lost"):
        store.add("n", 1)
    store.close()
    assert our_threads() <= before
    new = set(Path(os.environ.get("TMPDIR", "/tmp")).iterdir()) - found
    assert not [path for path in new if path.name.startswith("featstore-private-")]


@pytest.mark.parametrize(
    ("qualified", "found"),
    [("localhost.localdomain", "worker-7"), ("worker-7.site", "worker-7.site")],
)
def test_the_address_of_a_server_for_all_is_not_that_of_the_loopback(
    monkeypatch: pytest.MonkeyPatch, qualified: str, found: str
) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: qualified)
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7")
    with serve("0.0.0.0", 0) as server:
        assert server.url.startswith(f"tcp://{found}:")


def test_a_port_in_use_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve() as server:
        port = parse_endpoint(server.url).port
        message = f"dispatch store tcp://127.0.0.1:{port} cannot be served"
        with pytest.raises(DispatchError, match=f"{message}.*choose another --host or --port"):
            serve_until_signal("127.0.0.1", port, print)
        monkeypatch.setattr("sys.argv", ["featstore", "dispatch", "serve", "--port", str(port)])
        with pytest.raises(SystemExit, match="75"):
            main()
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_server_without_descriptors_is_an_error_and_no_hang() -> None:
    lines = run_python(WITHOUT_DESCRIPTORS).stdout.splitlines()
    assert lines[0].startswith("tcp://127.0.0.1:")
    assert "dispatch store tcp://127.0.0.1:0 cannot be served: [Errno 24]" in lines[-1]


def test_a_file_is_for_one_server_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.1)
    file = tmp_path / "d.db"
    with ServerProcess(file=file) as server:
        with pytest.raises(
            DispatchUnavailableError, match=r"locked.*is another one running with it"
        ):
            serve(file=file)
        server.kill()
        with serve(file=file):
            pass


def test_nothing_is_read_before_the_token(caplog: pytest.LogCaptureFixture) -> None:
    with serve(token="right") as server, connected(server.url) as stranger:
        greeting = stranger.recv(len(GREETING) + NONCE_BYTES, socket.MSG_WAITALL)
        ours = b"n" * NONCE_BYTES
        shown = proof("wrong", "client", greeting[len(GREETING) :], ours)
        with caplog.at_level(logging.WARNING):
            stranger.sendall(ours + shown + pack(["me"]) + pack([1, "set", "k", "v"]))
            assert stranger.recv(1) == REFUSED
            assert ended(stranger)
        assert "its FEATSTORE_DISPATCH_TOKEN is not that of the server" in caplog.text
        assert server._data.get_or_none("k") is None


def test_the_token_is_not_sent_and_a_recorded_proof_is_worth_nothing() -> None:
    with serve(token="right") as server:
        sent = []
        for _ in range(2):
            with connected(server.url) as connection:
                greeting = connection.recv(len(GREETING) + NONCE_BYTES, socket.MSG_WAITALL)
                sent.append(proof("right", "client", greeting[len(GREETING) :], b"n" * 32))
        assert sent[0] != sent[1]
        with connected(server.url) as connection:
            connection.recv(len(GREETING) + NONCE_BYTES, socket.MSG_WAITALL)
            connection.sendall(b"n" * 32 + sent[0])
            assert connection.recv(1) == REFUSED


def test_whoever_connects_and_says_nothing_holds_up_nobody() -> None:
    with serve() as server, connected(server.url), closing(bind(server.url).open()) as store:
        assert store.add("n", 1) == 1


@pytest.mark.parametrize(
    "sent",
    [
        LENGTH.pack(MAX_FRAME_BYTES + 1),
        LENGTH.pack(3) + b"{}x",
        LENGTH.pack(2) + b"{}",
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(1) + b"\xff",
        pack(["me"]) + pack([1]),
        pack(["me"]) + pack([1, "delete", "k"]),
        pack(["me"]) + pack([1, "set", "k"]),
        pack(["me"]) + pack([1, "get_many", 5]),
        pack(["me"]) + pack([1, "add", "n", 1 << 80]),
        pack(["me"]) + pack([1, "set", "\ud800", "v"]),
        LENGTH.pack(200_000) + b"[" * 200_000,
    ],
)
def test_a_message_that_is_none_ends_its_connection_alone(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as server, closing(bind(server.url).open()) as store:
        with connected(server.url) as connection:
            greeted(connection)
            connection.sendall(sent)
            assert ended(connection)
        assert store.add("n", 1) == 1
    assert f"to {server.url} closed: " in caplog.text


def test_any_bytes_at_all_do_no_harm() -> None:
    draw = random.Random(1)
    with serve() as server:
        for _ in range(200):
            with connected(server.url) as connection:
                if draw.random() < 0.7:
                    greeted(connection)
                    frames = [pack([draw.choice(["me", 5, None])])]
                    frames += [draw.randbytes(draw.randrange(40))] * draw.randrange(3)
                    data = bytearray(b"".join(frames))
                    if data and draw.random() < 0.5:
                        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                    connection.sendall(bytes(data))
                else:
                    connection.sendall(draw.randbytes(draw.randrange(200)))
        with closing(bind(server.url).open()) as store:
            assert store.add("n", 1) == 1


def test_of_two_connections_of_one_client_the_older_is_dropped_unread() -> None:
    with serve() as server, connected(server.url) as old, connected(server.url) as new:
        for connection in (old, new):
            greeted(connection)
            connection.sendall(pack(["me"]))
            length = LENGTH.unpack(connection.recv(LENGTH.size, socket.MSG_WAITALL))[0]
            connection.recv(length, socket.MSG_WAITALL)
        new.sendall(pack([1, "add", "n", 1]))
        assert new.recv(LENGTH.size + 3, socket.MSG_WAITALL)[LENGTH.size :] == b"[1]"
        with contextlib.suppress(ConnectionError):  # it may be known to be closed already
            old.sendall(pack([2, "add", "n", 1]))
        assert ended(old)
        with closing(bind(server.url).open()) as store:
            assert store.get_or_none("n") == "1"


def test_a_full_disk_is_the_error_of_the_request(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serve(file=small_disk / "d.db") as server,
        closing(bind(server.url, timeout_s=5).open()) as store,
    ):
        store.add("n", 1)
        fill(small_disk)
        with pytest.raises(DispatchError, match="full"):
            store.set("k", "x" * 1_000_000)
        assert store.get_or_none("n") == "1"


def test_a_forked_child_does_not_keep_the_connections_open() -> None:
    with serve() as server:
        store = bind(server.url, timeout_s=600).open()
        store.add("n", 1)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(read, 1)
            os._exit(0)
        server.close()
        # Its copies of the connections are closed, so the client sees the end of its own.
        with pytest.raises(DispatchError, match="is lost"):
            store.add("n", 1)
        store.close()
        os.write(write, b"x")
        assert os.waitpid(child, 0)[1] == 0
        os.close(read)
        os.close(write)
    gc.collect()
