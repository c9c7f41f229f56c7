"""Random batches of rows for 1 to 32 workers of one host: memory of all processes together, and
rows/s, of a Python list in each worker, a tensor, SQLite with a query for each row, SampleStore,
SampleDataset, Hugging Face datasets, LMDB and ArrayRecord, beside numpy's gather from a mapped file.

Each side holds the same rows of 40 int64, and returns a batch as one matrix, which is compared with
what the rows are. Workers are forked from a process that has loaded torch and all peers. What such
workers hold before they open anything is measured first, and is taken off. The list is measured
with fewer rows, and its memory is scaled. Files are in the page cache.

Demanded with the most workers: SampleStore and SampleDataset add at most 2 % of the lists' memory,
and SampleDataset gives 10 times the rows of SQLite with a query for each row, 3 times those of
Hugging Face datasets and at least those of ArrayRecord, for the same CPU time. With fewer than a
million rows this is told, and not demanded: what a worker holds besides rows then counts too much.

    python benchmarks/random_access.py [--small] [--rows N] [--workers 1,4,16,32]
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

from random_access_parts.rows import ROW_BYTES, Rows
from random_access_parts.sides import SIDES
from random_access_parts.workers import Measured, measure
from shared_parts.machine import print_result

BATCH_ROWS = 4_096
LIST_ROWS, DEMANDED_ROWS = 20_000, 1_000_000
MOST_OF_LIST = 0.02
FACTORS = {"SQLite, a query for each row": 10, "Hugging Face datasets": 3, "ArrayRecord": 1}


def main() -> int:
    """Prints a table for each number of workers, and one line `RESULT {json}`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="200,000 rows, 0.5 s for each figure")
    parser.add_argument("--rows", type=int, help="5,000,000 by default")
    parser.add_argument("--workers", default="1,4,16,32")
    parser.add_argument("--seconds", type=float, help="for each figure; 5 by default")
    parser.add_argument("--directory", type=Path, help="where files are made; a temporary one")
    options = parser.parse_args()
    options.rows = options.rows or (200_000 if options.small else 5_000_000)
    options.seconds = options.seconds or (0.5 if options.small else 5.0)
    workers = [int(number) for number in options.workers.split(",")]
    idle = {n: measure(None, Rows(num_rows=0), n, BATCH_ROWS, 0).pss_bytes for n in workers}
    found = {name: _measure_side(name, options, workers, idle) for name in SIDES}
    for number in workers:
        _print_table(number, found, idle)
    most = max(workers)
    demands = _demands({name: figures[most] for name, figures in found.items()})
    for said, is_met in demands.items():
        print(f"{'met' if is_met else 'MISSED'}: {said}")
    is_ok = all(demands.values()) or options.rows < DEMANDED_ROWS
    print_result(
        {
            "ok": is_ok,
            "rows": options.rows,
            "batch_rows": BATCH_ROWS,
            "idle_pss_bytes": idle,
            "sides": found,
            "demands": demands,
        }
    )
    return 0 if is_ok else 1


def _demands(of: dict[str, dict[str, float]]) -> dict[str, bool]:
    """What is demanded with the most workers, and whether it is met; costs are CPU time, since
    other programs may run beside.
    """
    lists, dataset = of["Python list in each worker"], of["featstore SampleDataset"]
    found = {
        f"{name}: at most 2 % of the lists' memory": of[name]["added_bytes"]
        <= MOST_OF_LIST * lists["added_bytes"]
        for name in ("featstore SampleStore", "featstore SampleDataset")
    }
    for peer, factor in FACTORS.items():
        found[f"featstore SampleDataset: {factor} times the rows of {peer}"] = (
            dataset["cpu_us_per_row"] * factor <= of[peer]["cpu_us_per_row"]
        )
    return found


def _measure_side(
    name: str, options: argparse.Namespace, workers: list[int], idle: dict[int, int]
) -> dict[int, dict[str, float]]:
    """What a side adds to idle workers, by the number of workers."""
    side = SIDES[name]()
    rows = Rows(num_rows=LIST_ROWS if side.is_in_each_worker else options.rows)
    scale = options.rows / rows.num_rows
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        side.make(rows, Path(directory))
        found = {n: _figures(_run(name, side, rows, n, options), idle[n], scale) for n in workers}
        side.close()
    return found


def _run(
    name: str, side: Any, rows: Rows, num_workers: int, options: argparse.Namespace
) -> Measured:
    print(f"{name}, {num_workers} workers", file=sys.stderr, flush=True)
    return measure(side, rows, num_workers, BATCH_ROWS, options.seconds)


def _figures(measured: Measured, idle_bytes: int, scale: float) -> dict[str, float]:
    return {
        "added_bytes": round(max(0, measured.pss_bytes - idle_bytes) * scale),
        "rows_per_s": round(measured.rows_per_s),
        "cpu_us_per_row": round(measured.cpu_us_per_row, 3),
    }


def _print_table(
    num_workers: int, found: dict[str, dict[int, dict[str, float]]], idle: dict[int, int]
) -> None:
    print(f"\n{num_workers} workers; idle ones hold {idle[num_workers] / 1e6:,.0f} MB together")
    print(
        tabulate(
            [
                [
                    name,
                    f"{figures[num_workers]['added_bytes'] / 1e6:,.0f}",
                    f"{figures[num_workers]['rows_per_s'] / 1e3:,.0f}",
                    f"{figures[num_workers]['cpu_us_per_row']:.2f}",
                    f"{figures[num_workers]['rows_per_s'] * ROW_BYTES / 1e6:,.0f}",
                ]
                for name, figures in found.items()
            ],
            headers=["side", "MB added, all processes", "1,000 rows/s", "CPU us/row", "MB/s"],
            colalign=("left", "right", "right", "right", "right"),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
