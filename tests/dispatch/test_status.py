"""The status computed from readings, and an observer of a real store."""

import signal
import threading
import time
import uuid
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from featstore.base.errors import DispatchError
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.epochs import EpochNote, announce
from featstore.dispatch.lease import Lease, LeaseState
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.status import EpochObserver, Reading, show, status, summarize, watch
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import Terms
from featstore.tools import cli
from tests.dispatch.conftest import WholeClaims, acknowledge, silence
from tests.dispatch.simulated_clock import SimulatedClock
from tests.parquet_files import put_row_files
from tests.programs import CLI, Program, start_together

NOTE = EpochNote(
    prefix=run_prefix("run"),
    epoch=3,
    num_splits=10,
    num_rows=1000,
    lease_s=10.0,
    started_unix_s=0.0,
)
HELD, FREE, DONE = LeaseState.HELD, LeaseState.FREE, LeaseState.DONE


def lease(
    worker: str, state: Any, rows: int, *, pace: int = 0, reserved: int = 0, work: int = 0
) -> Lease:
    return Lease(
        state=state,
        fence=1,
        worker=worker,
        nonce=worker,
        rows=rows,
        reserved=max(rows, reserved),
        end=100,
        pace=pace,
        work=work,
    )


def reading(
    *leases: Lease, quiet: dict[str, float] | None = None, still: dict[str, float] | None = None
) -> Reading:
    """The leases as those of splits 0, 1, ...; for how long the workers are known to be quiet, and
    to have done nothing.
    """
    parts = {(index, 0): record for index, record in enumerate(leases)}
    return Reading(
        leases=parts,
        quiet_s={part: (quiet or {}).get(one.worker, 0.0) for part, one in parts.items()},
        standstill_s={part: (still or {}).get(one.worker, 0.0) for part, one in parts.items()},
    )


def remarks(*leases: Lease, **known: dict[str, float]) -> list[str]:
    return [worker.remark for worker in summarize(NOTE, reading(*leases, **known)).workers]


def test_counts_and_rows_are_those_of_the_leases() -> None:
    status = summarize(
        NOTE, reading(lease("a", DONE, 100), lease("a", HELD, 30), lease("b", FREE, 20))
    )
    assert (status.num_done, status.num_held, status.num_free, status.num_rows) == (1, 1, 1, 150)
    assert [(w.worker, w.num_done, w.num_held, w.num_rows) for w in status.workers] == [
        ("a", 1, 1, 130),
        ("b", 0, 0, 20),
    ]


def test_rows_that_are_not_reserved_come_at_the_pace_of_all_who_read() -> None:
    now = reading(
        lease("a", DONE, 100, pace=90),
        lease("a", HELD, 40, pace=10, reserved=60, work=9),
        lease("b", HELD, 10, pace=40, reserved=90),
    )
    status = summarize(NOTE, now)
    assert status.rows_per_s == 50
    assert status.remaining_s == status.latest_s == (1000 - 150) / 50


def test_what_a_worker_has_reserved_comes_at_its_own_pace() -> None:
    done = [lease("b", DONE, 100)] * 9
    slow = lease("a", HELD, 20, pace=2, reserved=100)
    assert summarize(NOTE, reading(*done, slow)).remaining_s == 80 / 2
    fast = lease("b", HELD, 0, pace=1000, reserved=100)
    assert summarize(NOTE, reading(*done[1:], slow, fast)).remaining_s == 80 / 2


def test_a_loop_that_stands_still_is_expected_to_do_so_for_as_long_again() -> None:
    done = [lease("b", DONE, 100)] * 9
    stood = reading(*done, lease("a", HELD, 20, pace=80, reserved=100), still={"a": 30.0})
    assert summarize(NOTE, stood).remaining_s == 30


def test_who_is_not_known_to_have_a_pace_is_taken_to_be_as_fast_as_the_others() -> None:
    now = reading(lease("a", HELD, 0, pace=30), lease("b", HELD, 0, pace=50), lease("c", HELD, 0))
    assert summarize(NOTE, now).remaining_s == 1000 / (30 + 50 + 40)


def test_what_a_silent_worker_has_reserved_comes_after_its_lease_has_expired() -> None:
    done = [lease("a", DONE, 100)] * 8
    silent = lease("b", HELD, 10, pace=50, reserved=90)
    mine = lease("a", HELD, 50, pace=20, reserved=70)
    status = summarize(NOTE, reading(*done, silent, mine, quiet={"b": 7.0}))
    assert (status.rows_per_s, status.remaining_s) == (20, 3.0 + 80 / 20)
    assert [w.is_silent for w in status.workers] == [False, True]
    far = summarize(NOTE, reading(silent, mine, quiet={"b": 7.0}))
    assert far.remaining_s == (1000 - 60) / 20


