"""torch's store, with a real server: connections that are pooled, and forked children. What it does
without a server is in test_lost_server.py.
"""

import gc
import pickle
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.endpoint import TORCH
from tests.dispatch.stores.served import ServerProcess
from tests.process import our_threads
from tests.programs import run_python
from tests.tiers import tiered

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


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess(TORCH) as started:
        yield started


def test_a_new_handle_reuses_the_connection_of_a_closed_one(server: ServerProcess) -> None:
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
        thread.join(60)
    assert not our_threads(), "a connection that nobody can ask for was left"


def test_a_pooled_connection_is_not_trusted_once_its_server_is_gone(server: ServerProcess) -> None:
    address = bind(server.url).keeping_connections()
    address.open().close()
    server.kill()
    with server.again(), pytest.raises(DispatchError, match="was lost: another server"):
        address.open()
    address.disconnect()
    assert not our_threads()


@pytest.mark.parametrize("kept", tiered(["kept", "not kept"], "not kept".__eq__))
def test_forked_children_use_connections_of_their_own(server: ServerProcess, kept: Any) -> None:
    assert run_python(FORKED, server.url, kept).stdout.strip() == "[0, 0, 0] 801"
