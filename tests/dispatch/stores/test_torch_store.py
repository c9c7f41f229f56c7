"""torch's store, with a real server in a process of its own, which is stopped, killed and replaced."""

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.terms import Terms
from featstore.errors import DispatchError
from tests.process import our_threads
from tests.programs import run_python
from tests.threads import beside
from tests.tiers import tiered

FORK = multiprocessing.get_context("fork")
FORKED = """
import os, sys
from featstore.dispatch.stores.address import bind
address = bind(sys.argv[1])
address = address.keeping_connections() if sys.argv[2] == "kept" else address
store, left = address.open(), address.open()
left.close()
store.add("n", 1)
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        other = address.open()
        for _ in range(100):
            store.add("n", 1)
            other.add("n", 1)
        os._exit(0)
    children.append(pid)
for _ in range(200):
    store.add("n", 1)
print([os.waitpid(pid, 0)[1] for pid in children], store.get_or_none("n"))
store.close()
"""


def serve(port: int, on_ready: Callable[[str], None]) -> None:
    """Serves torch's store until the process is killed."""
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    on_ready(f"torch://127.0.0.1:{server.port}")
    signal.pause()


class Server:
    """A store served by a process of its own, at a free port or at the given one. The process is
    forked so that it need not import torch.
    """

    def __init__(self, port: int = 0) -> None:
        address, sender = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=serve, args=(port, sender.send))
        self.process.start()
        self.url = address.recv()

    def send(self, number: Any) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:  # It may answer until it has stopped.
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def end(self) -> None:
        self.process.kill()
        self.process.join(60)


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.end()


def plan(num_splits: int = 20) -> Plan:
    return Plan(splits=[Split(path=f"{i}.parquet", num_rows=10) for i in range(num_splits)])


def test_a_missing_server_is_reported_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(
        DispatchError,
        match=rf"torch://127\.0\.0\.1:{port} cannot be reached within 0\.5 s.*refused; is its server",
    ):
        bind(f"torch://127.0.0.1:{port}", timeout_s=0.5).open()
    assert time.monotonic() - start < 5


def test_a_worker_may_start_before_its_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stores = []
    with beside(lambda: stores.append(bind(f"torch://127.0.0.1:{port}", timeout_s=60).open())):
        server = Server(port)
    assert stores[0].add("n", 1) == 1
    stores[0].close()
    server.end()


def test_a_killed_server_is_an_error_for_every_later_call_and_leaves_no_thread(
    server: Server,
) -> None:
    before = our_threads()
    store = bind(server.url, timeout_s=20).open()
    store.set("k", "v")
    server.end()
    for use in (
        lambda: store.add("n", 1),
        lambda: store.get_or_none("k"),
        lambda: store.compare_set("k", "", "x"),
    ):
        with pytest.raises(
            DispatchError,
            match=r"is lost, and with it the leases of all workers: .*from their last checkpoint",
        ):
            use()
    store.close()
    for thread in our_threads() - before:
        thread.join(20)
    assert our_threads() == before


def test_a_server_that_stops_answering_is_lost_within_the_timeout(server: Server) -> None:
    store = bind(server.url, timeout_s=0.5).open()
    server.send(signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(DispatchError, match=r"is lost.*no answer within 0\.5 s"):
        store.add("n", 1)
    server.send(signal.SIGCONT)
    with pytest.raises(DispatchError, match=r"no answer within 0\.5 s"):
        store.add("n", 1)
    store.close()
    assert time.monotonic() - start < 10


def replaced(server: Server, address: StoreAddress) -> Server:
    """A server in the place of another, whose clients notice it."""
    address.open().close()
    server.end()
    other = Server(parse_endpoint(server.url).port)
    with pytest.raises(
        DispatchError, match="was lost: another server, which holds nothing of this run"
    ):
        address.open()
    return other


def test_a_server_that_took_the_place_of_another_is_not_trusted(server: Server) -> None:
    address = bind(server.url)
    other = replaced(server, address)
    again = bind(server.url).open()
    again.close()
    other.end()


def test_a_new_handle_reuses_the_connection_of_a_closed_one(server: Server) -> None:
    address = bind(server.url).keeping_connections()
    for number in range(1, 4):
        with closing(address.open()) as store:
            assert store.add("n", 1) == number
            threads = our_threads()
    assert len(threads) == 1, "each handle had a connection of its own"
    assert our_threads() == threads
    address.disconnect()
    assert not our_threads()
    copy = pickle.loads(pickle.dumps(address))
    with closing(copy.open()) as store:
        assert store.add("n", 1) == 4
    threads = our_threads()
    assert len(threads) == 1
    del copy, store
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert not our_threads(), "a connection that nobody can ask for was left"


def test_a_pooled_connection_is_not_trusted_once_its_server_is_gone(server: Server) -> None:
    address = bind(server.url).keeping_connections()
    other = replaced(server, address)
    other.end()
    address.disconnect()
    assert not our_threads()


@pytest.mark.parametrize("kept", tiered(["kept", "not kept"], "not kept".__eq__))
def test_forked_children_use_connections_of_their_own(server: Server, kept: Any) -> None:
    assert run_python(FORKED, server.url, kept, timeout=120).stdout.strip() == "[0, 0, 0] 801"


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_worker_learns_within_the_lease_time_that_its_server_is_lost(
    server: Server, fault: Any
) -> None:
    lease_s = 8.0
    with Coordinator(
        server.url, plan=plan(), prefix=run_prefix("run"), worker="w", terms=Terms(lease_s=lease_s)
    ) as coordinator:
        claims = coordinator.claims()
        assert coordinator.complete(next(claims))
        start = time.monotonic()
        server.send(fault)
        with pytest.raises(DispatchError, match="is lost"):
            all(coordinator.complete(claim) for claim in claims)
    assert time.monotonic() - start < lease_s


def test_a_worker_that_reads_on_gets_the_error_of_its_renewing_thread(server: Server) -> None:
    lease_s = 6.0
    with Coordinator(
        server.url, plan=plan(), prefix=run_prefix("run"), worker="w", terms=Terms(lease_s=lease_s)
    ) as coordinator:
        claim = next(coordinator.claims())
        start = time.monotonic()
        server.end()
        coordinator._renewer._thread.join(lease_s)
        assert not coordinator._renewer._thread.is_alive()
        with pytest.raises(DispatchError, match=r"leases could not be renewed: .* is lost"):
            coordinator.complete(claim)
        assert time.monotonic() - start < lease_s