def test_who_gave_no_sign_of_life_for_a_while_may_be_gone_and_the_end_be_later() -> None:
    done = [lease("a", DONE, 100)] * 8
    quiet = lease("b", HELD, 10, pace=40, reserved=90)
    mine = lease("a", HELD, 50, pace=20, reserved=70)
    status = summarize(NOTE, reading(*done, quiet, mine, quiet={"b": 2.5}))
    assert (status.remaining_s, status.latest_s) == (140 / 60, 7.5 + 80 / 20)
    assert [w.remark for w in status.workers] == ["", "no sign for 2 s"]
    assert "ends in about 2 s, at " in show(status)
    assert ", or in 12 s if those that gave no sign are gone" in show(status)


def test_without_a_pace_the_remaining_time_is_unknown_and_at_the_end_it_is_zero() -> None:
    assert summarize(NOTE, reading(lease("a", HELD, 10))).remaining_s is None
    alone = reading(lease("a", HELD, 10, pace=5), quiet={"a": 9.0})
    assert summarize(NOTE, alone).remaining_s is None
    over = summarize(NOTE, reading(*[lease("a", DONE, 100)] * 10))
    assert (over.remaining_s, over.is_over) == (0, True)


def test_rows_that_are_quarantined_are_not_waited_for() -> None:
    now = reading(lease("a", LeaseState.QUARANTINED, 10), lease("b", HELD, 0, pace=10))
    assert summarize(NOTE, now).remaining_s == (1000 - 100) / 10


def test_splits_of_a_restored_state_count_as_done() -> None:
    note = EpochNote(**vars(NOTE) | {"num_splits_before": 9, "num_rows_before": 900})
    held = summarize(note, reading(lease("a", HELD, 50, pace=25)))
    assert (held.num_done, held.num_rows, held.remaining_s, held.is_over) == (9, 950, 2, False)
    done = summarize(note, reading(lease("a", DONE, 100)))
    assert (done.num_done, done.num_rows, done.is_over) == (10, 1000, True)


def test_a_straggler_is_one_for_whose_reserved_rows_others_will_wait() -> None:
    """In one look: not who is slow, but who has reserved more than it reads until all else is
    done.
    """
    slow = lease("a", HELD, 20, pace=4, reserved=60)
    fast = lease("b", HELD, 0, pace=200, reserved=50)
    assert remarks(slow, fast) == ["straggler: 10 s for its next rows", ""]
    assert remarks(slow, lease("b", HELD, 0, pace=100, reserved=50)) == ["", ""]
    few = lease("a", HELD, 20, pace=4, reserved=28)
    assert remarks(*[lease("b", DONE, 100, pace=200)] * 9, few) == ["", ""]


def test_who_holds_nothing_has_no_pace_and_waits_for_nobody_where_rows_are_free() -> None:
    """It may be dead and relieved: leases do not tell."""
    now = reading(
        *[lease("b", DONE, 100, pace=2000)] * 5, lease("a", HELD, 20, pace=4, reserved=60)
    )
    status = summarize(NOTE, now)
    assert [(w.worker, w.rows_per_s, w.remark) for w in status.workers] == [
        ("a", 4, ""),
        ("b", 0, ""),
    ]


def test_who_holds_nothing_is_taken_to_be_as_fast_as_those_that_are_gone() -> None:
    now = reading(lease("a", DONE, 100, pace=70), lease("b", HELD, 0, pace=30), quiet={"b": 6.0})
    assert summarize(NOTE, now).remaining_s == 900 / 30


def test_no_sign_is_worth_a_remark_after_the_time_between_two_acknowledgements() -> None:
    note = EpochNote(**vars(NOTE) | {"lease_s": 60.0, "report_s": 15.0})
    held = [lease(name, HELD, 0) for name in "ab"]
    found = summarize(note, reading(*held, quiet={"a": 15.0, "b": 16.0}))
    assert [worker.remark for worker in found.workers] == ["", "no sign for 16 s"]


