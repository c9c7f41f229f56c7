"""The order of an epoch, read from its leases and saved to a file."""

from typing import Any

import pytest

from featstore.base.errors import ConfigError, DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.orders import SplitRange
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.recording import RecordedWorker, Recording, recorded
from featstore.dispatch.store_keys import run_prefix
from tests.dispatch.conftest import acknowledge


def coordinator(url: str, worker: Any, epoch: int = 0, index: int = 0) -> Coordinator:
    plan = Plan(
        splits=[Split(path=str(i), num_rows=100) for i in range(4)], shuffle=False, epoch=epoch
    )
    return Coordinator(
        url,
        plan=plan,
        prefix=run_prefix("run"),
        worker=worker,
        index=index,
    )


def test_claims_are_recorded_in_each_workers_order_with_parts_and_released_leases(
    url: str,
) -> None:
    with coordinator(url, "a-1") as one, coordinator(url, "c-1", index=1) as other:
        first, second = next(one.claims()), next(other.claims())
        third = next(one.claims())
        for worker, claim in ((one, third), (one, first)):
            worker.reserve(claim, 100)
            assert worker.complete(claim)
        other.reserve(second, 30)
        assert acknowledge(other, second, 30)
        plan = one._claims._plan.digest
    with coordinator(url, "b-1", index=1) as late:
        for claim in late.claims():
            late.reserve(claim, 100)
            assert late.complete(claim)
    found = recorded(url, "run", 0)
    assert (found.plan, found.epoch, found.num_workers) == (plan, 0, 2)
    first_worker, second_worker, replacement = found.workers
    assert first_worker == RecordedWorker(
        name="a-1",
        index=0,
        ranges=(
            SplitRange(index=0, first=0, end=100),
            SplitRange(index=2, first=0, end=100),
        ),
    )
    assert second_worker == RecordedWorker(
        name="c-1", index=1, ranges=(SplitRange(index=1, first=0, end=30),)
    )
    assert (replacement.name, replacement.index) == ("b-1", 1)
    assert set(replacement.ranges) == {
        SplitRange(index=1, first=30, end=100),
        SplitRange(index=3, first=0, end=100),
    }
    assert list(found.of(1)) == [*second_worker.ranges, *replacement.ranges]
    assert list(found.of(7)) == []
    assert Recording.from_json(found.to_json()) == found


def test_workers_of_one_index_come_in_the_order_in_which_they_began_the_epoch(url: str) -> None:
    """Whatever their names say, and however many splits each of them has claimed."""
    names = ["pod-9", "pod-b", "pod-10", "pod-a"]
    for name in names:
        with coordinator(url, name, index=2) as worker:
            claim = next(worker.claims())
            worker.reserve(claim, 100)
            assert acknowledge(worker, claim, 10 if name == "pod-9" else 40)
    found = recorded(url, "run", 0)
    assert [(worker.name, worker.index) for worker in found.workers] == [(n, 2) for n in names]
    assert list(found.of(2)) == [range_ for worker in found.workers for range_ in worker.ranges]


def test_a_replay_needs_a_worker_for_each_index_also_for_those_that_read_nothing(url: str) -> None:
    with coordinator(url, "a", index=5) as worker:
        for claim in worker.claims():
            worker.reserve(claim, 100)
            assert worker.complete(claim)
    assert recorded(url, "run", 0).num_workers == 6


def test_one_epoch_is_recorded_at_a_time(url: str) -> None:
    for epoch in (0, 1):
        coordinator(url, "0-1", epoch).close()
    with pytest.raises(
        DispatchError,
        match="expected one epoch of run 'run' to save the order of, found 2; name one with --epoch",
    ):
        recorded(url, "run")
    with pytest.raises(DispatchError, match="found 0"):
        recorded(url, "other")
    assert recorded(url, "run", 1).epoch == 1


def test_data_that_is_no_recording_is_refused() -> None:
    with pytest.raises(ConfigError, match="recorded order: expected format 1 or 2, found 'list'"):
        Recording.from_json([])


@pytest.mark.parametrize(
    "workers",
    [
        {"0-1": []},
        ["name"],
        [{"name": "a", "index": "0", "ranges": []}],
        [{"name": "a", "index": -1, "ranges": []}],
        [{"name": None, "index": 0, "ranges": []}],
        [{"name": "a", "index": 0, "ranges": [[0, 1]]}],
        [{"name": "a", "index": 0}],
    ],
)
def test_a_damaged_recording_is_refused(workers: Any) -> None:
    data = {"format": 2, "plan": "p", "epoch": 0, "workers": workers}
    with pytest.raises(ConfigError, match="recorded order: damaged, or changed by hand"):
        Recording.from_json(data)


def test_a_name_without_an_index_in_a_recording_of_format_1_is_damage() -> None:
    data = {"format": 1, "plan": "p", "epoch": 0, "workers": {"pod-1": []}}
    with pytest.raises(ConfigError, match=r"damaged, or changed by hand: ValueError.*'pod'"):
        Recording.from_json(data)
