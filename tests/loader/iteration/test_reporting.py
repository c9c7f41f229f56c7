"""What the store is told of claims, over a real store."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DataFileError, DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.terms import Terms
from featstore.loader.batches.progress import Progress, Segment
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.reports import Reports
from tests.loader.iteration.states import START

PLAN = Plan(splits=[Split(path="a", num_rows=10), Split(path="b", num_rows=20)])


@pytest.fixture
def address(tmp_path: Path) -> StoreAddress:
    return bind(f"sqlite://{tmp_path}/store.sqlite")


def coordinator_of(address: Any, worker: str = "0") -> Coordinator:
    return Coordinator(address, plan=PLAN, prefix="p/", worker=worker, terms=Terms())


class Told:
    """Both splits claimed, with what is delivered of them and the reports of it."""

    def __init__(self, coordinator: Any, lease_s: Any) -> None:
        self.counts, self.coordinator = Counter[Any](), coordinator
        self.delivery = Delivery(START, self.counts, tells=True)
        self.stats = Stats()
        self.reports = Reports(self.delivery, self.stats, lease_s)
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
        yield Told(coordinator, lease_s=60.0)


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
    assert [report.kind for report in told.delivery.untold("complete", "advanced")] == ["advanced"]
    told.coordinator.close()
    assert (rows_before(address, "a"), rows_before(address, "b")) == (10, 0)


def test_how_far_claims_are_is_told_by_whoever_was_slower_than_a_quarter_of_a_lease(
    address: StoreAddress,
) -> None:
    with coordinator_of(address) as coordinator:
        told = Told(coordinator, lease_s=0.0)
        told.reports.tell(is_complete=told.deliver("b", 15))
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
    with Coordinator(address, plan=PLAN, prefix="p/", worker="0", terms=terms) as coordinator:
        told = Told(coordinator, lease_s=60.0)
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


def test_what_a_lost_store_was_not_told_is_still_to_be_told(told: Told) -> None:
    is_complete = told.deliver("a", 10)
    told.deliver("b", 3)
    told.coordinator._store.close()
    with pytest.raises(DispatchError, match="is closed"):
        told.reports.tell(is_complete=is_complete)
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


def test_after_the_end_nothing_is_told(told: Told) -> None:
    told.reports.end()
    told.reports.tell(is_complete=told.deliver("a", 10))
    told.reports.settle()
    assert [report.kind for report in told.delivery.untold("complete")] == ["complete"]
