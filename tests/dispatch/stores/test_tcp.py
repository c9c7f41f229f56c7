"""The client of a dispatch server: what it does while the server is away, and when it comes back.
What it does without one is in test_lost_server.py.
"""

import contextlib
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from featstore.base.errors import DispatchError, DispatchUnavailableError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.stores.server import serve
from featstore.dispatch.stores.tcp import TcpStore
from featstore.dispatch.stores.wire import (
    ACCEPTED,
    GREETING,
    LENGTH,
    NONCE_BYTES,
    PROOF_BYTES,
    TOKEN_VARIABLE,
    pack,
)
from featstore.dispatch.terms import Terms
from tests.dispatch.conftest import WholeClaims
from tests.dispatch.stores.served import ServerProcess
from tests.programs import run_python
from tests.threads import beside
from tests.tiers import tiered

FORKED = """
import os, sys
from featstore.dispatch.stores import tcp
from featstore.dispatch.stores.address import bind
store = bind(sys.argv[1]).open()
store.add("n", 1)
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        for _ in range(100):
            store.add("n", 1)
        os._exit(0)
    children.append(pid)
for _ in range(200):
    store.add("n", 1)
print([os.waitpid(pid, 0)[1] for pid in children], store.get_or_none("n"))
store.close()
"""


def test_a_server_that_comes_back_on_its_file_goes_on_and_its_clients_too(tmp_path: Path) -> None:
    with ServerProcess(file=tmp_path / "d.db") as server:
        address = bind(server.url, timeout_s=600)
        store, other = address.open(), address.open()
        assert [store.add("n", 1), other.add("n", 1)] == [1, 2]
        server.kill()
        with server.again(), closing(store), closing(other):
            assert store.add("n", 1) == 3
            assert other.compare_set("n", "3", "x") == "x"
            with closing(address.open()) as third:
                assert third.get_or_none("n") == "x"


def test_a_request_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    with ServerProcess(file=tmp_path / "d.db") as server:
        store, sums = bind(server.url, timeout_s=600).open(), list[int]()
        server.kill()
        with beside(lambda: sums.append(store.add("n", 1))):
            back = server.again()
        with back, closing(store):
            assert sums == [1]


@pytest.mark.parametrize("fault", [ServerProcess.kill, ServerProcess.stop])
def test_a_server_with_a_file_is_unreachable_once_the_timeout_is_over(
    tmp_path: Path, fault: Callable[[ServerProcess], None]
) -> None:
    with ServerProcess(file=tmp_path / "d.db") as server:
        store = bind(server.url, timeout_s=2).open()
        fault(server)
        with (
            pytest.raises(
                DispatchUnavailableError,
                match=r"is unreachable: no answer for \d+\.\d s.*last error",
            ) as caught,
            closing(store),
        ):
            store.add("n", 1)
    [waited_s] = re.findall(r"no answer for (\S+) s, expected one within 2 s", str(caught.value))
    assert 2 <= float(waited_s) < 60


class Relay:
    """Between a client and the server. In place of the first reply it closes the connection; later
    connections it passes on.
    """

    def __init__(self, url: str) -> None:
        endpoint = parse_endpoint(url)
        self._server = endpoint.host, endpoint.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost: list[bytes] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def end(self) -> None:
        """Waits for the ends of both connections."""
        self._thread.join(60)

    def _accept(self) -> None:
        with contextlib.ExitStack() as ends:
            ends.enter_context(self._listener)
            talks = []
            for back in (self._lose_the_reply, pass_on):
                client = ends.enter_context(self._listener.accept()[0])
                server = ends.enter_context(socket.create_connection(self._server))
                for act, to, source in ((pass_on, server, client), (back, client, server)):
                    talks.append(threading.Thread(target=act, args=(to, source)))
                    talks[-1].start()
            for talk in talks:
                talk.join(60)

    def _lose_the_reply(self, client: socket.socket, server: socket.socket) -> None:
        client.sendall(exactly(server, len(GREETING) + NONCE_BYTES))
        client.sendall(exactly(server, len(ACCEPTED) + PROOF_BYTES))
        client.sendall(frame(server))
        self.lost.append(frame(server))
        for end in (client, server):
            # The other thread may have seen the end of both already.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def pass_on(to: socket.socket, source: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either end may be gone already
        while part := source.recv(1 << 16):
            to.sendall(part)
        to.shutdown(socket.SHUT_WR)


def exactly(source: socket.socket, num_bytes: int) -> bytes:
    return source.recv(num_bytes, socket.MSG_WAITALL)


