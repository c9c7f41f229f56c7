"""Workers are killed, stopped and cut off at random over an epoch: no row is missing, and what came
twice is in the receipt.

`make faults` kills 500 times and stops 100 times over sqlite, and 60 and 15 times over a served
store; `make test` does the same a few times over sqlite.
"""

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import featstore
from featstore.base.errors import DispatchError
from featstore.dispatch.epochs import announced
from featstore.dispatch.receipt import receipts
from featstore.dispatch.stores.address import bind
from tests.parquet_files import put_row_files
from tests.programs import CLI, Program

pytestmark = pytest.mark.slow

NUM_WORKERS, LEASE_S, WINDOW_ROWS, NUM_WINDOWS = 6, 2.0, 10, 8
WORKER = """
import os, random, sys, time
from pathlib import Path
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.address import bind
from featstore.dispatch.terms import Terms
from featstore.base.errors import DispatchError

url, directory, name, num_splits, window_rows, num_windows, lease_s = sys.argv[1:4] + [float(text) for text in sys.argv[4:]]
rows = int(window_rows * num_windows)
draw = random.Random(name)
true_time = time.time
# Wall clocks jump by up to a day, at every look.
time.time = lambda: true_time() + draw.uniform(-86_400, 86_400)


class Losing:
    def __init__(self, store):
        self.store = store

    def __getattr__(self, verb):
        def call(*arguments):
            result = getattr(self.store, verb)(*arguments)
            if verb in ("compare_set", "add") and draw.random() < 0.0005:
                (Path(directory) / f"{name}.lost").touch()
                raise DispatchError("injected: the reply was lost after the effect")
            return result
        return getattr(self.store, verb) if verb == "close" else call


class Address:
    def __init__(self, inner):
        self.inner = inner

    def open(self):
        return Losing(self.inner.open())

    def unanswered_s(self):
        return 0.0

    def scoped(self, wait_s):
        return Address(self.inner.scoped(wait_s))

    def hurry(self):
        self.inner.hurry()


splits = [Split(path=str(i), num_rows=rows) for i in range(int(num_splits))]
terms = Terms(lease_s=lease_s)
slow = Path(directory) / "slow"
try:
    with open(Path(directory) / f"{name}.log", "ab", buffering=0) as log, Coordinator(
        Address(bind(url)), plan=Plan(splits=splits), prefix=run_prefix("run"), worker=name, terms=terms,
        batch_rows=int(window_rows),
    ) as coordinator:
        (Path(directory) / f"{name}.ready").write_text(str(time.monotonic()))
        found = True
        while found:
            found = False
            for claim in coordinator.claims():
                found, row, through = True, claim.start_row, coordinator.start(claim)
                while through is not None:
                    through = coordinator.reserve(claim, min(row + int(window_rows), rows))
                    if through is None or through <= row:
                        break
                    log.write(f"{claim.index} {row} {through} {time.monotonic()}\\n".encode())
                    row = through
                    if slow.exists():
                        time.sleep(0.02)
                    if coordinator.acknowledge_all([(claim, row)]) == [False]:
                        through = None
                if through is not None:
                    coordinator.complete(claim)
except DispatchError as error:
    sys.exit(0 if "injected" not in str(error) else 3)
"""


