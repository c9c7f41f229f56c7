"""Ranks of torchrun that share an epoch of indices, and train in step with torch's Join."""

import json
import sys
from pathlib import Path

import pytest

from tests.programs import torchrun

NUM_ROWS = 3_000
TRAINER = """
import json, sys
import torch
import torch.distributed as distributed
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import featstore


def main():
    out, num_rows, shard_rows, num_workers = sys.argv[1], *map(int, sys.argv[2:])
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    # Not forked: gloo has threads, and a fork would copy whatever locks they hold.
    workers = {"multiprocessing_context": "spawn", "persistent_workers": True}
    epochs = []
    with featstore.DispatchedOrder(num_rows, 7, shard_rows=shard_rows) as order:
        loader = DataLoader(
            range(num_rows),
            batch_sampler=order,
            num_workers=num_workers,
            **(workers if num_workers else {}),
        )
        for epoch in range(2):
            order.set_epoch(epoch)
            seen = []
            with Join([model]):
                for batch in order.deliver(loader):
                    model(batch.float()[:, None]).sum().backward()
                    seen.append(batch.tolist())
            epochs.append(seen)
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(epochs, file)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("shard_rows", "num_workers"), [(NUM_ROWS, 0), (100, 2)])
def test_ranks_in_step_get_each_index_once_and_equal_shares_but_for_the_tail(
    tmp_path: Path, is_campaign: bool, shard_rows: int, num_workers: int
) -> None:
    if not is_campaign and num_workers:
        pytest.skip("only in the campaign of make faults: each job imports torch in every process")
    (tmp_path / "trainer.py").write_text(TRAINER)
    done = torchrun(tmp_path / "trainer.py", tmp_path, NUM_ROWS, shard_rows, num_workers)
    assert done.returncode == 0, done.stderr[-5000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        steps = [len(rank[epoch]) for rank in ranks]
        sys.stderr.write(f"shards of {shard_rows}, epoch {epoch}: {steps} steps\n")
        rows = [row for rank in ranks for batch in rank[epoch] for row in batch]
        assert sorted(rows) == list(range(NUM_ROWS))
        assert abs(steps[0] - steps[1]) < 0.1 * sum(steps)