def frame(source: socket.socket) -> bytes:
    length = exactly(source, LENGTH.size)
    return length + exactly(source, LENGTH.unpack(length)[0])


def test_a_request_whose_reply_is_lost_is_done_once(tmp_path: Path) -> None:
    with serve(file=tmp_path / "d.db") as server:
        relay = Relay(server.url)
        with closing(bind(relay.url, timeout_s=600).open()) as store:
            assert store.add("n", 1) == 1
            assert relay.lost == [pack([1])]
            assert store.get_or_none("n") == "1"
            assert store.add("n", 1) == 2
        relay.end()


class Interrupted(Exception):
    """What a signal handler raises."""


def test_a_request_that_a_signal_handler_ends_leaves_no_reply_to_the_next_one(
    tmp_path: Path,
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    def signal_once_it_waits() -> None:
        while not store._lock.locked():
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.get_ident()
    with ServerProcess(file=tmp_path / "d.db") as server:
        address = bind(server.url, timeout_s=600)
        assert address.server is not None
        store = TcpStore(
            parse_endpoint(server.url),
            timeout_s=600,
            server=address.server,
            patience=address.patience,
        )
        store.set("a", "of a")
        store.set("b", "of b")
        server.stop()
        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with pytest.raises(Interrupted), beside(signal_once_it_waits):
                store.get_or_none("a")
        finally:
            signal.signal(signal.SIGUSR1, before)
        server.go_on()
        assert store.get_or_none("b") == "of b"
        assert store.add("n", 1) == 1
        store.close()


def test_another_token_is_refused_without_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(token="right") as server:
        for token in ("", "wrong"):
            monkeypatch.setenv(TOKEN_VARIABLE, token)
            with pytest.raises(
                DispatchError, match=f"the server has another token: set {TOKEN_VARIABLE}"
            ) as refused:
                bind(server.url, timeout_s=600).open()
            assert not refused.value.may_pass
        monkeypatch.setenv(TOKEN_VARIABLE, "right")
        with closing(bind(server.url).open()) as store:
            assert store.add("n", 1) == 1
    with serve(token="") as server, pytest.raises(DispatchError, match="another token"):
        bind(server.url, timeout_s=600).open()


def test_what_is_no_dispatch_server_is_told_so() -> None:
    def answer() -> None:
        client, _ = other.accept()
        with client:
            client.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3" + b" " * 40)

    with socket.create_server(("127.0.0.1", 0)) as other, beside(answer):
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(DispatchError, match="no dispatch server of this version"):
            bind(url, timeout_s=300).open()


def test_forked_children_use_connections_of_their_own() -> None:
    with ServerProcess() as server:
        assert run_python(FORKED, server.url).stdout.strip() == "[0, 0, 0] 501"


def test_a_handle_that_is_closed_while_it_waits_ends_the_wait(tmp_path: Path) -> None:
    with ServerProcess(file=tmp_path / "d.db") as server:
        address, errors = bind(server.url), list[Exception]()
        assert address.server is not None
        store = TcpStore(
            parse_endpoint(server.url),
            timeout_s=600,
            server=address.server,
            patience=address.patience,
        )
        server.stop()

        def ask() -> None:
            with pytest.raises(DispatchError, match="closed") as caught:
                store.add("n", 1)
            errors.append(caught.value)

        with beside(ask):
            while not store._lock.locked():
                time.sleep(0.001)
            store.close()
        assert len(errors) == 1


@pytest.mark.parametrize("num_leases", tiered([0.5, 2.0], (2.0).__eq__))
def test_workers_read_on_when_their_server_comes_back_on_its_file(
    tmp_path: Path, num_leases: float
) -> None:
    lease_s, num_splits, done = 4.0, 20, list[int]()
    plan = Plan(splits=[Split(path=f"{i}.parquet", num_rows=10) for i in range(num_splits)])

    def read(coordinator: Coordinator) -> None:
        for claim in coordinator.claims():
            time.sleep(0.1)
            assert coordinator.complete(claim)
            done.append(claim.index)

    with ServerProcess(file=tmp_path / "d.db") as server, contextlib.ExitStack() as ending:
        workers = [
            ending.enter_context(
                WholeClaims(
                    server.url,
                    plan=plan,
                    prefix=run_prefix("run"),
                    worker=name,
                    terms=Terms(lease_s=lease_s),
                )
            )
            for name in "abc"
        ]
        with beside(*(partial(read, worker) for worker in workers)):
            time.sleep(0.25)
            server.kill()
            time.sleep(num_leases * lease_s)
            ending.enter_context(server.again())
    assert sorted(done) == list(range(num_splits))
