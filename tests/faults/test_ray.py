"""The recipe of docs/dispatch.md for Ray Train, with a local Ray; `make faults` installs it."""

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.parquet_files import put_row_files
from tests.programs import run_python

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
from pathlib import Path
import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    import torch.distributed
    import featstore

    with featstore.FeatureLoader(config["table"], slots=["row"], batch_size=8, memory_budget=1000) as loader:
        rows = [row for batch in loader for row in batch["row"].tolist()]
    torch.distributed.barrier()  # Rank 0 keeps the store.
    rank = ray.train.get_context().get_world_rank()
    Path(config["out"], f"{rank}.json").write_text(json.dumps(rows))


table, out = sys.argv[1:]
environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environ})
run = RunConfig(name="run", storage_path=out)
TorchTrainer(
    train, train_loop_config={"table": table, "out": out}, scaling_config=ScalingConfig(num_workers=2), run_config=run
).fit()
ray.shutdown()
"""


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="needs Ray: pip install --group ray, as make faults does",
)
def test_workers_of_ray_train_share_an_epoch(tmp_path: Path) -> None:
    put_row_files(tmp_path / "table", [20] * 10, "{:02}.parquet")
    (tmp_path / "script.py").write_text(SCRIPT)
    run_python(tmp_path / "script.py", tmp_path / "table", tmp_path)
    shares = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert Counter(row for share in shares for row in share) == Counter(range(200))
