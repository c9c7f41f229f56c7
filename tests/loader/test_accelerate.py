"""Two real processes of accelerate: what `prepare` makes of a loader, and of a DataLoader over one."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.loader.conftest import NUM_ROWS
from tests.programs import torchrun

pytestmark = pytest.mark.slow

WORKER = """
import json, os, sys
import accelerate
import torch
import torch.distributed as distributed
from accelerate.utils import gather_object
from torch.utils.data import DataLoader
import featstore
from featstore.loader.device import DeviceFeed

table, directory, how = sys.argv[1:]
accelerator = accelerate.Accelerator(cpu=True)
assert accelerator.num_processes == 2
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
tail = "join" if how in ("workers", "prepared") else "pad"
loader = featstore.FeatureLoader(table, slots=["row", "half"], batch_size=23, tail=tail, shuffle=True)


def rows_of(batches):
    rows = []
    for batch in batches:
        if tail == "pad":
            accelerator.backward(model(batch.dense(["half"])).mean())
            optimizer.step()
        rows += [] if batch.is_padding else batch["row"].tolist()
    return rows


state = f"{directory}/state.json"
if how == "loader":
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader)
    assert batches is loader
    feed = batches.to_device(accelerator.device)
    found = []
    for _ in range(2):
        iter(feed)  # Begins no epoch.
        found.append(rows_of(feed))
elif how == "workers":
    model, optimizer = accelerator.prepare(model, optimizer)
    feed = DeviceFeed(DataLoader(loader, batch_size=None, num_workers=2), accelerator.device)
    found = [rows_of(feed) for _ in range(2)]
elif how == "prepared":
    found = [rows_of(accelerator.prepare(DataLoader(loader, batch_size=None)))]
elif how == "save":
    model, optimizer = accelerator.prepare(model, optimizer)
    batches = iter(loader)
    found = [rows_of([next(batches) for _ in range(3)])]
    loader.ack()
    states = featstore.FeatureLoader.merge_states(gather_object([loader.state_dict()]))
    if accelerator.is_main_process:
        with open(state, "w") as file:
            json.dump(states, file)
else:
    model, optimizer = accelerator.prepare(model, optimizer)
    with open(state) as file:
        loader.load_state_dict(json.load(file))
    found = [rows_of(loader)]
with open(f"{directory}/{how}-{accelerator.process_index}.json", "w") as file:
    json.dump(found, file)
accelerator.wait_for_everyone()  # Rank 0 keeps the store.
loader.close()
accelerator.end_training()
"""


def run(table_url: str, directory: Path, how: str) -> Any:
    """The finished job, of two processes."""
    script = directory / "worker.py"
    script.write_text(WORKER)
    return torchrun(script, table_url, directory, how)


def epochs(table_url: str, directory: Path, how: str) -> list[list[int]]:
    """The rows of each epoch, of both processes."""
    done = run(table_url, directory, how)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads((directory / f"{how}-{rank}.json").read_text()) for rank in range(2)]
    return [mine + theirs for mine, theirs in zip(*found, strict=True)]


@pytest.mark.parametrize("how", ["loader", "workers"])
def test_processes_share_each_epoch(table_url: str, tmp_path: Path, how: str) -> None:
    """The loader is prepared; a DataLoader with workers is left as it is."""
    for rows in epochs(table_url, tmp_path, how):
        assert Counter(rows) == Counter(range(NUM_ROWS))


def test_a_prepared_dataloader_is_an_error_at_its_first_batch(
    table_url: str, tmp_path: Path
) -> None:
    done = run(table_url, tmp_path, "prepared")
    assert done.returncode != 0
    assert "Can only concatenate tensors but got" in done.stderr


def test_merged_states_of_all_processes_continue_the_epoch(table_url: str, tmp_path: Path) -> None:
    (before,) = epochs(table_url, tmp_path, "save")
    assert 0 < len(before) < NUM_ROWS
    (after,) = epochs(table_url, tmp_path, "load")
    assert Counter(before + after) == Counter(range(NUM_ROWS))
