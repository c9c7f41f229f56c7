"""What a mixture costs: an epoch over two tables, drawn by equal weights, beside an epoch over one
table that holds the same rows in the same files.

Both loaders read the same columns in batches of 4,096 rows, with the same memory budget and number
of threads, of which each table of the mixture has half. Epochs run in turn, after one of each that
is not counted, once in the order of the files and once shuffled. The figures are medians, over
these pairs, of the mixture's rate over that of the single table: by the clock and by the CPU time of
the process. Demanded of all four: at least 0.8. That the mixture gave every row once, and as many
batches of one table as of the other, is checked in each epoch.

    python benchmarks/mixing.py [--small]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from featstore.loader.feature_loader import FeatureLoader
from featstore.tensors.batch import Batch
from loader_parts.plain_workload import LABEL, PlainWorkload
from shared_parts.machine import print_result

BATCH_ROWS, NUM_LINKS, REQUIRED = 4_096, 16, 0.8
CASES = {"in_order": None, "shuffled": True}


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a ratio is below what is demanded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="half of the rows, fewer pairs")
    is_small = parser.parse_args().small
    torch.set_num_threads(1)
    workload = PlainWorkload(num_files=8 if is_small else 16)
    num_rows, num_pairs = workload.num_rows * NUM_LINKS, 3 if is_small else 9
    found: dict[str, Any] = {"rows": num_rows}
    with tempfile.TemporaryDirectory() as made:
        whole, halves = tables(workload, Path(made))
        for case, shuffle in CASES.items():
            options = {**selection(workload), "batch_size": BATCH_ROWS, "shuffle": shuffle}
            found[case] = pairs(whole, halves, options, num_rows, num_pairs)
            print(f"{case}: {found[case]}", flush=True)
    ratios = [found[case][f"{by}_ratio"] for case in CASES for by in ("clock", "cpu")]
    print_result(found | {"required": REQUIRED, "ok": min(ratios) >= REQUIRED})
    return int(min(ratios) < REQUIRED)


def tables(workload: PlainWorkload, directory: Path) -> tuple[str, list[str]]:
    """Writes the rows: a table of all files, and two tables with half of the same files each. Each
    file is there several times, so that an epoch takes longer than its begin.
    """
    whole, *halves = (directory / name for name in ("whole", "first", "second"))
    for table in (whole, *halves):
        table.mkdir()
    for number, file in enumerate(map(Path, workload.write(directory))):
        for link in range(NUM_LINKS):
            for table in (whole, halves[number % 2]):
                os.link(file, table / f"{link}-{file.name}")
    return str(whole), [str(half) for half in halves]


def selection(workload: PlainWorkload) -> dict[str, Any]:
    """The columns that are read."""
    slots = [name for name in workload.columns if name != LABEL]
    return {"slots": slots, "labels": [LABEL]}


def pairs(
    whole: str, halves: list[str], options: dict[str, Any], num_rows: int, num_pairs: int
) -> dict[str, float]:
    """Epochs of both loaders in turn: the medians of the ratios, and of the single table's rates."""
    clock, cpu, rates = list[float](), list[float](), list[float]()
    mixed = [{"table": half, "weight": 1} for half in halves]
    with (
        FeatureLoader.from_config({"table": whole, **options}) as single,
        FeatureLoader.from_config({"tables": mixed, **options}) as mixture,
    ):
        for number in range(num_pairs + 1):
            one = epoch(single, num_rows)
            other = epoch(mixture, num_rows)
            if number:
                clock.append(one[0] / other[0])
                cpu.append(one[1] / other[1])
                rates.append(num_rows / one[0])
        batches = [table["batches"] for table in mixture.stats()["tables"].values()]
    if len(set(batches)) > 1:
        raise RuntimeError(f"batches of the tables: expected equal numbers, found {batches}")
    return {
        "clock_ratio": round(statistics.median(clock), 3),
        "cpu_ratio": round(statistics.median(cpu), 3),
        "single_rows_per_s": round(statistics.median(rates)),
    }


def epoch(batches: Iterable[Batch], num_rows: int) -> tuple[float, float]:
    """Reads an epoch, each batch with all of its columns; seconds by the clock and of the CPU."""
    began, began_cpu, num_read = time.perf_counter(), time.process_time(), 0
    for batch in batches:
        for name in batch.slots:
            batch[name]
        num_read += batch.num_rows
    if num_read != num_rows:
        raise RuntimeError(f"an epoch: expected {num_rows} rows, found {num_read}")
    return time.perf_counter() - began, time.process_time() - began_cpu


if __name__ == "__main__":
    sys.exit(main())
