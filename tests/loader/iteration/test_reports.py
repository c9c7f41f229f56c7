"""What the store is told of claims, over a real store."""

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DataFileError, DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.terms import Claim, Terms, WaitFor
from featstore.loader.batches.blocks import Block
from featstore.loader.batches.progress import Progress, Segment
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.reports import Reports
from tests.dispatch.conftest import WholeClaims
from tests.loader.batches.conftest import block
from tests.loader.iteration.states import START
from tests.process import await_that, our_threads

PLAN = Plan(splits=[Split(path="a", num_rows=10), Split(path="b", num_rows=20)])


@pytest.fixture
def address(tmp_path: Path) -> StoreAddress:
    return bind(f"sqlite://{tmp_path}/store.sqlite")


SELDOM, OFTEN = Terms(), Terms(reserve_s=0.002)


def coordinator_of(address: Any, worker: str = "0", **options: Any) -> Coordinator:
    return WholeClaims(address, plan=PLAN, prefix="p/", worker=worker, **options)


class Told:
    """Both splits claimed, with what is delivered of them and the reports of it."""

    def __init__(self, coordinator: Any, terms: Terms = SELDOM) -> None:
        self.counts, self.coordinator = Counter[Any](), coordinator
        self.delivery = Delivery(START, self.counts, tells=True)
        self.stats = Stats()
        self.reports = Reports(self.delivery, self.stats, terms)
        self.reports.begin(coordinator)
        self.claims = {claim.split.path: claim for claim in coordinator.claims()}
        for claim in self.claims.values():
            self.delivery.claim(claim)

    def bad_files(self) -> tuple[int, int]:
        return self.stats.counts["files_skipped"], self.stats.counts["rows_skipped"]

    def deliver(self, path: Any, through: Any) -> bool:
        claim = self.claims[path]
        segment = Segment(claim, through, through == claim.split.num_rows)
        self.delivery.add(Progress((segment,)))
        return self.delivery.acknowledge()


@pytest.fixture
def told(address: StoreAddress) -> Iterator[Told]:
    with coordinator_of(address) as coordinator:
        told = Told(coordinator)
        yield told
        told.reports.end()


def block_of(claim: Claim, first: int, end: int) -> Block:
    """The rows of a claim's stream from `first` to `end`."""
    found: Block = block(0, first, end - first, is_last=end == claim.split.num_rows)
    found.sources = (found.sources[0]._replace(claim=claim),)
    return found


def rows_before(address: Any, path: Any) -> int:
    """Where another worker goes on once the first has given all back; all rows where none are
    left.
    """
    with coordinator_of(address, "1") as other:
        claims = {claim.split.path: claim.start_row for claim in other.claims()}
    return claims.get(path, {"a": 10, "b": 20}[path])


def test_a_claim_that_is_complete_is_told_at_once_and_how_far_another_is_now_and_then(
    told: Told, address: StoreAddress
) -> None:
    assert not told.deliver("b", 15)
    told.reports.tell(is_complete=told.deliver("a", 10))
    await_that(lambda: not told.delivery.untold("complete"))
    assert [report.kind for report in told.delivery.untold("advanced")] == ["advanced"]
    told.coordinator.close()
    assert (rows_before(address, "a"), rows_before(address, "b")) == (10, 0)


@pytest.mark.parametrize("terms", [OFTEN, Terms(lease_s=0.008)])
def test_how_far_claims_are_is_told_twice_in_a_reservation_or_four_times_in_a_lease(
    address: StoreAddress, terms: Terms
) -> None:
    with coordinator_of(address) as coordinator:
        told = Told(coordinator, terms)
        assert not told.deliver("b", 15)
        await_that(lambda: not told.delivery.untold("advanced"))
        told.reports.end()
    assert rows_before(address, "b") == 15


def test_a_claim_that_cannot_be_read_is_told_only_when_all_is_told(told: Told) -> None:
    told.delivery.fail(told.claims["a"])
    told.reports.tell(is_complete=told.deliver("b", 20))
    assert told.delivery.untold("failed")
    told.reports.settle()
    assert not told.delivery.untold("failed")
    again = next(told.coordinator.claims())
    assert again.split.path == "a"
    assert again.fence != told.claims["a"].fence


def test_a_bad_file_counts_when_the_last_try_has_failed(address: StoreAddress) -> None:
    terms = Terms(max_failures=2)
    with coordinator_of(address, terms=terms) as coordinator:
        told = Told(coordinator)
        claim = told.claims["b"]
        told.reports.bad_files.note(claim, 5, DataFileError("damaged"))
        told.delivery.fail(claim)
        told.reports.settle()
        assert told.bad_files() == (0, 0)
        again = next(coordinator.claims())
        told.reports.bad_files.note(again, 5, DataFileError("damaged"))
        told.delivery.claim(again)
        told.delivery.fail(again)
        told.reports.settle()
        assert told.bad_files() == (1, 15)
        told.reports.end()


def test_what_a_lost_store_was_not_told_is_still_to_be_told_and_the_loop_hears_of_it(
    told: Told,
) -> None:
    is_complete = told.deliver("a", 10)
    told.deliver("b", 3)
    told.coordinator._store.close()
    told.reports.tell(is_complete=is_complete)
    told.reports._thread.join(60)
    with pytest.raises(DispatchError, match="is closed"):
        told.reports.reserve(block_of(told.claims["b"], 3, 5))
    with pytest.raises(DispatchError, match="is closed"):
        told.reports.await_delivery()
    told.reports.settle_if_it_can()
    kinds = [report.kind for report in told.delivery.untold("complete", "advanced")]
    assert kinds == ["complete", "advanced"]


