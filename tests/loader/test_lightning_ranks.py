"""Lightning on two real ranks: its checkpoint has the states of both."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from tests.loader.conftest import NUM_ROWS
from tests.programs import torchrun

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

WORKER = """
import json, os, sys
from pathlib import Path
from torch import distributed
from torchdata.stateful_dataloader import StatefulDataLoader
import featstore
from featstore.loader.lightning_feed import LightningFeed
from tests.loader import lightning_jobs

table, directory, source, part = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
loader = featstore.FeatureLoader(
    table, slots=["row", "half"], batch_size=23, tail="drop", order="static", shuffle=True
)
feed = LightningFeed(
    loader if source == "loader" else StatefulDataLoader(loader, batch_size=None, num_workers=1)
)
model = lightning_jobs.Model()
options = {"devices": int(os.environ["WORLD_SIZE"]), "strategy": "ddp"}
if part == "first":
    saving = lightning_jobs.checkpoints(directory, 4)
    options |= {"max_steps": 4, "enable_checkpointing": True, "callbacks": [saving]}
    lightning_jobs.trainer(directory, **options).fit(model, feed)
else:
    lightning_jobs.trainer(directory, max_epochs=2, **options).fit(
        model, feed, ckpt_path=directory / "step=4.ckpt"
    )
(directory / f"{part}-{os.environ['RANK']}.json").write_text(json.dumps(model.epochs))
# Else its threads may still run when the process ends, which then aborts.
distributed.destroy_process_group()
"""


def rows(
    table_url: str, directory: Path, source: str, part: str, num_ranks: int
) -> list[list[int]]:
    """The rows of each epoch, of all ranks."""
    script = directory / "worker.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{WORKER}")
    done = torchrun(script, table_url, directory, source, part, num_processes=num_ranks)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [
        json.loads((directory / f"{part}-{rank}.json").read_text()) for rank in range(num_ranks)
    ]
    return [list(chain(*(one[epoch] for one in found))) for epoch in found[0]]


@pytest.mark.parametrize(("source", "num_ranks"), [("loader", 2), ("loader", 1), ("workers", 2)])
def test_ranks_go_on_where_a_checkpoint_of_two_was_saved(
    table_url: str, tmp_path: Path, source: str, num_ranks: int
) -> None:
    (before,) = rows(table_url, tmp_path, source, "first", 2)
    after = rows(table_url, tmp_path, source, "second", num_ranks)
    assert len(before) == 2 * 4 * 23
    found = Counter(before + after[0])
    assert set(found.values()) == {1}
    # All ranks make the same number of steps, and drop what is left over.
    assert NUM_ROWS - 46 < len(found) <= NUM_ROWS
    assert NUM_ROWS - 46 < len(after[1]) <= NUM_ROWS
