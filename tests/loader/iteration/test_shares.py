"""States of single workers, united through a store by workers that are threads here."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import StateError
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.loader.iteration import step_agreement
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.step_agreement import united
from featstore.loader.iteration.worker import LoaderWorker
from tests.dispatch.cut_off import CutOff
from tests.dispatch.simulated_clock import SimulatedClock
from tests.loader.iteration.states import START

NUM_WORKERS = 3


def share(worker: int) -> LoaderState:
    return replace(START, num_workers=NUM_WORKERS, workers=(worker,), done={worker: worker + 1})


def worker(index: int, session: str = "s", num_ranks: int = 1) -> LoaderWorker:
    return LoaderWorker(
        index=index,
        num_workers=NUM_WORKERS,
        session=session,
        is_dataloader=True,
        num_ranks=num_ranks,
    )


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    is_memory = request.param == "memory"
    return bind(f"memory://{uuid.uuid4().hex}" if is_memory else f"sqlite://{tmp_path}/store.db")


def meet(address: StoreAddress, workers: list[LoaderWorker]) -> list[tuple[str, LoaderState]]:
    def one(each: LoaderWorker) -> tuple[str, LoaderState]:
        with closing(address.open()) as store:
            return united(store, "p/", each, share(each.index))

    with ThreadPoolExecutor(len(workers)) as threads:
        return list(threads.map(one, workers))


def test_workers_that_meet_have_one_state_of_all_and_one_name_for_each_meeting(
    address: StoreAddress,
) -> None:
    first, again = (meet(address, [worker(index) for index in range(3)]) for _ in "ab")
    states = [state for _, state in first + again]
    assert all(state == states[0] for state in states)
    assert states[0].workers == (0, 1, 2)
    assert states[0].done == {0: 1, 1: 2, 2: 3}
    names = [{name for name, _ in met} for met in (first, again)]
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]


def test_workers_of_several_ranks_meet_though_their_dataloaders_are_apart(
    address: StoreAddress,
) -> None:
    found = meet(address, [worker(index, f"s{index}", num_ranks=3) for index in range(3)])
    assert {state.workers for _, state in found} == {(0, 1, 2)}


def test_dataloaders_of_one_process_do_not_meet_each_other(
    address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_agreement, "_SHARES_TIMEOUT_S", 0.0)
    with pytest.raises(StateError, match="waited 0 s for the state of worker 1, which did not"):
        meet(address, [worker(0, "a"), worker(1, "b")])


def test_a_worker_takes_no_share_but_its_own() -> None:
    share(1).require_own(1, NUM_WORKERS)
    for other in (share(0), replace(share(1), num_workers=2), replace(share(1), workers=(0, 1))):
        with pytest.raises(StateError, match=r"loaded by worker 1 of 3: use the same number"):
            other.require_own(1, NUM_WORKERS)


def test_who_was_cut_off_itself_waits_on_for_others(address: StoreAddress) -> None:
    def arrive() -> None:
        for index in (1, 2):
            state = json.dumps(share(index).to_json())
            store.set(f"p/shares/s/1/{index}/state", state)

    clock = SimulatedClock()
    with closing(address.open()) as store:
        cut_off: Any = CutOff(store, clock, "1/state", arrive)
        _, state = united(cut_off, "p/", worker(0), share(0), cut_off.clock)
    assert state.workers == (0, 1, 2)
