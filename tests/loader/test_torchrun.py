"""`dispatch: auto` in real processes that torchrun starts: they meet in the job's own store and
read every row once.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DispatchError
from featstore.loader.feature_loader import FeatureLoader
from tests.programs import torchrun

NUM_ROWS = 280
WORKER = """
import json, os, sys
import torch.distributed as distributed
import featstore
from torch.utils.data import DataLoader

table, out, group, num_workers = *sys.argv[1:4], int(sys.argv[4])
if group == "before":
    distributed.init_process_group("gloo")
with featstore.FeatureLoader(table, slots=["row"], batch_size=23) as loader:
    batches = DataLoader(loader, batch_size=None, num_workers=num_workers) if num_workers else loader
    if group == "after":
        distributed.init_process_group("gloo")
        distributed.barrier()
    epochs = [[row for batch in batches for row in batch["row"].tolist()] for _ in range(2)]
with open(f"{out}/{os.environ['RANK']}.json", "w") as file:
    json.dump(epochs, file)
if group:
    distributed.barrier()
    distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has_agent_store", "group", "num_workers"),
    [(True, "", 0), (True, "before", 2), (False, "after", 0)],
    ids=[
        "torchrun's store",
        "torchrun's store with DataLoader workers",
        "a store that rank 0 starts",
    ],
)
def test_processes_of_torchrun_share_each_epoch(
    table_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_agent_store: bool,
    group: str,
    num_workers: int,
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", str(int(not has_agent_store)))
    done = torchrun(tmp_path / "worker.py", table_url, tmp_path, group, num_workers)
    assert done.returncode == 0, done.stderr[-5000:]
    shares = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        assert Counter(row for share in shares for row in share[epoch]) == Counter(range(NUM_ROWS))


def test_a_process_of_several_without_a_place_to_meet_is_told_so(
    table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        DispatchError, match=r"'auto' in one of 2 processes .* expected MASTER_ADDR and MASTER_PORT"
    ):
        FeatureLoader(table_url, slots=["row"])


def test_a_port_that_rank_0_cannot_have_is_named(
    table_url: str, monkeypatch: pytest.MonkeyPatch, loopback: Any
) -> None:
    port = loopback.url.rpartition(":")[2]
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(
        DispatchError, match=rf"torch://127.0.0.1:{port} cannot be started by rank 0: .*in use"
    ):
        FeatureLoader(table_url, slots=["row"])
