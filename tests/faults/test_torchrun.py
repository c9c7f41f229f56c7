"""Jobs of torchrun that die and come back, with fewer and more workers: their checkpoints and what
follows are the epoch.
"""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.parquet_files import put_row_files
from tests.programs import torchrun

pytestmark = pytest.mark.slow

NUM_FILES, ROWS_PER_FILE = 60, 10
WORKER = """
import json, os, signal, sys
from pathlib import Path
import torch.distributed as distributed
import featstore

table, out, name, num_lives = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
checkpoint = out / "checkpoint.json"
# torchrun's store still holds where the workers of an earlier life listened.
meeting = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), wait_for_workers=False)
distributed.init_process_group("gloo", store=distributed.PrefixStore(f"life-{life}", meeting), rank=rank, world_size=world)


def rows_of(batch):
    return [] if batch is None else batch["row"].tolist()


with featstore.FeatureLoader(table, slots=["row"], batch_size=4, memory_budget=1000) as loader:
    history = []
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        loader.load_state_dict(saved["state"])
        history = saved["rows"]
    batches = iter(loader)
    mine = []
    if life < num_lives:
        for _ in range(3):
            mine += rows_of(next(batches, None))
        loader.ack()
        gathered = [None] * world
        distributed.all_gather_object(gathered, (loader.state_dict(), mine))
        if rank == 0:
            state = featstore.FeatureLoader.merge_states([state for state, _ in gathered])
            rows = history + [row for _, part in gathered for row in part]
            (out / "new.json").write_text(json.dumps({"state": state, "rows": rows}))
            (out / "new.json").rename(checkpoint)
        for _ in range(2):
            lost = rows_of(next(batches, None))
        distributed.barrier()
        (out / f"{name}-{life}-{rank}.died").write_text(json.dumps(lost))
        if rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    mine = [row for batch in batches for row in batch["row"].tolist()]
    gathered = [None] * world
    distributed.all_gather_object(gathered, mine)
    if rank == 0:
        (out / "all.json").write_text(json.dumps([history, *gathered]))
distributed.destroy_process_group()
"""


def launch(
    out: Path, name: str, num_processes: int, num_lives: int, max_restarts: int
) -> subprocess.CompletedProcess[str]:
    settings = ["--max-restarts", str(max_restarts), "--monitor-interval", "0.1"]
    given = [out / "table", out, name, num_lives]
    return torchrun(out / "worker.py", *given, num_processes=num_processes, settings=settings)


def processes_that_name(path: Path) -> list[str]:
    """The command lines in which the path occurs: nobody's, once all that it was given to have
    ended.
    """
    found = [
        command.read_bytes() for command in Path("/proc").glob("[0-9]*/cmdline") if command.exists()
    ]
    return [line.decode(errors="replace") for line in found if str(path).encode() in line]


def test_restarts_by_torchrun_with_fewer_and_more_workers_go_on_from_the_last_checkpoint(
    tmp_path: Path, is_campaign: bool
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    sizes = [ROWS_PER_FILE] * NUM_FILES
    put_row_files(tmp_path / "table", sizes, "{:03}.parquet", row_group_size=5)
    # Two workers die, in a campaign are started again and die again, and then one reads on and
    # dies; then three read the rest.
    num_lives = 2 if is_campaign else 1
    expected = [f"two-{life}-{rank}" for life in range(num_lives) for rank in range(2)]
    assert (
        launch(tmp_path, "two", 2, num_lives=num_lives, max_restarts=num_lives - 1).returncode != 0
    )
    if is_campaign:
        assert launch(tmp_path, "one", 1, num_lives=1, max_restarts=0).returncode != 0
        expected.append("one-0-0")
    last = launch(tmp_path, "three", 3, num_lives=0, max_restarts=0)
    assert last.returncode == 0, last.stderr[-5000:]
    assert sorted(path.stem for path in tmp_path.glob("*.died")) == sorted(expected)
    assert processes_that_name(tmp_path) == []
    assert sum(len(json.loads(path.read_text())) for path in tmp_path.glob("*.died")) > 0, (
        "nothing was read after a checkpoint"
    )
    history, *shares = json.loads((tmp_path / "all.json").read_text())
    assert len(history) > 0
    assert Counter(history) + Counter(row for share in shares for row in share) == Counter(
        range(NUM_FILES * ROWS_PER_FILE)
    )
