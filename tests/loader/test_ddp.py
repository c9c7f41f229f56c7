"""Distributed data parallel training under torchrun, with gloo: ranks with uneven data end together, as `tail` says."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = (10, 400, 30)
TRAINER = """
import json, os, signal, sys
import torch
import torch.distributed as distributed
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import featstore

signal.alarm(100)  # Nobody outlives a test that failed.
table, out, tail, order, num_workers, leaves_at = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = DistributedDataParallel(torch.nn.Linear(1, 1))
epochs = []
options = {"tail": tail, "order": order, "dispatch": {"lease_s": 10}}
with featstore.FeatureLoader(table, slots=["row", "half"], batch_size=7, **options) as loader:
    batches = DataLoader(loader, batch_size=None, num_workers=num_workers) if num_workers else loader
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen = []
        with Join([model], enable=tail == "join"):
            for batch in batches:
                if leaves_at and rank == 0 and len(seen) == leaves_at:
                    break
                loss = model(batch["half"][:, None]).sum() * (0 if batch.is_padding else 1)
                loss.backward()
                seen.append([batch["row"].tolist(), batch.is_padding])
        epochs.append(seen)
        if leaves_at:
            break
with open(f"{out}/{rank}.json", "w") as file:
    json.dump(epochs, file)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def uneven_url(tmp_path_factory) -> str:
    """Most of the rows are in one file of one row group."""
    root, first = tmp_path_factory.mktemp("uneven"), 0
    for index, num_rows in enumerate(ROWS):
        row = pa.array(range(first, first + num_rows), pa.int64())
        pq.write_table(pa.table({"row": row, "half": row.cast(pa.float32())}), root / f"{index}.parquet")
        first += num_rows
    return str(root)


@pytest.fixture
def train(torchrun, tmp_path, uneven_url):
    (tmp_path / "trainer.py").write_text(TRAINER)

    def run(tail, order, *, num_workers=0, leaves_at=0):
        return torchrun(tmp_path / "trainer.py", uneven_url, tmp_path, tail, order, num_workers, leaves_at)

    return run


CASES = [("pad", "dynamic", 0), ("pad", "rank", 2), ("drop", "dynamic", 0), ("drop", "rank", 0), ("join", "rank", 0)]


@pytest.mark.parametrize(("tail", "order", "num_workers"), CASES)
def test_ranks_with_uneven_data_train_two_epochs_to_their_end(train, tmp_path, tail, order, num_workers):
    done = train(tail, order, num_workers=num_workers)
    assert done.returncode == 0, done.stderr[-5000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        steps = [len(rank[epoch]) for rank in ranks]
        rows = Counter(row for rank in ranks for batch, is_padding in rank[epoch] if not is_padding for row in batch)
        assert (steps[0] == steps[1]) is (tail != "join")
        assert max(rows.values()) == 1
        assert (sorted(rows) == list(range(sum(ROWS)))) is (tail != "drop")


def test_a_rank_that_leaves_its_loop_names_itself(train):
    done = train("drop", "dynamic", leaves_at=2)
    assert done.returncode != 0
    assert "rank 0 left its loop at step 3, before the end of the epoch" in done.stderr
    assert "DispatchError: rank 0 left its loop at step 3" in done.stderr
