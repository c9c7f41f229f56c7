"""Processes whose DataLoaders ask ahead are killed over an epoch of indices: none is missing, and
what came twice is in the receipt.
"""

import itertools
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from featstore.dispatch.receipt import receipts
from tests.programs import Program

pytestmark = pytest.mark.slow

NUM_ROWS, NUM_PROCESSES = 20_000, 3
LOOP = """
import os, signal, sys, time
from torch.utils.data import DataLoader
from featstore.samples.dispatched_order import DispatchedOrder
from featstore.samples.random_order import RandomOrder


def main():
    signal.alarm(1200)  # Nobody outlives a test that failed.
    store, log, slow, num_rows, num_workers = *sys.argv[1:4], *map(int, sys.argv[4:])
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    dispatch = {"store": store, "run_id": "run", "lease_s": 2, "finished": "end"}
    ahead = {"prefetch_factor": 4, "persistent_workers": True} if num_workers else {}
    with DispatchedOrder(
        RandomOrder(num_rows, seed=1), 10, dispatch=dispatch, shard_rows=1000
    ) as order:
        loader = DataLoader(
            range(num_rows), batch_sampler=order, num_workers=num_workers, **ahead
        )
        for number, batch in enumerate(order.deliver(loader)):
            os.write(out, batch.numpy().tobytes())
            if os.path.exists(slow):  # Rows are left after the last kill, however slow starts are.
                time.sleep(0.05 if number < 25 else 2)


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_of_indices_survives_processes_that_are_killed(
    tmp_path: Path, is_campaign: bool, num_workers: int
) -> None:
    if not is_campaign and not num_workers:
        pytest.skip("only in the campaign of make faults: each of many processes imports torch")
    num_kills, draw = (30 if is_campaign else 4), random.Random(num_workers)
    numbers = itertools.count()
    slow, script = tmp_path / "slow", tmp_path / "loop.py"
    slow.touch()
    script.write_text(LOOP)
    url = f"sqlite://{tmp_path}/store.db"

    def start() -> tuple[Program, Path]:
        log = tmp_path / f"{next(numbers)}.log"
        options = (url, log, slow, NUM_ROWS, num_workers)
        return Program(script, *options, warnings="ignore"), log

    running = [start() for _ in range(NUM_PROCESSES)]
    try:
        for _ in range(num_kills):
            victim = draw.randrange(NUM_PROCESSES)
            program, log = running[victim]
            deadline = time.monotonic() + 120
            while not log.exists() or log.stat().st_size < draw.randint(1, 20) * 80:
                assert program.poll() is None, "the epoch ended before the last kill"
                assert time.monotonic() < deadline
                time.sleep(0.02)
            program.die()
            running[victim] = start()
        (receipt,) = receipts(url, "run").values()
        assert receipt.missing > 0, "the epoch ended before the last kill"
        slow.unlink()
        for program, _ in running:
            program.result()
    finally:
        for program, _ in running:
            program.kill()
            program.communicate()
    delivered = Counter[int]()
    for log in tmp_path.glob("*.log"):
        delivered.update(np.frombuffer(log.read_bytes(), np.int64).tolist())
    twice = delivered.total() - len(delivered)
    (receipt,) = receipts(url, "run").values()
    sys.stderr.write(
        f"{num_workers} workers, {num_kills} kills: {twice} indices twice, "
        f"{receipt.repeated_at_most} at most\n"
    )
    assert sorted(delivered) == list(range(NUM_ROWS)), "indices are missing"
    assert receipt.missing == 0
    assert twice <= receipt.repeated_at_most
