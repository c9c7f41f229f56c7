"""The receipt of an epoch, derived from its leases."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DispatchError
from featstore.dispatch import lease as leases
from featstore.dispatch.epochs import LeaseEntry
from featstore.dispatch.lease import Lease
from featstore.dispatch.plan import Extent
from featstore.dispatch.receipt import Fate, maybe_repeated, read_receipt, receipts, stretches
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import StoreAddress, bind
from featstore.tools.cli import cli
from tests.dispatch.conftest import PREFIX, acknowledge, silence


@pytest.fixture
def address(url: str) -> StoreAddress:
    return bind(url)


@pytest.fixture
def make(make_worker: Any) -> Callable[..., Any]:
    return functools.partial(make_worker, sizes=[100, 50, 0])


def _receipt(url: str) -> Any:
    store = bind(url).open()
    try:
        return read_receipt(store, EpochKeys(PREFIX, 0))
    finally:
        store.close()


def test_a_complete_epoch_has_every_row_once_and_names_who_delivered_it(
    make: Callable[..., Any], url: str
) -> None:
    one, other = make("one", index=1), make("other")
    assert one.complete(next(one.claims()))
    assert all(other.complete(claim) for claim in other.claims())
    receipt = _receipt(url)
    assert (receipt.delivered, receipt.repeated_at_most, receipt.missing) == (150, 0, 0)
    assert list(receipt.workers.items()) == [("other", 50), ("one", 100)]
    assert receipt.as_dict()["indices"] == {"one": 1, "other": 0}
    assert str(receipt).splitlines()[-2:] == [
        "worker other (index 0)   50",
        "worker one (index 1)   100",
    ]


def test_undelivered_rows_are_missing_whoever_holds_them(
    make: Callable[..., Any], url: str
) -> None:
    worker = make()
    claim = next(worker.claims())
    acknowledge(worker, claim, 30)
    receipt = _receipt(url)
    assert (
        receipt.delivered,
        receipt.missing,
        receipt.never_claimed,
        receipt.rows_never_claimed,
    ) == (30, 120, (1, 2), 50)
    assert "0#0-: held, 70 missing; delivered by w 30" in str(receipt)
    assert "never claimed: 50 rows of 2 splits, at positions 1, 2" in str(receipt)


def test_parts_that_were_cut_off_are_lines_of_their_own(make: Callable[..., Any], url: str) -> None:
    shares = {"sizes": [100], "whole": False}
    busy, idle = make("busy", **shares), make("idle", **shares)
    claim = next(busy.claims())
    busy.reserve(claim, 20)
    part = next(idle.claims())
    idle.reserve(part, 80)
    acknowledge(idle, part, 80)
    receipt = _receipt(url)
    assert [(line.part, line.delivered, line.missing) for line in receipt.lines] == [
        (0, 0, 50),
        (50, 30, 20),
    ]
    assert (receipt.delivered, receipt.missing, receipt.workers) == (30, 70, {"idle": 30})


def test_a_takeover_counts_the_rows_that_may_be_repeated(
    make: Callable[..., Any], url: str
) -> None:
    dead, late = make("dead", sizes=[100]), make("late", sizes=[100])
    claim = next(dead.claims())
    acknowledge(dead, claim, 40)
    silence(dead)
    assert [late.complete(taken) for taken in late.claims()] == [True]
    receipt = _receipt(url)
    assert (receipt.delivered, receipt.repeated_at_most, receipt.missing) == (100, 60, 0)
    assert receipt.workers == {"dead": 40, "late": 60}
    assert "twice       60 at most (reserved, and not acknowledged when a lease ended)" in str(
        receipt
    )
    assert "0#0-: done, 0 missing, 60 at most twice; delivered by dead 40, late 60" in str(receipt)


@pytest.mark.parametrize("reserved", [0, 30])
def test_rows_that_a_dead_worker_had_only_read_ahead_are_not_repeated(
    make: Callable[..., Any], url: str, reserved: int
) -> None:
    ahead = {"sizes": [100], "whole": False, "batch_rows": 100}
    dead, late = make("dead", **ahead), make("late", **ahead)
    claim = next(dead.claims())
    assert dead.start(claim) == 100
    assert not reserved or dead.reserve(claim, reserved) == reserved
    silence(dead)
    taken = next(late.claims())
    assert taken.fence == 2
    assert _receipt(url).repeated_at_most == reserved


def test_rows_of_a_restored_state_count_as_delivered(make: Callable[..., Any], url: str) -> None:
    done = {0: ((0, 20), (50, 60)), 1: "complete"}
    worker = make(done=done)
    assert all(worker.complete(claim) for claim in worker.claims())
    receipt = _receipt(url)
    assert (receipt.delivered, receipt.missing, receipt.size.rows_before) == (150, 0, 80)
    assert "150, 80 of them before a restore" in str(receipt)


def test_a_quarantined_split_is_named(make: Callable[..., Any], url: str) -> None:
    worker = make(max_failures=1)
    for claim in worker.claims():
        assert worker.fail(claim) if claim.index == 1 else worker.complete(claim)
    receipt = _receipt(url)
    assert [line.split for line in receipt.quarantined] == ["1#0-"]
    assert (receipt.delivered, receipt.missing) == (100, 50)
    assert "1#0-: quarantined, 50 missing; delivered by nobody" in str(receipt)


def test_a_run_lists_its_epochs_in_order(make: Callable[..., Any], url: str) -> None:
    for epoch in (3, 0, 3):
        make(epoch=epoch)
    assert list(receipts(url, "run")) == [f"{PREFIX}3", f"{PREFIX}0"]
    assert list(receipts(url, "run", 3)) == [f"{PREFIX}3"]


def test_an_unknown_epoch_or_run_is_refused(make: Callable[..., Any], url: str) -> None:
    make()
    with pytest.raises(
        DispatchError,
        match=r"has no epoch of run 'other': is it the run_id of the training config\?",
    ):
        receipts(url, "other")
    with pytest.raises(DispatchError, match="has no epoch 7 of run 'run'"):
        receipts(url, "run", 7)
    with pytest.raises(DispatchError, match="the store has no epoch 7 under 'featstore/run/0/0/'"):
        read_receipt(bind(url).open(), EpochKeys(PREFIX, 7))


def test_the_command_prints_the_receipt_and_fails_if_rows_are_missing(
    make: Callable[..., Any], url: str
) -> None:
    worker = make()
    claims = worker.claims()
    worker.complete(next(claims))
    done = CliRunner().invoke(cli, ["dispatch", "receipt", url, "--run-id", "run"])
    assert (done.exit_code, "missing     50" in done.output) == (1, True)
    assert all(worker.complete(claim) for claim in claims)
    done = CliRunner().invoke(cli, ["dispatch", "receipt", url, "--run-id", "run", "--epoch", "0"])
    assert (done.exit_code, "missing     0" in done.output) == (0, True), done.output


@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.sampled_from(["read", "die", "give back"]), *[st.integers(0, 15)] * 2)),
)
def test_each_row_of_a_split_has_one_fate_and_what_came_twice_is_among_what_may_have(
    start: int, steps: list[tuple[str, int, int]]
) -> None:
    """A worker's loop has what it reserved; it acknowledges a part of it, and goes."""
    extent = Extent(split="s", start_row=start, end=40)
    record = leases.claim(extent, worker="w", nonce="0")
    had, perhaps = list[int](), set[int]()
    for number, (ending, num_reserved, num_acknowledged) in enumerate(steps):
        record = leases.reserve(record, record.rows + num_reserved)
        through = min(record.reserved, record.rows + num_acknowledged)
        had += range(record.rows, through if ending == "give back" else record.reserved)
        record = leases.advance(record, through)
        perhaps = {*range(record.rows, record.reserved)}
        if ending != "read":
            record = leases.release(record) if ending == "give back" else record
            record = leases.claim_again(record, worker="w", nonce=f"{number + 1}")
            perhaps = set()
        else:
            had = [row for row in had if row not in perhaps]
    fates = _fates([LeaseEntry(first=0, end=40, record=record)], 45)
    assert fates == [
        *[Fate.BEFORE] * start,
        *[Fate.DELIVERED] * (record.rows - start),
        *[Fate.PERHAPS] * len(perhaps),
        *[Fate.MISSING] * (40 - record.rows - len(perhaps)),
        *[Fate.BEFORE] * 5,
    ]
    twice = {row for row in had if had.count(row) > 1}
    maybe = {
        row
        for a, b in maybe_repeated([LeaseEntry(first=0, end=40, record=record)])
        for row in range(a, b)
    }
    assert twice <= maybe
    assert not maybe or record.repeated


