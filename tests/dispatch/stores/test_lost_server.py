"""What a client does when there is no server, not yet, or no more: featstore's and torch's alike."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from typing import Any

import pytest

from featstore.base.errors import DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import DEFAULT_TIMEOUT_S, bind
from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.terms import SYSTEM_CLOCK, Clock, Terms
from tests.dispatch.conftest import WholeClaims
from tests.dispatch.stores.forwarder import Forwarder
from tests.dispatch.stores.served import KINDS, ServerProcess, free_url
from tests.process import await_that, our_threads
from tests.threads import beside
from tests.tiers import tiered

pytestmark = pytest.mark.parametrize("kind", KINDS)


NUM_SPLITS = 20


class Hasty(Clock):
    """Lets its users look again, or renew, five times a second."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return super().wait(event, min(timeout_s, 0.2))


def coordinator_of(
    url: str,
    lease_s: float,
    worker: str = "w",
    num_splits: int = NUM_SPLITS,
    clock: Clock = SYSTEM_CLOCK,
) -> Coordinator:
    splits = [Split(path=f"{i}.parquet", num_rows=10) for i in range(num_splits)]
    return WholeClaims(
        url,
        plan=Plan(splits=splits),
        prefix=run_prefix("run"),
        worker=worker,
        terms=Terms(lease_s=lease_s),
        clock=clock,
    )


def after(seconds: float, act: Callable[[], object]) -> None:
    time.sleep(seconds)
    act()


def test_a_missing_server_is_reported_within_the_timeout(kind: str) -> None:
    url = free_url(kind)
    start = time.monotonic()
    with pytest.raises(
        DispatchError, match=rf"{url} cannot be reached within 0\.5 s.*refused; is its server"
    ):
        bind(url, timeout_s=0.5).open()
    assert time.monotonic() - start < DEFAULT_TIMEOUT_S


def test_a_worker_may_start_before_its_server(kind: str) -> None:
    url, stores = free_url(kind), list[Any]()
    with beside(lambda: stores.append(bind(url, timeout_s=60).open())):
        server = ServerProcess(kind, parse_endpoint(url).port)
    with server, closing(stores[0]) as store:
        assert store.add("n", 1) == 1


def test_a_killed_server_is_an_error_for_every_later_call_and_leaves_no_thread(kind: str) -> None:
    before = our_threads()
    with ServerProcess(kind) as server:
        address = bind(server.url, timeout_s=20)
        store = address.open()
        store.set("k", "v")
    uses: list[Callable[[], Any]] = [
        lambda: store.add("n", 1),
        lambda: store.get_or_none("k"),
        lambda: store.compare_set("k", "", "x"),
        address.open,
    ]
    for use in uses:
        with pytest.raises(
            DispatchError,
            match=r"is lost, and with it the leases of all workers: .*from their last checkpoint",
        ):
            use()
    store.close()
    for thread in our_threads() - before:
        thread.join(60)
    assert our_threads() <= before


@pytest.mark.slow
def test_a_server_that_stops_answering_is_unreachable_after_the_timeout(kind: str) -> None:
    with ServerProcess(kind) as server:
        store = bind(server.url, timeout_s=2).open()  # It must be open by then on a busy machine.
        server.stop()
        start = time.monotonic()
        for _ in range(2):
            with pytest.raises(DispatchError, match=r"is unreachable: no answer for .* last error"):
                store.add("n", 1)
        store.close()
        assert 2 <= time.monotonic() - start < 60


@pytest.mark.slow
def test_a_request_is_answered_once_its_server_goes_on(kind: str) -> None:
    with ServerProcess(kind) as server, closing(bind(server.url).open()) as store:
        store.set("k", "v")
        server.stop()
        with beside(partial(after, 8, server.go_on)):  # Longer than one attempt takes.
            assert store.compare_set("k", "v", "w") == "w"
        assert store.get_or_none("k") == "w"


def test_a_silently_dead_connection_is_replaced_within_seconds(kind: str) -> None:
    with ServerProcess(kind) as server, Forwarder(server.url) as between:
        address = bind(between.url, timeout_s=600)
        with closing(address.open()) as store:
            store.set("k", "v")
            between.forget_connections()
            start = time.monotonic()
            assert store.get_or_none("k") == "v"
            assert 4 < time.monotonic() - start < 20
            assert 4 < address.unanswered_s() < 20


def test_a_request_whose_reply_is_lost_is_sent_again(kind: str) -> None:
    due = list[bool]()
    with (
        ServerProcess(kind) as server,
        Forwarder(server.url, lambda: bool(due) and due.pop()) as between,
        closing(bind(between.url).open()) as store,
    ):
        due.append(True)
        assert store.compare_set("k", "", "v") == "v"
        assert between.num_lost == 1


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


def test_a_request_that_waits_is_lost_once_another_server_answers(kind: str) -> None:
    with ServerProcess(kind) as server, Forwarder(server.url) as between:
        store = bind(between.url, timeout_s=600).open()
        between.hold()
        server.kill()
        with (
            server.again(),
            beside(partial(after, 1, between.release)),
            pytest.raises(DispatchError, match="was lost: another server"),
        ):
            store.add("n", 1)
        store.close()