def test_two_looks_are_as_far_apart_as_a_sign_of_life_takes(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/x.db"
    plan = Plan(splits=[Split(path="0.parquet", num_rows=100)])
    terms = Terms(reserve_s=0.4)
    with Coordinator(url, plan=plan, prefix=NOTE.prefix, worker="w", terms=terms) as coordinator:
        next(coordinator.claims())
        ((worker,),) = [epoch.workers for epoch in status(url).epochs]
    assert worker.may_be_gone
    assert 0.8 <= worker.quiet_s < 2.4


def test_who_reads_alone_keeps_nobody_waiting() -> None:
    assert remarks(*[lease("a", DONE, 100)] * 9, lease("a", HELD, 20, pace=4, reserved=60)) == [""]


def test_a_worker_that_has_nothing_to_do_waits_for_a_loop_that_stands_still() -> None:
    done = [lease("b", DONE, 100, pace=200)] * 9
    stood = lease("a", HELD, 20, pace=40, reserved=100)
    assert remarks(*done, stood, still={"a": 2.0}) == ["", ""]
    assert remarks(*done, stood, still={"a": 5.0}) == ["straggler: 5 s for its next rows", ""]
    both = {"still": {"a": 4.5}, "quiet": {"a": 4.5}}
    assert remarks(*done, stood, **both)[0] == "straggler: 4 s for its next rows, no sign for 4 s"


def test_a_silent_worker_is_no_straggler_and_hides_none() -> None:
    done = [lease("b", DONE, 100, pace=200)] * 8
    slow = lease("a", HELD, 20, pace=8, reserved=100)
    found = remarks(*done, slow, lease("c", HELD, 20, pace=200, reserved=100), quiet={"c": 5.0})
    assert found == ["straggler: 10 s for its next rows", "", "silent for 5 s"]


def test_one_claim_that_shows_life_is_enough_for_a_worker() -> None:
    now = reading(lease("a", HELD, 10), lease("a", HELD, 0))
    quiet = Reading(
        leases=now.leases,
        quiet_s={(0, 0): 0.0, (1, 0): 9.0},
        standstill_s={(0, 0): 0.0, (1, 0): 9.0},
    )
    assert not summarize(NOTE, quiet).workers[0].may_be_gone


def test_the_text_has_a_line_for_the_epoch_and_one_for_each_worker() -> None:
    text = show(
        summarize(
            NOTE,
            reading(
                lease("host-1", DONE, 100, pace=20),
                lease("host-2", HELD, 20, pace=12, reserved=90),
                quiet={"host-2": 6.0},
            ),
        )
    )
    head, *table = text.splitlines()
    assert head.startswith(
        "run/0/0 epoch 3: 1 of 10 splits done (10.0%), 1 held, 0 given back, 8 unclaimed; 120 of "
        "1,000 rows, 0 rows/s; ends in about 73 s, at "
    )
    assert ["host-1" in table[2], "host-2" in table[3], "silent for 6 s" in table[3]] == [
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
    with WholeClaims(address, plan=plan, prefix=NOTE.prefix, worker="w") as coordinator:
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
    with (
        Coordinator(url, plan=plan, prefix=NOTE.prefix, worker="busy", index=3) as busy,
        Coordinator(url, plan=plan, prefix=NOTE.prefix, worker="idle") as idle,
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
        reading(lease("a", LeaseState.QUARANTINED, 30)),
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


class SimulatedLoop(threading.Thread):
    """A worker whose loop takes `10 / pace` seconds for a batch of 10 rows, and which acknowledges
    every second. It ends when all is done, or has stopped.
    """

    def __init__(self, coordinator: Coordinator, clock: SimulatedClock, pace: float) -> None:
        super().__init__()
        self._coordinator, self._clock, self._pace = coordinator, clock, pace
        self.is_stopped, self.ended_s = False, 0.0

    def run(self) -> None:
        for claim in self._coordinator.claims():
            row, told_s = claim.start_row, self._clock.now_s()
            granted: int | None = claim.end_row
            while granted and row < granted and not self.is_stopped:
                wanted = min(row + 10, claim.end_row)
                granted = self._coordinator.reserve(claim, wanted)
                self._clock.sleep(10 / self._pace)
                row = max(row, granted or row)
                if self._clock.now_s() - told_s >= 1:
                    acknowledge(self._coordinator, claim, row)
                    told_s = self._clock.now_s()
                granted = claim.end_row if granted == wanted else granted
            if self.is_stopped:
                return
            self._coordinator.complete(claim)
        self.ended_s = self._clock.now_s()


class SimulatedEpoch:
    """Workers of an epoch of 40 splits of 1,000 rows, by name with their paces, and an observer.
    Leases are of 20 s. A context manager; at its end the workers have ended.
    """

    NOTE = EpochNote(**vars(NOTE) | {"num_splits": 40, "num_rows": 40_000, "lease_s": 20.0})

    def __init__(self, **paces: float) -> None:
        self.clock, address = SimulatedClock(), bind(f"memory://{uuid.uuid4().hex}")
        plan = Plan(
            epoch=3, splits=[Split(path=str(number), num_rows=1000) for number in range(40)]
        )
        common: dict[str, Any] = {
            "plan": plan,
            "prefix": NOTE.prefix,
            "clock": self.clock,
            "terms": Terms(lease_s=20.0),
            "batch_rows": 10,
        }
        self.coordinators = {name: Coordinator(address, worker=name, **common) for name in paces}
        self.loops = {
            name: SimulatedLoop(self.coordinators[name], self.clock, pace)
            for name, pace in paces.items()
        }
        self._observer, self._store = EpochObserver(self.NOTE), address.open()

    def look_at(self, now_s: float) -> Any:
        """The status at this time, in two looks."""
        self.clock.sleep(now_s - 2.5 - self.clock.now_s())
        self._observer.look(self._store, self.clock.now_s())
        self.clock.sleep(2.5)
        return self._observer.look(self._store, self.clock.now_s())

    def kill(self, name: str) -> None:
        """Ends a worker as a SIGKILL would."""
        self.loops[name].is_stopped = True
        silence(self.coordinators[name])

    def end(self) -> float:
        """When the last worker ended."""
        for loop in self.loops.values():
            self.clock.join(loop)
        return max(loop.ended_s for loop in self.loops.values())

    def __enter__(self) -> "SimulatedEpoch":
        for loop in self.loops.values():
            loop.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.clock.leave()
        for name, loop in self.loops.items():
            loop.is_stopped = True
            loop.join(60)
            self.coordinators[name].close()
        self._store.close()


def test_the_end_is_as_expected_where_paces_differ() -> None:
    with SimulatedEpoch(a=400, b=200, c=40) as epoch:
        expected = {at_s: epoch.look_at(at_s).remaining_s for at_s in (6.0, 20.0, 40.0, 55.0)}
        end_s = epoch.end()
    for at_s, remaining_s in expected.items():
        assert at_s + remaining_s == pytest.approx(end_s, rel=0.05), (at_s, remaining_s, end_s)


def test_the_end_is_as_expected_when_a_worker_is_killed_at_the_end() -> None:
    """In one look the others are seen to wait for it, and for how long if it is dead; half a lease
    later it is known to be. The first of them to see its last sign looks when the lease expires.
    """
    with SimulatedEpoch(a=400, b=200, c=40) as epoch:
        epoch.clock.sleep(61.0)
        epoch.kill("b")
        killed_s = epoch.clock.now_s()
        first, later = epoch.look_at(killed_s + 5), epoch.look_at(killed_s + 13)
        end_s = epoch.end()
    remarks = {worker.worker: worker.remark for worker in first.workers}
    assert remarks == {"a": "", "b": "straggler: 2 s for its next rows, no sign for 2 s", "c": ""}
    assert killed_s + 5 + first.latest_s == pytest.approx(end_s, abs=2)
    assert {worker.worker: worker.remark for worker in later.workers}["b"] == "silent for 10 s"
    assert killed_s + 13 + later.remaining_s == pytest.approx(end_s, abs=2)


def test_the_end_is_later_by_what_a_killed_worker_would_have_read() -> None:
    with SimulatedEpoch(a=400, b=200, c=40) as epoch:
        epoch.clock.sleep(20.0)
        epoch.kill("b")
        first, later = epoch.look_at(25.0), epoch.look_at(34.0)
        end_s = epoch.end()
    assert 25 + first.latest_s == pytest.approx(end_s, rel=0.05)
    assert 34 + later.remaining_s == pytest.approx(end_s, rel=0.05)
    assert [worker.is_straggler for worker in (*first.workers, *later.workers)] == [False] * 6


READER = """
import sys, time
import featstore

table, store, batch_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
dispatch = {"store": store, "run_id": "run", "in_step": False, "lease_s": 20, "finished": "end"}
with featstore.FeatureLoader(table, slots=["row"], batch_size=100, dispatch=dispatch) as loader:
    print("ready", flush=True)
    sys.stdin.readline()
    for batch in loader:
        print("", flush=True)
        time.sleep(batch_s)
print(time.monotonic())
"""


@pytest.mark.slow
def test_the_end_of_a_real_run_is_as_expected(tmp_path: Path) -> None:
    """Loops of three paces; the error is below a fifth of what is left. They wait long for each
    batch, so that their paces hold on a busy machine, too.
    """
    table = put_row_files(tmp_path / "table", [1000] * 24, row_group_size=250)
    url = f"sqlite://{tmp_path}/x.db"
    with ExitStack() as running:
        readers = [
            running.enter_context(Program(READER, table, url, batch_s))
            for batch_s in (0.1, 0.2, 0.6)
        ]
        start_together(readers)
        assert [reader.stdout.readline() for reader in readers if reader.stdout] == ["\n"] * 3
        time.sleep(2)
        (epoch,) = status(url).epochs
        told_s = time.monotonic()
        # The clock is the same in all processes.
        took_s = max(float(reader.communicate()[0]) for reader in readers) - told_s
    assert epoch.remaining_s == pytest.approx(took_s, rel=0.2)
    assert took_s > 5