def _fates(entries: list[LeaseEntry], num_rows: int) -> list[Fate]:
    found, row = list[Fate](), 0
    for each in stretches(entries, num_rows, unclaimed=Fate.MISSING):
        assert each.first == row < each.end
        found += [each.fate] * (each.end - each.first)
        row = each.end
    assert row == num_rows
    return found


def test_parts_and_what_nobody_claimed_have_their_rows_beside_those_of_the_split() -> None:
    of_split = leases.claim(
        Extent(split="s", start_row=0, end=10, cuts=(4, 8)), worker="a", nonce=""
    )
    of_split = leases.finish(leases.reserve(of_split, 4))
    part: Lease = leases.claim(Extent(split="s", start_row=6, end=8), worker="b", nonce="")
    entries = [
        LeaseEntry(first=0, end=10, record=of_split),
        LeaseEntry(first=8, end=10, record=None),
        LeaseEntry(first=4, end=8, record=part),
    ]
    fates = [Fate.DELIVERED] * 4 + [Fate.BEFORE] * 2 + [Fate.MISSING] * 4
    assert _fates(entries, 10) == fates
    assert _fates([], 3) == [Fate.MISSING] * 3


def test_rows_after_a_takeover_are_those_that_may_have_come_twice() -> None:
    record = leases.claim(Extent(split="s", start_row=0, end=100), worker="dead", nonce="")
    record = leases.advance(leases.reserve(record, 60), 40)
    late = leases.claim_again(record, worker="late", nonce="")
    for acknowledged in (40, 70):
        after = leases.advance(leases.reserve(late, acknowledged), acknowledged)
        assert maybe_repeated([LeaseEntry(first=0, end=100, record=after)]) == ((40, 60),)