def test_all_workers_end_at_once_when_their_server_is_killed(kind: str) -> None:
    def read(coordinator: Coordinator) -> None:
        with pytest.raises(DispatchError, match="is lost, and with it the leases of all workers"):
            all(coordinator.complete(claim) for claim in coordinator.claims())

    with ServerProcess(kind) as server, ExitStack() as ending:
        workers = [
            ending.enter_context(coordinator_of(server.url, 600.0, name, 10_000)) for name in "abc"
        ]
        with beside(*(partial(read, worker) for worker in workers), timeout_s=60):
            time.sleep(0.5)
            server.kill()


def test_a_worker_that_reads_on_gets_the_error_of_its_renewing_thread(kind: str) -> None:
    lease_s = 60.0
    with (
        ServerProcess(kind) as server,
        coordinator_of(server.url, lease_s, clock=Hasty()) as coordinator,
    ):
        claim = next(coordinator.claims())
        start = time.monotonic()
        server.kill()
        coordinator._renewer._thread.join(lease_s)
        assert not coordinator._renewer._thread.is_alive()
        with pytest.raises(DispatchError, match=r"leases could not be renewed: .* is lost"):
            coordinator.complete(claim)
        assert time.monotonic() - start < lease_s


@pytest.mark.parametrize("num_leases", tiered([0.5, 1.0, 2.0], (2.0).__gt__))
def test_no_worker_ends_and_no_split_comes_twice_where_the_server_does_not_answer(
    kind: str, num_leases: float
) -> None:
    lease_s, done = 2.0, list[int]()

    def read(coordinator: Coordinator) -> None:
        for claim in coordinator.claims():
            time.sleep(0.1)
            assert coordinator.complete(claim)
            done.append(claim.index)

    with ServerProcess(kind) as server, ExitStack() as ending:
        workers = [
            ending.enter_context(coordinator_of(server.url, lease_s, name)) for name in "abc"
        ]
        with beside(*(partial(read, worker) for worker in workers)):
            await_that(lambda: len(done) > 0)
            server.stop()
            assert len(done) < NUM_SPLITS
            after(num_leases * lease_s, server.go_on)
    assert sorted(done) == list(range(NUM_SPLITS))
    assert [worker.takeovers.num_takeovers for worker in workers] == [0, 0, 0]


def test_who_gets_no_answer_delivers_what_it_has_reserved_and_starts_nothing(kind: str) -> None:
    said = list[tuple[str, int | None]]()
    with (
        ServerProcess(kind) as server,
        Forwarder(server.url) as between,
        coordinator_of(between.url, lease_s=60.0) as worker,
    ):
        begun, later = islice(Coordinator.claims(worker), 2)
        worker.start(begun)
        worker.reserve(begun, 10)

        def read() -> None:
            said.append(("reserved", worker.reserve(begun, 10)))
            said.append(("started", worker.start(later)))

        between.hold()
        with beside(read):
            await_that(lambda: len(said) > 0)
            time.sleep(0.3)
            assert said == [("reserved", 10)]
            between.release()
    assert said == [("reserved", 10), ("started", 10)]


@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [2.0, 4.0])
@pytest.mark.parametrize("returns", [True, False], ids=["returns", "is gone"])
def test_an_observer_counts_no_time_against_a_lease_in_which_it_was_cut_off_itself(
    kind: str, lease_s: float, returns: bool
) -> None:
    """The holder comes back a little later than the observer, or never."""
    with (
        ServerProcess(kind) as server,
        Forwarder(server.url) as of_holder,
        Forwarder(server.url) as of_observer,
        coordinator_of(of_holder.url, lease_s, "holder", 1) as holder,
        coordinator_of(of_observer.url, lease_s, "observer", 1) as observer,
    ):
        claim, taken = next(holder.claims()), list[tuple[float, bool]]()

        def observe() -> None:
            for other in observer.claims():
                taken.append((time.monotonic(), observer.complete(other)))

        with beside(observe, timeout_s=60):
            time.sleep(lease_s / 4)
            of_holder.hold()
            of_observer.hold()
            time.sleep(2 * lease_s)
            of_observer.release()
            released_s = time.monotonic()
            if returns:
                after(lease_s / 4, of_holder.release)
                time.sleep(lease_s)
                assert holder.complete(claim)
        if returns:
            assert not taken
        else:
            ((taken_s, is_done),) = taken
            assert is_done
            assert lease_s / 4 < taken_s - released_s < 2 * lease_s + 10


@pytest.mark.parametrize("is_asking", [False, True], ids=["idle", "asking"])
def test_a_coordinator_closes_within_seconds_where_the_server_does_not_answer(
    kind: str, is_asking: bool
) -> None:
    before, lease_s, errors = our_threads(), 8.0, list[DispatchError]()

    def ask() -> None:
        with pytest.raises(DispatchError, match=r"unreachable|closed") as caught:
            coordinator.complete(claim)
        errors.append(caught.value)

    with ServerProcess(kind) as server:
        coordinator = coordinator_of(server.url, lease_s)
        claim = next(coordinator.claims())
        server.stop()
        with beside(*[ask] * is_asking, timeout_s=lease_s / 4 + 10):
            time.sleep(0.5)
            start = time.monotonic()
            coordinator.close()
            assert time.monotonic() - start < lease_s / 4 + 10
        assert len(errors) == is_asking
    for thread in our_threads() - before:  # Those that wait for a server that is killed now.
        thread.join(60)
        assert not thread.is_alive()