def test_a_lease_that_was_lost_is_counted_once_and_not_told_of_again(
    told: Told, address: StoreAddress
) -> None:
    told.deliver("b", 3)
    told.coordinator.close()
    with coordinator_of(address, "1") as other:
        assert len(list(other.claims())) == 2
        told.reports.settle()
        assert told.counts["leases_lost"] == 1
        told.deliver("b", 20)
        assert told.delivery.untold("complete", "advanced") == []
    assert told.delivery.state.done == {told.claims["b"].index: "complete"}


def test_a_complete_claim_that_was_lost_before_that_was_told_is_counted_as_lost(
    told: Told, address: StoreAddress
) -> None:
    told.deliver("b", 20)
    told.coordinator.close()
    with coordinator_of(address, "1") as other:
        assert len(list(other.claims())) == 2
        told.reports.settle()
        assert told.counts["leases_lost"] == 1
    assert told.delivery.untold("complete", "advanced") == []


def test_after_the_end_nothing_is_told(told: Told) -> None:
    told.reports.end()
    told.reports.tell(is_complete=told.deliver("a", 10))
    told.reports.settle()
    assert [report.kind for report in told.delivery.untold("complete")] == ["complete"]
    assert not our_threads()


def test_a_handler_that_interrupts_whoever_tells_may_end_it_all(told: Told) -> None:
    """The thread that tells in turn waits for nobody who waits for it."""
    with told.reports._telling:
        told.reports.tell(is_complete=told.deliver("a", 10))
        told.reports._thread.join(0.1)  # Time for it to come to the lock.
        told.reports.close()
    assert not our_threads()
    assert told.delivery.untold("complete") == []


def test_another_thread_that_ends_an_epoch_leaves_the_next_one_alone(
    told: Told, address: StoreAddress
) -> None:
    with coordinator_of(address, "1") as later:
        with told.reports._telling:
            ending = threading.Thread(target=told.reports.end)
            ending.start()
            ending.join(0.1)
            assert ending.is_alive()  # It is about to end the first epoch.
            told.reports.begin(later)
        ending.join(60)
        assert not ending.is_alive()
        assert told.reports.coordinator is later
        told.reports.end()
    await_that(lambda: not our_threads())


def test_a_loop_whose_store_is_not_asked_for_claims_reserves_and_reports_nothing() -> None:
    reports = Reports(Delivery(START, Counter(), tells=False), Stats(), SELDOM)
    whole = block(0, 0, 9).slice(0, 4)
    assert reports.reserve(whole) == {}
    assert reports.num_promised(whole, 2) == 2
    assert reports.limits() is None
    reports.close()


class Shared:
    """Claims of a worker that others may cut: what it reserves stands in the store."""

    def __init__(self, address: StoreAddress) -> None:
        self.coordinator = Coordinator(address, plan=PLAN, prefix="p/", worker="0")
        self.told = Told(self.coordinator)
        self.other = Coordinator(address, plan=PLAN, prefix="p/", worker="1")

    def __enter__(self) -> "Shared":
        return self

    def __exit__(self, *_: object) -> None:
        self.told.reports.end()
        self.other.close()


def test_rows_are_reserved_before_a_batch_is_made_of_them_and_others_take_the_rest(
    address: StoreAddress,
) -> None:
    with Shared(address) as shared:
        claim, reports = shared.told.claims["b"], shared.told.reports
        assert reports.reserve(block_of(claim, 0, 4)) == {}
        taken = {c.split.path: c for c in islice(shared.other.claims(WaitFor.NOTHING), 1)}
        assert taken["b"].start_row > 4
        cut = taken["b"].start_row
        assert reports.reserve(block_of(claim, 4, cut)) == {}
        limits = reports.reserve(block_of(claim, cut - 1, 20))
        assert limits == {0: cut}
        assert shared.told.stats.counts["rows_left_to_others"] == 20 - cut
        assert shared.told.counts["leases_lost"] == 0


def test_batches_that_are_promised_to_other_ranks_stay_reserved(address: StoreAddress) -> None:
    """As many as are reserved; nobody takes them, also if the loop becomes slower."""
    with Shared(address) as shared:
        claim, told = shared.told.claims["b"], shared.told
        whole = block_of(claim, 0, 20)
        assert told.reports.reserve(whole.slice(0, 5)) == {}
        assert told.reports.num_promised(whole.slice(0, 5), 2) == 0, "one batch is reserved"
        assert told.reports.reserve(whole.slice(5, 6)) == {}
        reserved = told.coordinator.reserved(claim)
        num_promised = told.reports.num_promised(whole.slice(0, 5), 2)
        assert num_promised == (reserved - 5) // 2 > 0
        told.deliver("b", 5)
        told.reports.settle()  # Reserves less: the pace is not known yet.
        assert told.coordinator.reserved(claim) >= 5 + 2 * num_promised
        taken = [c for c in shared.other.claims(WaitFor.NOTHING) if c.split.path == "b"]
        assert all(c.start_row >= 5 + 2 * num_promised for c in taken)
