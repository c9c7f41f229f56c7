"""The report on an epoch that was not read to its end."""

import functools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.dispatch.terms import WaitFor
from featstore.dispatch.unfinished import UnreadEpochs, open_leases, silent_leases
from tests.dispatch.conftest import PREFIX, silence
from tests.dispatch.cut_off import OUTAGE_S, CutOff
from tests.dispatch.simulated_clock import SimulatedClock

KEYS = EpochKeys(PREFIX, 0)


@pytest.fixture
def make(make_worker: Any) -> Callable[..., Any]:
    return functools.partial(make_worker, in_step=True, whole=False)


def test_an_epoch_that_never_began_has_nothing_open(address: StoreAddress) -> None:
    assert open_leases(address.open(), KEYS) == []


def test_held_free_and_unclaimed_splits_are_open_and_done_ones_are_not(
    make: Callable[..., Any], address: StoreAddress
) -> None:
    worker = make("pod-7", index=1, num_splits=5, done={4: "complete"})
    claims = worker.claims()
    done, held, free = next(claims), next(claims), next(claims)
    for claim in (done, free):
        assert worker.reserve(claim, 100) == 100
    assert worker.complete(done)
    assert worker.fail(free)
    found = [str(lease) for lease in open_leases(address.open(), KEYS)]
    assert found == [
        f"epoch 0, rows 0 to 100 of split {held.split.id}, held by worker pod-7 (index 1)",
        f"epoch 0, rows 0 to 100 of split {free.split.id}, given back by worker pod-7 (index 1)",
        "epoch 0, position 3 of the plan from row 0, claimed by nobody",
    ]


def test_a_holder_that_renews_is_not_silent_and_is_not_waited_for_longer(
    make: Callable[..., Any], address: StoreAddress, clock: SimulatedClock
) -> None:
    next(make("living").claims())
    assert silent_leases(address.open(), KEYS, 30.0, threading.Event(), clock) == []
    assert clock.now_s() < 1


def test_who_was_cut_off_itself_does_not_take_a_living_holder_for_silent(
    make: Callable[..., Any], store: Any, clock: SimulatedClock
) -> None:
    next(make("living").claims())
    cut_off: Any = CutOff(store, clock, "split/")
    assert silent_leases(cut_off, KEYS, 30.0, threading.Event(), cut_off.clock) == []
    assert OUTAGE_S < clock.now_s() < OUTAGE_S + 30


def test_a_holder_that_is_dead_is_silent_after_the_wait(
    make: Callable[..., Any], address: StoreAddress, clock: SimulatedClock
) -> None:
    dead = make("dead")
    next(dead.claims())
    silence(dead)
    (silent,) = silent_leases(address.open(), KEYS, 30.0, threading.Event(), clock)
    assert clock.now_s() == 30
    assert "held by worker dead" in str(silent)


def test_only_rows_that_stay_unread_are_warned_about(
    make: Callable[..., Any],
    address: StoreAddress,
    clock: SimulatedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    holder, other = make("holder", 3), make("other", 3)
    held = next(holder.claims())
    for claim in other.claims(WaitFor.NOTHING):
        assert other.reserve(claim, 100) == claim.end_row
        assert other.complete(claim)
    left_open = UnreadEpochs(address, "left", clock)
    left_open.note(KEYS)
    left_open.log_unread()
    assert "still being delivered: epoch 0, rows 0 to" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    silence(holder)
    left_open.note(KEYS)
    left_open.log_unread()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (
        f"of split {held.split.id}, held by worker holder (index 0), which is silent"
        in record.getMessage()
    )
    caplog.clear()
    left_open.log_unread()
    assert not caplog.records, "it was named once"


def test_another_process_can_report_the_noted_epochs_and_a_long_list_is_shortened(
    make: Callable[..., Any],
    address: StoreAddress,
    clock: SimulatedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    next(make("holder", num_splits=60).claims())
    UnreadEpochs(address, "left").note(KEYS)
    UnreadEpochs(address, "left").note(EpochKeys(KEYS.prefix, 7))
    UnreadEpochs(address, "other").log_unread()
    assert not caplog.records
    UnreadEpochs(address, "left", clock).log_unread()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 20
    assert "epoch 0 has 40 further splits that were not read to their end" in messages
    assert sum("claimed by nobody; they are read again" in line for line in messages) == 19


def test_a_lost_store_is_logged_and_not_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    address = bind(f"sqlite://{tmp_path}/store.sqlite")
    left_open = UnreadEpochs(address, "left")
    left_open.note(KEYS)
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "store.sqlite").mkdir()
    left_open.log_unread()
    assert "cannot look up what other ranks" in caplog.text
