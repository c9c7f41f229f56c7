"""Training processes that share an epoch of a table whose rows are numbered: killed and resumed on
as many or on more of them, and with a slow one among them.
"""

import contextlib
import json
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compare_parts.checksum import missing_and_twice
from compare_parts.job import Job
from compare_parts.program import PeerError, Process, Program

NUM_FILES, FILE_ROWS, BATCH_SIZE = 16, 8_192, 512
NUM_ROWS = NUM_FILES * FILE_ROWS
SLOWDOWN, NUM_KILLED, NUM_MORE = 5.0, 2, 3
RESERVE_S = 2.0  # of featstore's Dispatch, by default


def write_rows(directory: Path) -> list[str]:
    """The table: `row` counts from 1, `list` has one id, and `click` is the label."""
    folder = directory / "numbered"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:02}.parquet" for number in range(NUM_FILES)]
    for number, path in enumerate(paths):
        rows = np.arange(FILE_ROWS) + number * FILE_ROWS + 1
        lists = pa.ListArray.from_arrays(np.arange(FILE_ROWS + 1, dtype=np.int32), rows)
        clicks = (rows % 10 == 0).astype(np.int8)
        table = pa.table({"row": rows, "list": lists, "click": clicks})
        pq.write_table(table, path, row_group_size=FILE_ROWS // 2)
    return [str(path) for path in paths]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Epochs of one peer.

    Attributes:
        program: Starts its processes.
        job: What a single process would read.
        one_process: Whether one process hands out the batches of all ranks.
    """

    program: Program
    job: Job
    one_process: bool = False

    def slow(self, ideal_s: float) -> dict[str, Any]:
        """An epoch of three of which one takes five times as long for a row: its time over the
        ideal, total work over total speed, and the most that featstore may take: 5 % more, the
        rows that a worker keeps for itself, and a slow batch.
        """
        speeds = 2 + 1 / SLOWDOWN
        row_s = ideal_s * speeds / NUM_ROWS
        with self._scratch("slow") as saves:
            took_s = self._run(saves, NUM_MORE, row_s=row_s, slowdown=SLOWDOWN)
            missing, twice = missing_and_twice(_rows(saves), NUM_ROWS)
        return {
            "of_ideal": round(took_s / ideal_s, 2),
            "most": round(
                (1.05 * ideal_s + RESERVE_S + BATCH_SIZE * SLOWDOWN * row_s) / ideal_s, 2
            ),
            "missing": missing,
            "twice": twice,
        }

    def killed(self, *, shuffle: bool, seed: int) -> dict[str, Any]:
        """An epoch of two that are killed at a random batch, and what is missing or came twice
        when as many, or three, go on with it.
        """
        of = replace(self, job=replace(self.job, shuffle=shuffle))
        # In the first half of what falls to a rank.
        at = random.Random(seed).randrange(2, NUM_ROWS // BATCH_SIZE // NUM_KILLED // 2)
        found: dict[str, Any] = {"batch": at}
        with self._scratch("killed") as saves:
            of._kill(saves, at)
            states = [str(saves / f"{rank}.state") for rank in range(NUM_KILLED)]
            for num_ranks in (NUM_KILLED, NUM_MORE):
                with self._scratch(f"resumed-{num_ranks}") as later:
                    try:
                        of._run(later, num_ranks, states=states)
                    except PeerError as error:
                        found[f"on_{num_ranks}"] = "refused"
                        found[f"error_on_{num_ranks}"] = str(error)
                        continue
                    rows = np.concatenate([_rows(saves), _rows(later)])
                found[f"on_{num_ranks}"] = list(missing_and_twice(rows, NUM_ROWS))
        return found

    @contextlib.contextmanager
    def _scratch(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix=name, dir=self.job.scratch) as made:
            yield Path(made)

    def _kill(self, saves: Path, stop_after: int) -> None:
        with self._started(saves, NUM_KILLED, row_s=5e-6, stop_after=stop_after) as processes:
            _begin(processes)
            for process in processes:
                process.told("saved")

    def _run(self, saves: Path, num_ranks: int, **asked: Any) -> float:
        """Seconds from the first batch until the last row was delivered."""
        with self._started(saves, num_ranks, **asked) as processes:
            _begin(processes)
            told = [json.loads(process.told("{")) for process in processes]
        return float(max(of["end_s"] for of in told) - min(of["begin_s"] for of in told))

    @contextlib.contextmanager
    def _started(self, saves: Path, num_ranks: int, **asked: Any) -> Iterator[list[Process]]:
        """Processes that are killed at the end of the block."""
        told: dict[str, Any] = {"saves": str(saves), "states": [], "stop_after": 0, "row_s": 0.0}
        told |= {"slowdown": 1.0, **asked}
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
        with contextlib.ExitStack() as stack:
            processes = []
            for rank in range(1 if self.one_process else num_ranks):
                job = replace(self.job, rank=rank, num_ranks=num_ranks, scratch=str(saves))
                told["environment"] = shared | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
                process = self.program.started("epoch", job, **told)
                processes.append(stack.enter_context(process))
            yield processes


def _begin(processes: Sequence[Process]) -> None:
    for process in processes:
        process.told("ready")
    for process in processes:
        process.tell()


def _rows(saves: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(saves.glob("*.npy"))])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
