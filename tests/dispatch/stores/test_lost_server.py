"""What a client does when there is no server, not yet, or no more: featstore's and torch's alike."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.terms import Terms
from tests.dispatch.stores.served import KINDS, ServerProcess, free_url
from tests.process import our_threads
from tests.threads import beside

pytestmark = pytest.mark.parametrize("kind", KINDS)


def coordinator_of(server: ServerProcess, lease_s: float) -> Coordinator:
    plan = Plan(splits=[Split(path=f"{i}.parquet", num_rows=10) for i in range(20)])
    return Coordinator(
        server.url, plan=plan, prefix=run_prefix("run"), worker="w", terms=Terms(lease_s=lease_s)
    )


def test_a_missing_server_is_reported_within_the_timeout(kind: str) -> None:
    url = free_url(kind)
    start = time.monotonic()
    with pytest.raises(
        DispatchError, match=rf"{url} cannot be reached within 0\.5 s.*refused; is its server"
    ):
        bind(url, timeout_s=0.5).open()
    assert time.monotonic() - start < 5


def test_a_worker_may_start_before_its_server(kind: str) -> None:
    url, stores = free_url(kind), list[Any]()
    with beside(lambda: stores.append(bind(url, timeout_s=60).open())):
        server = ServerProcess(kind, parse_endpoint(url).port)
    with server, closing(stores[0]) as store:
        assert store.add("n", 1) == 1


def test_a_killed_server_is_an_error_for_every_later_call_and_leaves_no_thread(kind: str) -> None:
    before = our_threads()
    with ServerProcess(kind) as server:
        store = bind(server.url, timeout_s=20).open()
        store.set("k", "v")
    uses: list[Callable[[], Any]] = [
        lambda: store.add("n", 1),
        lambda: store.get_or_none("k"),
        lambda: store.compare_set("k", "", "x"),
    ]
    for use in uses:
        with pytest.raises(
            DispatchError,
            match=r"is lost, and with it the leases of all workers: .*from their last checkpoint",
        ):
            use()
    store.close()
    for thread in our_threads() - before:
        thread.join(20)
    assert our_threads() == before


def test_a_server_that_stops_answering_is_lost_within_the_timeout(kind: str) -> None:
    with ServerProcess(kind) as server:
        store = bind(server.url, timeout_s=2).open()  # It must be open by then on a busy machine.
        server.stop()
        start = time.monotonic()
        for _ in range(2):
            with pytest.raises(DispatchError, match=r"is lost.*no answer within 2 s"):
                store.add("n", 1)
        store.close()
        assert time.monotonic() - start < 60


def test_a_server_that_took_the_place_of_another_is_not_trusted(kind: str) -> None:
    with ServerProcess(kind) as server:
        address = bind(server.url)
        address.open().close()
        server.kill()
        with server.again():
            with pytest.raises(
                DispatchError, match="was lost: another server, which holds nothing of this run"
            ):
                address.open()
            bind(server.url).open().close()


@pytest.mark.parametrize("fault", [ServerProcess.kill, ServerProcess.stop])
def test_a_worker_learns_within_the_lease_time_that_its_server_is_lost(
    kind: str, fault: Callable[[ServerProcess], None]
) -> None:
    lease_s = 8.0
    with ServerProcess(kind) as server, coordinator_of(server, lease_s) as coordinator:
        claims = coordinator.claims()
        assert coordinator.complete(next(claims))
        start = time.monotonic()
        fault(server)
        with pytest.raises(DispatchError, match="is lost"):
            all(coordinator.complete(claim) for claim in claims)
    assert time.monotonic() - start < lease_s


def test_a_worker_that_reads_on_gets_the_error_of_its_renewing_thread(kind: str) -> None:
    lease_s = 6.0
    with ServerProcess(kind) as server, coordinator_of(server, lease_s) as coordinator:
        claim = next(coordinator.claims())
        start = time.monotonic()
        server.kill()
        coordinator._renewer._thread.join(lease_s)
        assert not coordinator._renewer._thread.is_alive()
        with pytest.raises(DispatchError, match=r"leases could not be renewed: .* is lost"):
            coordinator.complete(claim)
        assert time.monotonic() - start < lease_s
