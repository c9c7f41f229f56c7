"""A DataLoader's worker that dies is said to have died, however workers are started."""

import re
from pathlib import Path

import pytest

import featstore
from tests.programs import run_python

READING = """
import os, signal, sys, time
from torch.utils.data import DataLoader
from featstore.loader.feature_loader import FeatureLoader

class Dying:
    def __init__(self, number, way):
        self.number, self.way, self.num_seen = number, way, 0

    def __call__(self, batch):
        self.num_seen += 1
        if self.num_seen == self.number:
            time.sleep(1)  # until its main thread waits for this batch and holds no lock of torch's
            os.kill(os.getpid(), signal.SIGKILL) if self.way == "killed" else os._exit(3)
        return batch

def read(table_url, context, number, way):
    transform = Dying(int(number), way) if number != "0" else None
    loader = FeatureLoader(table_url, slots=["*"], batch_size=23, transform=transform)
    options = {"num_workers": 2, "multiprocessing_context": context, "prefetch_factor": 1}
    batches, kept = iter(DataLoader(loader, batch_size=None, **options)), []
    for batch in batches:
        kept.append(batch)
        assert all(old["pair"][:, 1].tolist() == [-row for row in old["row"].tolist()] for old in kept)
        if number == "0" and len(kept) == 2:
            # What a process holds of these when it is killed stays locked, and torch waits for it.
            with batches._workers_done_event._cond, batches._worker_result_queue._wlock:
                os.kill(batches._workers[1].pid, signal.SIGKILL)
                batches._workers[1].join()

if __name__ == "__main__":
    try:
        read(*sys.argv[1:])
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(0)  # torch's handler of SIGCHLD may raise once more, wherever the process is by then
"""
DIED = (
    r"(Runtime|Worker)Error: DataLoader worker \(pid(\(s\))? [\d, ]+\) (exited unexpectedly|is "
    r"killed by signal|died)"
)


@pytest.mark.parametrize(
    ("context", "number", "way"),
    [
        pytest.param(
            "fork", 1, "killed", id="fork, before its first batch", marks=pytest.mark.slow
        ),
        pytest.param("fork", 3, "exits", id="fork, with its third", marks=pytest.mark.slow),
        pytest.param("fork", 0, "killed", id="fork, while batches are kept"),
        pytest.param(
            "spawn", 1, "killed", id="spawn, before its first batch", marks=pytest.mark.slow
        ),
        pytest.param("spawn", 3, "exits", id="spawn, with its third", marks=pytest.mark.slow),
        pytest.param(
            "spawn", 0, "killed", id="spawn, while batches are kept", marks=pytest.mark.slow
        ),
        pytest.param(
            "forkserver",
            0,
            "killed",
            id="forkserver, while batches are kept",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_worker_that_dies_is_said_to_have_died(
    table_url: str, tmp_path: Path, context: str, number: int, way: str
) -> None:
    script = tmp_path / "reading.py"  # spawned workers import it
    script.write_text(READING)
    done = run_python(
        script,
        table_url,
        context,
        number,
        way,
        status=None,
        variables={"PYTHONPATH": str(Path(featstore.__file__).parents[1])},
        warnings="ignore",
    )
    assert re.match(DIED, done.stdout), (done.stdout, done.stderr[-2000:])
