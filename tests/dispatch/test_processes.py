"""Real worker processes over one sqlite store: no split is read twice and none is missing, also
when a worker is killed.
"""

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Program

WORKER = """
import json, sys
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.store_keys import run_prefix
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.terms import Terms

url, name, num_splits, lease_s, hang_after = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
plan = Plan(splits=[Split(path=f"{i}.parquet", num_rows=10) for i in range(num_splits)], seed=7)
delivered = []
print("ready", flush=True)
sys.stdin.readline()
# Of a claim that is not reserved yet nobody takes less than a batch.
with Coordinator(url, plan=plan, prefix=run_prefix("run"), worker=name, terms=Terms(lease_s=lease_s), batch_rows=10) as coordinator:
    for claim in coordinator.claims():
        assert coordinator.reserve(claim, 10) == 10
        assert coordinator.acknowledge_all([(claim, 5)]) == [True]
        if len(delivered) == hang_after:
            print(json.dumps({"holding": claim.index, "delivered": delivered}), flush=True)
            sys.stdin.readline()
        if coordinator.complete(claim):
            delivered.append((claim.index, claim.start_row))
    takeovers = coordinator.takeovers.num_takeovers
print(json.dumps({"delivered": delivered, "takeovers": takeovers}), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with contextlib.ExitStack() as started:

        def worker(name: str, num_splits: int, lease_s: float = 60.0, hang_after: int = -1) -> Any:
            url = f"sqlite://{tmp_path}/run/dispatch.db"
            program = Program(WORKER, url, name, num_splits, lease_s, hang_after)
            assert started.enter_context(program).line() == "ready"
            return program

        yield worker


def _result(program: Program) -> Any:
    return json.loads(program.result())


def test_four_processes_deliver_each_of_500_splits_once(start: Callable[..., Any]) -> None:
    workers = [start(f"w{i}", 500, hang_after=1) for i in range(4)]
    for worker in workers:
        worker.go_on()
    for worker in workers:
        assert "holding" in worker.line()
    for worker in workers:
        worker.go_on()
    results = [_result(worker) for worker in workers]
    counts = Counter(index for result in results for index, _ in result["delivered"])
    assert counts == Counter(range(500))
    assert all(len(result["delivered"]) > 0 for result in results)


@pytest.mark.slow
def test_the_splits_of_a_killed_process_are_taken_over_from_its_last_acknowledged_row(
    start: Callable[..., Any],
) -> None:
    # Long enough that neither of the others, on a busy machine, is taken for dead.
    lease_s = 8.0
    victim = start("victim", 100, lease_s=lease_s, hang_after=3)
    victim.go_on()
    last_words = json.loads(victim.line())
    others = [start(f"w{i}", 100, lease_s=lease_s) for i in range(2)]
    victim.send_signal(signal.SIGKILL)
    assert victim.wait(30) == -signal.SIGKILL
    for other in others:
        other.go_on()
    results = [_result(other) for other in others]
    assert sum(result["takeovers"] for result in results) == 1
    delivered = [tuple(pair) for result in [last_words, *results] for pair in result["delivered"]]
    assert Counter(index for index, _ in delivered) == Counter(range(100))
    assert (last_words["holding"], 5) in delivered


@pytest.mark.slow
def test_a_stopped_process_that_resumes_too_late_cannot_complete_its_split(
    start: Callable[..., Any],
) -> None:
    stopped = start("stopped", 20, lease_s=1.5, hang_after=0)
    stopped.go_on()
    holding = json.loads(stopped.line())["holding"]
    stopped.send_signal(signal.SIGSTOP)
    other = start("other", 20, lease_s=1.5)
    other.go_on()
    result = _result(other)
    assert result["takeovers"] == 1
    assert [holding, 5] in result["delivered"]
    stopped.send_signal(signal.SIGCONT)
    stopped.go_on()
    assert _result(stopped) == {"delivered": [], "takeovers": 0}
