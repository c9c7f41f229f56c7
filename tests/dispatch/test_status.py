"""The status computed from readings, and an observer of a real store."""

import signal
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from featstore.base.errors import DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.epochs import EpochNote, announce
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.status import Reading, show, status, summarize, watch
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import bind
from featstore.tools import cli
from tests.programs import CLI, Program

NOTE = EpochNote(
    prefix=run_prefix("run"),
    epoch=3,
    num_splits=10,
    num_rows=1000,
    lease_s=10.0,
    started_unix_s=0.0,
)
EMPTY = Reading(leases={}, at_s=0.0)
HELD, FREE, DONE = LeaseState.HELD, LeaseState.FREE, LeaseState.DONE


def lease(worker: Any, state: Any, rows: Any, beat: int = 0) -> Lease:
    return Lease(state=state, fence=1, worker=worker, nonce=worker, rows=rows, beat=beat)


def reading(at_s: Any, *leases: Any) -> Reading:
    return Reading(leases={(index, 0): record for index, record in enumerate(leases)}, at_s=at_s)


def test_counts_and_rows_are_those_of_the_leases() -> None:
    status = summarize(
        NOTE,
        reading(50.0, lease("a", DONE, 100), lease("a", HELD, 30), lease("b", FREE, 20)),
        EMPTY,
    )
    assert (status.num_done, status.num_held, status.num_free, status.num_rows) == (1, 1, 1, 150)
    assert [(w.worker, w.num_done, w.num_held, w.num_rows) for w in status.workers] == [
        ("a", 1, 1, 130),
        ("b", 0, 0, 20),
    ]


def test_the_remaining_time_follows_the_rate_between_the_readings() -> None:
    before = reading(100.0, lease("a", DONE, 100), lease("b", HELD, 0))
    status = summarize(NOTE, reading(110.0, lease("a", DONE, 100), lease("b", HELD, 50)), before)
    assert status.rows_per_s == 5
    assert status.remaining_s == (1000 - 150) / 5


def test_without_a_rate_the_remaining_time_is_unknown_and_at_the_end_it_is_zero() -> None:
    assert summarize(NOTE, reading(5.0), EMPTY).remaining_s is None
    over = summarize(NOTE, reading(5.0, *[lease("a", DONE, 100)] * 10), EMPTY)
    assert (over.remaining_s, over.is_over) == (0, True)


def test_splits_of_a_restored_state_count_as_done() -> None:
    note = EpochNote(**vars(NOTE) | {"num_splits_before": 9, "num_rows_before": 900})
    status = summarize(note, reading(10.0, lease("a", DONE, 100)), EMPTY)
    assert (status.num_done, status.num_rows, status.rows_per_s, status.is_over) == (
        10,
        1000,
        10,
        True,
    )


def test_a_straggler_is_slower_than_half_the_median_and_holds_splits() -> None:
    now = reading(
        10.0,
        lease("a", DONE, 100),
        lease("b", DONE, 90),
        lease("c", HELD, 20),
        lease("d", FREE, 10),
    )
    assert [w.remark for w in summarize(NOTE, now, EMPTY).workers] == ["", "", "straggler", ""]


def test_workers_that_came_between_two_readings_are_no_stragglers_and_hide_none() -> None:
    before = reading(0.0, lease("a", HELD, 10), lease("b", HELD, 10), lease("c", HELD, 1))
    now = reading(
        1.0,
        *(lease("a", HELD, 90, beat=1), lease("b", HELD, 90, beat=1), lease("c", HELD, 2, beat=1)),
        *(lease(name, HELD, 1) for name in "defg"),
    )
    remarks = [w.remark for w in summarize(NOTE, now, before).workers]
    assert remarks == ["", "", "straggler", "", "", "", ""]


def test_a_worker_that_renews_nothing_for_half_a_lease_time_is_silent() -> None:
    before = reading(0.0, lease("a", HELD, 10), lease("b", HELD, 10))
    after = [lease("a", HELD, 10), lease("b", HELD, 10, beat=1)]
    assert [w.is_silent for w in summarize(NOTE, reading(5.0, *after), before).workers] == [
        True,
        False,
    ]
    assert [w.is_silent for w in summarize(NOTE, reading(4.9, *after), before).workers] == [
        False,
        False,
    ]