class Cluster:
    """Workers as processes, of which each that ends before the epoch does is started anew."""

    def __init__(self, directory: Path, url: str, num_splits: int) -> None:
        self.directory, self.url = directory, url
        self._arguments = (
            [self.url, str(directory)],
            [str(n) for n in (num_splits, WINDOW_ROWS, NUM_WINDOWS, LEASE_S)],
        )
        self._numbers = itertools.count()
        self.stopped: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.sleeps: list[tuple[float, float]] = []
        self.exits: Counter[int] = Counter()
        self.ended: dict[str, float] = {}
        (directory / "slow").touch()
        self.workers = [self._start() for _ in range(NUM_WORKERS)]

    def _start(self) -> Any:
        where, sizes = self._arguments
        name = f"{next(self._numbers)}"
        return subprocess.Popen([sys.executable, "-c", WORKER, *where, name, *sizes])

    def tend(self, *, renew: bool) -> bool:
        """Wakes who was stopped long enough and, unless the end has begun, replaces who has died;
        whether any still lives.
        """
        for due, worker in [item for item in self.stopped if item[0] <= time.monotonic()]:
            worker.send_signal(signal.SIGCONT)
            self.stopped.remove((due, worker))
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None and (renew or worker.returncode not in (0, None)):
                self.exits[worker.returncode] += 1
                self.ended.setdefault(worker.args[5], time.monotonic())
                self.workers[number] = self._start()
        return any(worker.poll() is None for worker in self.workers)

    def strike(self, draw: random.Random, what: signal.Signals) -> bool:
        """Sends the signal to a worker that has delivered something and is not stopped; False where
        there is none now.
        """
        asleep = [worker for _, worker in self.stopped]
        ready = [
            w
            for w in self.workers
            if w.poll() is None and w not in asleep and self._has_delivered(w)
        ]
        if not ready:
            return False
        victim = draw.choice(ready)
        victim.send_signal(what)
        if what is signal.SIGKILL:
            self.ended[victim.args[5]] = time.monotonic()
            found: bool = victim.wait() == -signal.SIGKILL  # Else it had just ended by itself.
            return found
        until = time.monotonic() + draw.uniform(0.2, 2) * LEASE_S
        self.sleeps.append((time.monotonic(), until))
        self.stopped.append((until, victim))
        return True

    def _has_delivered(self, worker: Any) -> Any:
        log = self.directory / f"{worker.args[5]}.log"
        return log.exists() and log.stat().st_size > 0

    def absences(self) -> list[tuple[float, float]]:
        """When no worker was there: those that had died were replaced by such as had not begun
        yet.
        """
        begun = sorted(
            (float(path.read_text()), path.stem) for path in self.directory.glob("*.ready")
        )
        found, through = [], begun[0][0]
        for at, name in begun:
            if at > through:
                found.append((through, at))
            through = max(through, self.ended.get(name, math.inf))
        return found

    def end(self) -> None:
        for worker in self.workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.wait()


