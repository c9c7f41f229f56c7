"""What it costs independent workers to end each epoch together, in a healthy run.

Processes over one sqlite store train several epochs of a pass, each batch followed by a step of a
few milliseconds, one worker three times as slow as the others. The same is done once as independent
workers (`in_step: false`: an epoch is over when every lease is final) and once with `in_step: true`
(over once every holder has shown that it lives), in turn, pair by pair. Every row is counted. Ends
with one line `RESULT {json}`; exit code 1 if a row is missing or comes twice. No figure is
demanded.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import featstore
from shared_parts.machine import print_result

NUM_WORKERS, SLOWDOWN, STEP_S = 3, 3.0, 0.004
FILE_ROWS, GROUP_ROWS, BATCH_ROWS = 40_000, 4_000, 1_000
SPAWN = multiprocessing.get_context("spawn")


def main() -> int:
    """Prints the figures and one line `RESULT {json}`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="fewer and shorter epochs")
    small = parser.parse_args().small
    num_files, num_epochs, num_pairs = (12, 3, 3) if small else (30, 5, 7)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    wrong = 0
    with tempfile.TemporaryDirectory() as made:
        table = _table(Path(made), num_files)
        for pair in range(num_pairs):
            for in_step in (pair % 2 == 0, pair % 2 == 1):
                took_s, counts = _run(table, f"{made}/{pair}-{in_step}", in_step, num_epochs)
                seconds[in_step].append(took_s)
                wrong += int((counts != num_epochs).sum())
                kind = "in step" if in_step else "independent"
                print(f"pair {pair}, {kind}: {took_s / num_epochs:.2f} s an epoch")
    ratios = [apart / step for apart, step in zip(seconds[False], seconds[True], strict=True)]
    result = {
        "workers": NUM_WORKERS,
        "epochs": num_epochs,
        "epoch_s_independent": round(statistics.median(seconds[False]) / num_epochs, 3),
        "epoch_s_in_step": round(statistics.median(seconds[True]) / num_epochs, 3),
        "ratio_median": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "rows_wrong": wrong,
        "ok": wrong == 0,
    }
    print_result(result)
    return int(not result["ok"])


def _run(table: str, directory: str, in_step: bool, num_epochs: int) -> tuple[float, np.ndarray]:
    """Seconds from the first batch to the last worker's end, and how often each row came."""
    Path(directory).mkdir()
    barrier = SPAWN.Barrier(NUM_WORKERS + 1)
    workers = [
        SPAWN.Process(target=_work, args=(table, directory, number, in_step, num_epochs, barrier))
        for number in range(NUM_WORKERS)
    ]
    for worker in workers:
        worker.start()
    barrier.wait(120)
    began = time.monotonic()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"a worker ended with exit code {worker.exitcode}")
    took_s = time.monotonic() - began
    rows = np.concatenate([np.load(path) for path in Path(directory).glob("*.npy")])
    num_rows = sum(file.num_rows for file in featstore.open_table(table).data_files())
    return took_s, np.bincount(rows, minlength=num_rows)


def _work(
    table: str, directory: str, number: int, in_step: bool, num_epochs: int, barrier: Barrier
) -> None:
    dispatch = {"store": f"sqlite://{directory}/store.sqlite", "run_id": "a", "in_step": in_step}
    step_s = STEP_S * (SLOWDOWN if number == 0 else 1)
    rows = []
    with featstore.FeatureLoader(
        table, slots=["row"], batch_size=BATCH_ROWS, num_epochs=num_epochs, dispatch=dispatch
    ) as loader:
        barrier.wait(120)
        for batch in loader:
            rows.append(batch["row"].numpy().copy())
            time.sleep(step_s)
    np.save(f"{directory}/{number}.npy", np.concatenate(rows or [np.empty(0, np.int64)]))


def _table(directory: Path, num_files: int) -> str:
    (directory / "table").mkdir()
    for file in range(num_files):
        row = pa.array(range(file * FILE_ROWS, (file + 1) * FILE_ROWS), pa.int64())
        pq.write_table(
            pa.table({"row": row}),
            directory / "table" / f"{file:03}.parquet",
            row_group_size=GROUP_ROWS,
        )
    return str(directory / "table")


if __name__ == "__main__":
    sys.exit(main())