def test_the_text_has_a_line_for_the_epoch_and_one_for_each_worker() -> None:
    text = show(
        summarize(NOTE, reading(10.0, lease("host-1", DONE, 100), lease("host-2", HELD, 20)), EMPTY)
    )
    head, *table = text.splitlines()
    assert head.startswith(
        "run/0/0 epoch 3: 1 of 10 splits done (10.0%), 1 held, 0 given back, 8 unclaimed; 120 of "
        "1,000 rows, 12 rows/s; ends in"
    )
    assert ["host-1" in table[2], "host-2" in table[3], "straggler" in table[3]] == [
        True,
        True,
        True,
    ]


def test_an_observer_follows_a_coordinator_and_does_not_read_final_leases_again(
    tmp_path: Path,
) -> None:
    address = bind(f"sqlite://{tmp_path}/x.db")
    plan = Plan(splits=[Split(path=f"{i}.parquet", num_rows=100) for i in range(10)])
    with pytest.raises(
        DispatchError, match=r"no dispatch store at sqlite://.*x.db: expected the file"
    ):
        status(address.url)
    assert not (tmp_path / "x.db").exists()
    address.open().close()
    observer = watch(address.url, every_s=0)
    assert str(next(observer)) == "no epoch has begun in this store"
    with Coordinator(address, plan=plan, prefix=NOTE.prefix, worker="w") as coordinator:
        for number, claim in enumerate(coordinator.claims()):
            assert f"{number} of 10 splits done" in str(next(observer))
            assert coordinator.complete(claim)
    assert (
        "10 of 10 splits done (100.0%), 0 held, 0 given back, 0 unclaimed; 1,000 of 1,000 rows"
        in str(next(observer))
    )
    assert str(next(observer)).splitlines()[0].endswith("1,000 of 1,000 rows; over")
    observer.close()


def test_rows_of_a_part_count_for_the_worker_that_read_it(tmp_path: Path) -> None:
    """A split is done once all its parts are. Rows count for the worker that acknowledged them."""
    url = f"sqlite://{tmp_path}/x.db"
    plan = Plan(splits=[Split(path="0.parquet", num_rows=100)])
    options: Any = {"shares_claims": True}
    with (
        Coordinator(url, plan=plan, prefix=NOTE.prefix, worker="busy", index=3, **options) as busy,
        Coordinator(url, plan=plan, prefix=NOTE.prefix, worker="idle", **options) as idle,
        closing(watch(url, last=1, every_s=0)) as observer,
    ):
        claim = next(busy.claims())
        busy.reserve(claim, 20)
        part = next(idle.claims())
        assert (part.part, idle.reserve(part, 100), idle.complete(part)) == (50, 100, True)
        assert (
            "0 of 1 splits done (0.0%), 1 held, 0 given back, 0 unclaimed; 50 of 100 rows"
            in str(next(observer))
        )
        assert (busy.reserve(claim, 100), busy.complete(claim)) == (50, True)
        head, _, _, *workers = str(next(observer)).splitlines()
        assert (
            "1 of 1 splits done (100.0%), 0 held, 0 given back, 0 unclaimed; 100 of 100 rows"
            in head
        )
        assert [line.split()[:5] for line in workers] == [
            ["idle", "0", "1", "0", "50"],
            ["busy", "3", "1", "0", "50"],
        ]


def test_a_quarantined_split_is_done_and_shown(tmp_path: Path) -> None:
    status = summarize(
        EpochNote(**vars(NOTE) | {"num_splits": 1}),
        reading(9.0, lease("a", LeaseState.QUARANTINED, 30)),
        EMPTY,
    )
    assert (status.is_over, status.num_quarantined, status.num_rows) == (True, 1, 30)
    assert "1 of 1 splits done (100.0%), 0 held, 0 given back, 0 unclaimed, 1 quarantined" in show(
        status
    )


def test_the_command_prints_what_a_store_holds(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/{uuid.uuid4().hex}.db"
    with closing(bind(url).open()) as store:
        announce(store, NOTE)
    done = CliRunner().invoke(cli.cli, ["dispatch", "status", url])
    assert done.exit_code == 0, done.output
    assert "run/0/0 epoch 3: 0 of 10 splits done" in done.output


def test_watching_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/x.db"
    bind(url).open().close()
    given = ["dispatch", "status", url, "--watch", "--every", "0.1"]
    how: Any = {
        "variables": {"PYTHONUNBUFFERED": "1"},
        # A shell's background job ignores SIGINT, and so would its children.
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    }
    with Program(CLI, *given, **how) as process:
        lines = [process.line() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert lines == ["no epoch has begun in this store"] * 2
    assert (process.returncode, errors) == (0, "")
