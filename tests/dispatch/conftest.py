"""Workers of one epoch over one store, in one process and in simulated time."""

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.held import Holdings
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.stores.base import Store
from featstore.dispatch.terms import Claim, Terms, WaitFor
from tests.dispatch.simulated_clock import SimulatedClock

PREFIX = run_prefix("run")
MakeWorker = Callable[..., Coordinator]


class WholeClaims(Coordinator):
    """Reserves each claim when it has it, so that nobody takes rows of it."""

    def __init__(self, store: Any, **options: Any) -> None:
        super().__init__(store, **{"batch_rows": 2**40, **options})

    def claims(self, wait_for: WaitFor = WaitFor.ALL) -> Iterator[Claim]:
        for claim in super().claims(wait_for):
            self.start(claim)
            self.reserve(claim, claim.end_row)
            yield claim


def acknowledge(worker: Coordinator, claim: Claim, num_rows: int) -> bool:
    """Whether the claim, of which so many rows are delivered, is still the worker's."""
    [is_mine] = worker.acknowledge_all([(claim, num_rows)])
    return is_mine


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(params=["memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    """The store of the epoch. A module may parametrize it to run over other stores."""
    urls = {"memory": f"memory://{uuid.uuid4().hex}", "sqlite": f"sqlite://{tmp_path}/x.db"}
    return bind(urls[request.param])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/x.db"


@pytest.fixture
def store(address: StoreAddress, closed_at_end: Callable[[Any], Any]) -> Store:
    opened: Store = closed_at_end(address.open())
    return opened


@pytest.fixture
def make_worker(
    address: StoreAddress, clock: SimulatedClock, closed_at_end: Callable[[Any], Any]
) -> MakeWorker:
    """Makes coordinators and closes them at the end; `terms` are the options of `Terms`. Those of
    `whole` claims reserve them at once.
    """

    def make(
        worker: str = "w",
        num_splits: int = 10,
        *,
        sizes: list[int] | None = None,
        seed: int | None = None,
        epoch: int = 0,
        index: int = 0,
        done: Any = None,
        through: Any = None,
        whole: bool = True,
        batch_rows: int = 1,
        is_staged: Any = None,
        **terms: Any,
    ) -> Coordinator:
        rows = sizes or num_splits * [100]
        splits = [
            Split(path=str(number), num_rows=num_rows) for number, num_rows in enumerate(rows)
        ]
        plan = Plan(splits=splits, shuffle=seed is not None, seed=seed or 0, epoch=epoch)
        options: Any = {
            "plan": plan,
            "prefix": PREFIX,
            "worker": worker,
            "index": index,
            "terms": Terms(**terms),
            "done": done,
            "clock": clock,
            "is_staged": is_staged,
        }
        made = (
            WholeClaims(through or address, **options)
            if whole
            else Coordinator(through or address, batch_rows=batch_rows, **options)
        )
        worker_: Coordinator = closed_at_end(made)
        return worker_

    return make


def silence(coordinator: Coordinator) -> Holdings:
    """Makes a worker look paused or killed: it renews no lease and gives none back. Returns what it
    held.
    """
    coordinator._renewer._closed = threading.Event()
    coordinator._renewer._closed.set()
    coordinator._renewer._renew = lambda store: None
    held, coordinator._held = (
        coordinator._held,
        Holdings(coordinator._keys, 60.0, coordinator._clock),
    )
    return held