@pytest.fixture(params=["sqlite", "tcp"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, is_campaign: bool) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/x.db"
        return
    if not is_campaign:
        pytest.skip("only in the campaign of make faults: each of many processes imports torch")
    with Program(CLI, "dispatch", "serve", "--port", 0) as server:
        yield server.line()


def test_an_epoch_survives_workers_that_are_killed_stopped_and_cut_off_at_random(
    tmp_path: Path, store_url: str, is_campaign: bool
) -> None:
    is_sqlite = store_url.startswith("sqlite")
    num_kills, num_stops = ((500, 100) if is_sqlite else (60, 15)) if is_campaign else (8, 3)
    num_splits = 12 * (num_kills + num_stops) + 150
    draw = random.Random(7)
    strikes = [signal.SIGKILL] * num_kills + [signal.SIGSTOP] * num_stops
    draw.shuffle(strikes)
    deadline = time.monotonic() + (1500 if is_campaign else 500)
    cluster = Cluster(tmp_path, store_url, num_splits)
    try:
        while strikes:
            assert time.monotonic() < deadline, f"{len(strikes)} strikes are left"
            if cluster.tend(renew=True) and cluster.strike(draw, strikes[-1]):
                strikes.pop()
            time.sleep(0.1)
        # Who is stopped in the middle of a write holds SQLite's lock, for this process too.
        while cluster.stopped:
            cluster.tend(renew=True)
            time.sleep(0.05)
        assert receipts(cluster.url, "run")[_only(cluster.url)].missing > 0, (
            "the epoch ended before the last strike"
        )
        (tmp_path / "slow").unlink()
        while cluster.tend(renew=False) or cluster.stopped:
            assert time.monotonic() < deadline, "the epoch does not end"
            time.sleep(0.05)
    finally:
        cluster.end()
    receipt = receipts(cluster.url, "run")[_only(cluster.url)]
    delivered, times = Counter[Any](), []
    for path in tmp_path.glob("*.log"):
        for line in path.read_text().splitlines():
            index, first, through, at = line.split()
            times.append(float(at))
            delivered.update((int(index), row) for row in range(int(first), int(through)))
    times.sort()
    # Who is stopped in the middle of a write holds SQLite's lock, which the others wait for; a TCP
    # server's nobody holds.
    excused = cluster.absences() + (cluster.sleeps if is_sqlite else [])
    longest_s = max(_pause_s(before, after, excused) for before, after in itertools.pairwise(times))
    twice = delivered.total() - len(delivered)
    facts = (
        f"{cluster.exits} exits, {twice} rows twice, {receipt.repeated_at_most} at most, longest "
        f"pause {longest_s:.2f} s"
    )
    sys.stderr.write(
        f"{num_kills} kills, {num_stops} stops in {times[-1] - times[0]:.0f} s: {facts}\n"
    )
    assert cluster.exits[-signal.SIGKILL] == num_kills
    assert len(cluster.sleeps) == num_stops
    with closing(bind(store_url).open()) as store:
        (note,) = announced(store)
    assert abs(note.started_unix_s - time.time()) > 60, "no clock jumped"
    assert len(delivered) == num_splits * WINDOW_ROWS * NUM_WINDOWS, "rows are missing"
    assert (receipt.missing, receipt.quarantined) == (0, ())
    assert 0 < twice <= receipt.repeated_at_most or (twice == 0 and not is_campaign)
    # Nobody waits longer than for a lease to end; a loaded machine takes seconds of its own to
    # start processes that import torch. How long a takeover takes is tested with clocks of the
    # tests' own (tests/dispatch).
    assert longest_s < LEASE_S + 15
    assert not (is_campaign and is_sqlite) or list(tmp_path.glob("*.lost"))


def _pause_s(before: Any, after: Any, excused: Any) -> Any:
    """How long nobody delivered, without the times that are excused."""
    excused_s, through = 0.0, before
    for start, end in sorted(excused):
        excused_s += max(0.0, min(end, after) - max(start, through))
        through = max(through, min(end, after))
    return after - before - excused_s


def _only(url: Any) -> Any:
    (name,) = receipts(url, "run")
    return name


def test_when_the_server_is_lost_there_is_one_error_and_a_checkpoint_goes_on_with_another(
    loader_table: Path,
) -> None:
    lease_s = 60.0
    with Program(CLI, "dispatch", "serve", "--port", 0) as server:
        options = {"store": server.line(), "run_id": "run", "lease_s": lease_s}
        with featstore.FeatureLoader(
            loader_table, slots=["row"], batch_size=10, dispatch=options, memory_budget=1
        ) as loader:
            batches = iter(loader)
            history = [row for _ in range(5) for row in next(batches)["row"].tolist()]
            loader.ack()
            checkpoint = json.loads(json.dumps(loader.state_dict()))
            next(batches)
            server.kill()
            server.wait()
            started = time.monotonic()
            with pytest.raises(DispatchError, match="is lost, and with it the leases of all"):
                list(batches)
            assert time.monotonic() - started < lease_s
    with Program(CLI, "dispatch", "serve", "--port", 0) as server:
        options = {"store": server.line(), "run_id": "run", "lease_s": lease_s}
        with featstore.FeatureLoader(
            loader_table, slots=["row"], batch_size=10, dispatch=options
        ) as loader:
            loader.load_state_dict(checkpoint)
            rest = [row for batch in loader for row in batch["row"].tolist()]
    assert sorted(history + rest) == list(range(1, 401))


@pytest.fixture
def loader_table(tmp_path: Path) -> Path:

    return put_row_files(tmp_path / "table", [40] * 10, first=1, row_group_size=10)
