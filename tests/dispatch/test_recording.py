"""The order of an epoch, read from its leases and saved to a file."""

from typing import Any

import pytest

from featstore.base.errors import ConfigError, DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.orders import SplitRange
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.recording import Recording, recorded
from featstore.dispatch.store_keys import run_prefix


def coordinator(url: str, worker: Any, epoch: int = 0) -> Coordinator:
    plan = Plan(
        splits=[Split(path=str(i), num_rows=100) for i in range(4)], shuffle=False, epoch=epoch
    )
    return Coordinator(
        url,
        plan=plan,
        prefix=run_prefix("run"),
        worker=worker,
        shares_claims=True,
    )


def test_claims_are_recorded_in_each_workers_order_with_parts_and_released_leases(
    url: str,
) -> None:
    with coordinator(url, "0-11") as one, coordinator(url, "1-22") as other:
        first, second = next(one.claims()), next(other.claims())
        third = next(one.claims())
        for worker, claim in ((one, third), (one, first)):
            worker.reserve(claim, 100)
            assert worker.complete(claim)
        other.reserve(second, 30)
        assert other.acknowledge(second, 30)
        plan = one._plan.digest
    with coordinator(url, "1-33") as late:
        for claim in late.claims():
            late.reserve(claim, 100)
            assert late.complete(claim)
    found = recorded(url, "run", 0)
    assert (found.plan, found.epoch, found.num_workers) == (plan, 0, 2)
    assert found.workers["0-11"] == (
        SplitRange(index=0, first=0, end=100),
        SplitRange(index=2, first=0, end=100),
    )
    assert found.workers["1-22"] == (SplitRange(index=1, first=0, end=30),)
    assert set(found.workers["1-33"]) == {
        SplitRange(index=1, first=30, end=100),
        SplitRange(index=3, first=0, end=100),
    }
    assert list(found.of(1)) == [*found.workers["1-22"], *found.workers["1-33"]]
    assert list(found.of(7)) == []
    assert Recording.from_json(found.to_json()) == found


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
    with pytest.raises(ConfigError, match="recorded order: expected format 1, found 'list'"):
        Recording.from_json([])
