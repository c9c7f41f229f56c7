"""Distributed data parallel training under torchrun, with gloo: ranks with uneven data end
together, as `tail` says.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parquet_files import put_row_files
from tests.programs import torchrun

ROWS = (100, 400, 130)
TRAINER = """
import json, multiprocessing, os, sys
import torch
import torch.distributed as distributed
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import featstore


def main():
    table, out, tail, order, num_workers = *sys.argv[1:5], int(sys.argv[5])
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    epochs = []
    options = {"tail": tail, "order": order, "dispatch": {"lease_s": 10}}
    # Not forked from here: gloo has threads, and a fork would copy whatever locks they hold.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch", "featstore.loader"])
    workers = {"num_workers": num_workers, "multiprocessing_context": server}
    with featstore.FeatureLoader(table, slots=["row", "half"], batch_size=7, **options) as loader:
        batches = DataLoader(loader, batch_size=None, **workers) if num_workers else loader
        for epoch in range(2):
            loader.set_epoch(epoch)
            seen = []
            with Join([model], enable=tail == "join"):
                for batch in batches:
                    loss = model(batch["half"][:, None]).sum() * (0 if batch.is_padding else 1)
                    loss.backward()
                    seen.append([batch["row"].tolist(), batch.is_padding])
            epochs.append(seen)
            # Also of a rank that stops with the others and has rows left.
            assert num_workers or loader.verdict().startswith(f"epoch {epoch}: "), loader.verdict()
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(epochs, file)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def uneven_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Most of the rows are in one file of one row group."""
    return str(put_row_files(tmp_path_factory.mktemp("uneven"), ROWS, floats=["half"]))


@pytest.fixture
def train(tmp_path: Path, uneven_url: str) -> Callable[..., Any]:
    (tmp_path / "trainer.py").write_text(TRAINER)

    def run(tail: Any, order: Any, *, num_workers: int = 0) -> Any:
        return torchrun(tmp_path / "trainer.py", uneven_url, tmp_path, tail, order, num_workers)

    return run


# The first two in `make test`, all in `make faults`.
CASES = [
    ("pad", "rank", 2),
    ("drop", "rank", 0),
    ("pad", "dynamic", 0),
    ("drop", "dynamic", 0),
    ("join", "rank", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("tail", "order", "num_workers"), CASES)
def test_ranks_with_uneven_data_train_two_epochs_to_their_end(
    train: Callable[..., Any],
    tmp_path: Path,
    is_campaign: bool,
    tail: Any,
    order: Any,
    num_workers: Any,
) -> None:
    if not is_campaign and (tail, order, num_workers) not in CASES[:2]:
        pytest.skip("only in the campaign of make faults: each job imports torch in every process")
    done = train(tail, order, num_workers=num_workers)
    assert done.returncode == 0, done.stderr[-5000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        steps = [len(rank[epoch]) for rank in ranks]
        rows = Counter(
            row
            for rank in ranks
            for batch, is_padding in rank[epoch]
            if not is_padding
            for row in batch
        )
        assert (steps[0] == steps[1]) is (tail != "join")
        # In dynamic order a rank may come too late for a split, and then drop leaves no step to
        # anybody.
        assert rows or (tail, order) == ("drop", "dynamic")
        assert set(rows.values()) <= {1}
        assert (sorted(rows) == list(range(sum(ROWS)))) is (tail != "drop")


HEALTHY = """
import json, logging, sys, time
import torch
import torch.distributed as distributed
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
import featstore


class Heard(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            heard.append(record.getMessage())


table, out, tail, num_epochs = *sys.argv[1:4], int(sys.argv[4])
heard = []
logging.getLogger("featstore").addHandler(Heard())
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = DistributedDataParallel(torch.nn.Linear(1, 1))
rows, ends = [], []
with featstore.FeatureLoader(table, slots=["row", "half"], batch_size=7, tail=tail) as loader:
    for epoch in range(num_epochs):
        loader.set_epoch(epoch)
        seen, batches = [], iter(loader)
        with Join([model], enable=tail == "join"):
            while True:
                asked = time.monotonic()
                batch = next(batches, None)
                if batch is None:
                    break
                (model(batch["half"][:, None]).sum() * (0 if batch.is_padding else 1)).backward()
                seen += [] if batch.is_padding else batch["row"].tolist()
        ends.append(time.monotonic() - asked)
        rows.append(seen)
with open(f"{out}/{rank}.json", "w") as file:
    json.dump([rows, ends, heard], file)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["pad", "drop", "join"])
def test_healthy_ranks_end_every_epoch_without_an_error_a_warning_or_a_delay(
    tmp_path: Path,
    uneven_url: str,
    is_campaign: bool,
    tail: str,
) -> None:
    """A lease is a minute long: whoever waited for one, or for a third of it, would be seen. On a busy
    machine a rank also waits for the other's last steps.
    """
    if not is_campaign and tail != "join":
        pytest.skip("only in the campaign of make faults: each job imports torch in every process")
    num_epochs = 50 if is_campaign else 5
    (tmp_path / "trainer.py").write_text(HEALTHY)
    done = torchrun(tmp_path / "trainer.py", uneven_url, tmp_path, tail, num_epochs)
    assert done.returncode == 0, done.stderr[-5000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    slowest_s = max(second for _, ends, _ in ranks for second in ends)
    sys.stderr.write(f"tail {tail}: {num_epochs} epochs, the longest end took {slowest_s:.2f} s\n")
    told = [text for _, _, heard in ranks for text in heard]
    assert not any(text for text in told if not text.startswith("3 splits for 2 workers"))
    assert len(told) == 1  # By the first rank, once.
    for epoch in range(num_epochs):
        rows = Counter(row for rows, _, _ in ranks for row in rows[epoch])
        assert set(rows.values()) <= {1}
        assert tail == "drop" or sorted(rows) == list(range(sum(ROWS)))
    assert slowest_s < 1.0 if is_campaign else slowest_s < 20.0
