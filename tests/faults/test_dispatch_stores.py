"""Stores that delay, lose replies after the effect and disconnect: no row is missing, and what came
twice is accounted for.
"""

import contextlib
import random
import signal
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.base.errors import DispatchError
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.receipt import receipts
from featstore.dispatch.status import status
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.stores.address import bind
from featstore.dispatch.stores.endpoint import parse_endpoint
from featstore.dispatch.stores.server import serve
from featstore.dispatch.terms import Terms
from tests.dispatch.conftest import WholeClaims, acknowledge
from tests.dispatch.stores.served import ServerProcess
from tests.pages.page import ROOT, blocks
from tests.parquet_files import put_row_files
from tests.programs import CLI, Program
from tests.threads import run_together

pytestmark = pytest.mark.slow

NUM_SPLITS, ROWS, STEP = 30, 30, 10
LEASE_S = 1.0
# Then the network is well again: a worker that is restarted for 6 % of its calls hardly lives until a
# lease of another one expires, so that the end of the epoch would come by luck, after 85 to 120 s.
NUM_FAULTS = 400


class FaultyStore:
    """Another store's handle whose calls are delayed, or fail before or after they had their
    effect, as a seed decides, until there were `NUM_FAULTS`.
    """

    def __init__(self, inner: Any, draw: Any, faults: Any) -> None:
        self._inner, self._draw, self._faults = inner, draw, faults
        self._is_cut = False

    def close(self) -> None:
        self._inner.close()

    def __getattr__(self, verb: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if self._is_cut:
                raise DispatchError("injected: the connection was cut")
            fault = "none"
            if self._faults.total() < NUM_FAULTS:
                fault = self._draw.choices(
                    ["none", "delay", "cut", "reply lost"], weights=[91, 3, 3, 3]
                )[0]
            if fault != "none":
                self._faults[fault] += 1
            if fault == "delay":
                time.sleep(0.01)
            if fault == "cut":
                self._is_cut = True
                raise DispatchError("injected: cut before the call")
            result = getattr(self._inner, verb)(*arguments)
            if fault == "reply lost":
                self._is_cut = True
                raise DispatchError("injected: the reply was lost after the effect")
            return result

        return call


class FaultyAddress:
    """Opens faulty handles on a store; `faults` counts what was injected."""

    def __init__(self, address: Any, seed: Any) -> None:
        self._address, self._draw, self.faults = address, random.Random(seed), Counter[Any]()

    def open(self) -> FaultyStore:
        return FaultyStore(self._address.open(), random.Random(self._draw.random()), self.faults)

    def unanswered_s(self) -> float:
        return 0.0

    def scoped(self, wait_s: float) -> "FaultyAddress":
        return self

    def hurry(self) -> None:
        """Its handles wait for nobody."""


class Worker:
    """Delivers rows in steps, and after each fault begins again as a restarted process does,
    without what it knew.
    """

    def __init__(self, address: Any, name: Any) -> None:
        self._address, self._name = address, name
        self.delivered, self.doubtful, self.num_restarts = Counter[Any](), set[Any](), 0

    def run(self) -> None:
        while not self._try():
            self.num_restarts += 1

    def _try(self) -> bool:
        plan = Plan(splits=[Split(path=f"{i}.parquet", num_rows=ROWS) for i in range(NUM_SPLITS)])
        try:
            name = f"{self._name}-{self.num_restarts}"
            with WholeClaims(
                self._address,
                plan=plan,
                prefix=run_prefix("run"),
                worker=name,
                terms=Terms(lease_s=LEASE_S),
            ) as coordinator:
                while self._read(coordinator):
                    pass
            return True
        except DispatchError:
            return False

    def _read(self, coordinator: Any) -> Any:
        """Whether anything was claimed. Rows whose acknowledgement did not come back as true may
        come again.
        """
        num_claims = 0
        for claim in coordinator.claims():
            num_claims += 1
            for row in range(claim.start_row, ROWS, STEP):
                rows = [(claim.index, r) for r in range(row, row + STEP)]
                self.delivered.update(rows)
                is_known = False
                try:
                    is_last = row + STEP == ROWS
                    is_known = (
                        coordinator.complete(claim)
                        if is_last
                        else acknowledge(coordinator, claim, row + STEP)
                    )
                finally:
                    if not is_known:
                        self.doubtful.update(rows)
                if not is_known:
                    break
        return num_claims > 0


@pytest.fixture(params=["memory", "sqlite", "tcp", "torch"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with serve() as served:
        urls = {
            "memory": f"memory://{uuid.uuid4().hex}",
            "sqlite": f"sqlite://{tmp_path}/x.db",
            "tcp": served.url,
            "torch": f"torch://127.0.0.1:{server.port}",
        }
        yield bind(urls[request.param])
    del server


def test_no_row_is_missing_and_only_rows_without_an_acknowledgement_come_again(
    address: Any,
) -> None:
    faulty = FaultyAddress(address, seed=1)
    workers = [Worker(faulty, f"w{number}") for number in range(3)]
    run_together(*(worker.run for worker in workers), timeout_s=400)
    assert all(faulty.faults[fault] > 0 for fault in ("delay", "cut", "reply lost"))
    assert sum(worker.num_restarts for worker in workers) > 0
    delivered = sum((worker.delivered for worker in workers), Counter())
    assert set(delivered) == {(index, row) for index in range(NUM_SPLITS) for row in range(ROWS)}
    twice = {row for row, count in delivered.items() if count > 1}
    assert twice <= set().union(*(worker.doubtful for worker in workers))


COMER = """
import json, os, sys
import featstore

table, url = sys.argv[1:]
options = {"store": url, "run_id": "run", "lease_s": 2.0}
with featstore.FeatureLoader(table, slots=["row"], batch_size=8, dispatch=options, memory_budget=1000) as loader:
    for batch in loader:
        print(json.dumps(batch["row"].tolist()), flush=True)
        loader.ack()
        if sys.stdin.readline() == "":
            break
"""


def test_processes_that_come_and_go_share_an_epoch_over_a_served_store(tmp_path: Path) -> None:
    """One is killed in the middle of the epoch, one goes of itself, one comes late and reads what
    is left.
    """
    put_row_files(tmp_path / "table", [20] * 12, "{:02}.parquet", row_group_size=5)
    with contextlib.ExitStack() as started:
        url = started.enter_context(Program(CLI, "dispatch", "serve", "--port", 0)).line()

        def come() -> Program:
            return started.enter_context(Program(COMER, tmp_path / "table", url))

        killed, leaver = come(), come()
        delivered = [_step(killed), _step(leaver), _step(killed)]
        killed.kill()
        killed.wait(60)
        assert killed.stdout is not None
        last_words = killed.stdout.readlines()
        delivered.append(_step(leaver))
        assert leaver.stdin is not None
        leaver.stdin.close()
        assert leaver.stdout is not None
        last_words += leaver.stdout.readlines()
        assert leaver.wait(60) == 0
        out = come().result("\n" * 500)
    rest = [row for line in out.splitlines() for row in _rows(line)]
    before = [row for rows in [*delivered, *map(_rows, last_words)] for row in rows]
    again = Counter(before) + Counter(rest) - Counter(range(240))
    assert set(before) | set(rest) == set(range(240))
    # Delivered, but not yet told to the store: at most what the killed one had.
    assert len(again) <= len(delivered[0]) + len(delivered[2]) + 8


READER = """
import sys, time
import featstore
from featstore.base.errors import DispatchError

table, url, lease_s = sys.argv[1:]
options = {"store": url, "run_id": "run", "lease_s": float(lease_s)}
try:
    with featstore.FeatureLoader(table, slots=["row"], batch_size=1, dispatch=options, memory_budget=1) as loader:
        for batch in loader:
            print("read", flush=True)
            time.sleep(0.2)
except DispatchError as error:
    print(time.monotonic(), error, flush=True)
    sys.exit(7)
"""


def test_every_worker_ends_with_one_clear_error_within_the_lease_time_once_the_server_is_lost(
    tmp_path: Path, is_campaign: bool
) -> None:
    if not is_campaign:
        pytest.skip(
            "only in the campaign of make faults, of several processes; one worker: "
            "tests/dispatch/stores/test_tcp.py"
        )
    put_row_files(tmp_path / "table", [2_000] * 9, row_group_size=500)
    lease_s = 12.0
    with contextlib.ExitStack() as started:
        server = started.enter_context(Program(CLI, "dispatch", "serve", "--port", 0))
        given = [tmp_path / "table", server.line(), lease_s]
        workers = [started.enter_context(Program(READER, *given)) for _ in range(3)]
        assert [worker.line() for worker in workers] == ["read"] * 3
        server.kill()
        lost_at = time.monotonic()
        server.wait()
        for worker in workers:
            out, errors = worker.communicate(timeout=120)
            assert worker.returncode == 7, errors
            said = [line for line in out.splitlines() if line != "read"]
            assert len(said) == 1
            assert "is lost, and with it the leases of all" in said[0]
            assert float(said[0].split()[0]) - lost_at < lease_s
            assert "Traceback" not in errors


PAGE = "docs/howto/elastic.md"
NUM_FILES, FILE_ROWS, BATCH_ROWS = 40, 20, 8
# The step of the page's worker: tells the rows of the batch, and takes as long as the test wants.
MODEL = """
import json, sys

def train(batch):
    print(json.dumps(batch["row"].tolist()), flush=True)
    sys.stdin.readline()
"""


def _put_job(directory: Path, url: str, **options: Any) -> Path:
    """Writes the page's worker and its config, for a table of numbered rows, with a `train` that is
    the test's. Returns the worker.
    """
    files = {block.title: block.text for block in blocks((ROOT / PAGE).read_text())}
    config = yaml.safe_load(files["train.yaml"])
    config["dispatch"] |= {"store": url, "run_id": "run"} | options
    put_row_files(directory / "table", [FILE_ROWS] * NUM_FILES, "{:02}.parquet", row_group_size=5)
    config |= {"table": str(directory / "table"), "slots": ["row"], "labels": []}
    config |= {"batch_size": BATCH_ROWS, "memory_budget": 1000}
    (directory / "train.yaml").write_text(yaml.safe_dump(config))
    (directory / "model.py").write_text(MODEL)
    (directory / "worker.py").write_text(files["worker.py"])
    return directory / "worker.py"


def _await_a_knock(url: str) -> None:
    """Waits in the place of the server until a worker connects."""
    endpoint = parse_endpoint(url)
    with socket.create_server((endpoint.host, endpoint.port)) as door:
        door.settimeout(60)
        door.accept()[0].close()


def _give(worker: Program, num_steps: int) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n" * num_steps)
    worker.stdin.flush()


def _require_within_epoch(file: Path) -> None:
    """What a killed server left behind says that rows were read, and files are unclaimed."""
    (epoch,) = status(f"sqlite://{file}").epochs
    assert not epoch.is_over
    assert epoch.num_held > 0
    assert epoch.num_unclaimed > NUM_FILES / 2


def test_an_epoch_goes_on_when_its_server_comes_back_and_workers_leave_and_come(
    tmp_path: Path,
) -> None:
    """The job of the page: its server is killed, one worker is sent away, another one comes. No
    worker died, so all rows come once.
    """
    file, num_before, num_after = tmp_path / "dispatch.db", 4, 20
    with contextlib.ExitStack() as started:
        server = started.enter_context(ServerProcess(file=file))
        job = _put_job(tmp_path, server.url)

        def come() -> Program:
            return started.enter_context(Program(job, cwd=tmp_path))

        first, second = come(), come()
        lines = [first.line(), second.line()]
        for worker in (first, second):
            _give(worker, num_before - 1)  # They are reading while the server is killed.
        server.kill()
        _require_within_epoch(file)
        for worker in (first, second):
            _give(worker, num_after)
        _await_a_knock(server.url)
        started.enter_context(server.again())
        for worker in (first, second):
            lines += [worker.line() for _ in range(num_before + num_after - 1)]
        first.send_signal(signal.SIGTERM)
        lines += first.result("\n", status=143).splitlines()
        third = come()
        lines.append(third.line())  # The second waits in a step, and there is more to read.
        for worker in (second, third):
            _give(worker, NUM_FILES * FILE_ROWS)
        for worker in (second, third):
            lines += worker.result().splitlines()
    delivered = Counter(row for line in lines for row in _rows(line))
    assert delivered == Counter(range(NUM_FILES * FILE_ROWS))


def test_a_worker_that_is_killed_with_its_server_leaves_no_row_unread(
    tmp_path: Path, is_campaign: bool
) -> None:
    if not is_campaign:
        pytest.skip("only in the campaign of make faults: waits until a lease expires")
    file = tmp_path / "dispatch.db"
    with contextlib.ExitStack() as started:
        server = started.enter_context(ServerProcess(file=file))
        job = _put_job(tmp_path, server.url, lease_s=40.0)
        killed, other = (started.enter_context(Program(job, cwd=tmp_path)) for _ in range(2))
        lines = [_step(killed), _step(other), _step(killed)]
        server.kill()
        killed.kill()
        _require_within_epoch(file)
        with server.again() as back:
            assert killed.stdout is not None
            lines += map(_rows, killed.stdout.readlines())
            lines += map(_rows, other.result("\n" * 500).splitlines())
            (receipt,) = receipts(back.url, "run").values()
    delivered = Counter(row for rows in lines for row in rows)
    assert set(delivered) == set(range(NUM_FILES * FILE_ROWS))
    assert delivered.total() - len(delivered) <= receipt.repeated_at_most
    assert receipt.missing == 0


def _step(program: Program) -> Any:
    rows = _rows(program.line())
    program.go_on()
    return rows


def _rows(line: Any) -> Any:
    return [int(text) for text in line.strip().strip("[]").split(",") if text]
