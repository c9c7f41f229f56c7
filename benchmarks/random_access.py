"""Random batches of rows for 1 to 32 workers of one host: memory of all processes together, and
rows/s, of a Python list in each worker, a tensor, SQLite with a query for each row, SampleStore,
SampleDataset, Hugging Face datasets, LMDB and ArrayRecord, beside numpy's gather from a mapped file.

Each side holds the same rows of 40 int64, and returns a batch as one matrix, which is compared with
what the rows are. Each side has a fresh process, which has loaded torch and all peers, and forks the
workers. What as many idle workers hold is measured first, and is taken off. The list is measured
with fewer rows, and its memory is scaled. Files are in the page cache.

Demanded with the most workers: SampleStore and SampleDataset add at most 2 % of the lists' memory,
and SampleDataset gives 10 times the rows of SQLite with a query for each row, 3 times those of
Hugging Face datasets and at least those of ArrayRecord, for the same CPU time. With fewer than a
million rows this is told, and not demanded: what a worker holds besides rows then counts too much.
What else is demanded of the decoded cache is measured by `decoded.py`.

    python benchmarks/random_access.py [--small] [--rows N] [--workers 1,4,16,32]

Several calls with `--figures FILE` and other sides each make one run: a call takes the figures of
the sides in the file, measures those that are named and not in it, and adds them.

    python benchmarks/random_access.py --figures figures.json --side LMDB --side ArrayRecord
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tabulate import tabulate

from random_access_parts.rows import ROW_BYTES, Rows
from random_access_parts.sides import SIDES
from random_access_parts.workers import Measured, measure
from shared_parts.machine import machine, print_result

BATCH_ROWS = 4_096
# All lists of all workers together have the larger number of rows. The rest of their memory is
# scaled from the difference to a few rows, so that what a worker holds besides rows is not.
FEW_LIST_ROWS, LIST_ROWS, DEMANDED_ROWS = 1_000, 640_000, 1_000_000
MOST_OF_LIST = 0.02
LIST, STORE = "Python list in each worker", "featstore SampleStore"
DATASET, ONE_COLUMN = "featstore SampleDataset", "featstore SampleDataset, one column"
# Times the rows of a peer, each in the same layout.
FACTORS = [
    (DATASET, 10, "SQLite, a query for each row"),
    (DATASET, 3, "Hugging Face datasets"),
    (ONE_COLUMN, 3, "Hugging Face datasets, one column"),
    (DATASET, 1, "ArrayRecord"),
]
Figures = dict[str, float]


def main() -> int:
    """Prints a table for each number of workers, and one line `RESULT {json}`."""
    options = _options()
    workers = [int(number) for number in options.workers.split(",")]
    run: dict[str, Any] = {
        "rows": options.rows, "batch_rows": BATCH_ROWS, "seconds": options.seconds,
        "workers": workers,
    }  # fmt: skip
    found = _measured(run, options)
    for number in workers:
        _print_table(number, found)
    demands = _demands({name: of["figures"][str(max(workers))] for name, of in found.items()})
    for said, is_met in demands.items():
        print(f"{'met' if is_met else 'MISSED'}: {said}")
    is_ok = all(demands.values()) or options.rows < DEMANDED_ROWS
    print_result({"ok": is_ok, **run, "sides": found, "demands": demands})
    return 0 if is_ok else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="200,000 rows, 0.5 s for each figure")
    parser.add_argument("--rows", type=int, help="5,000,000 by default")
    parser.add_argument("--workers", default="1,4,16,32")
    parser.add_argument("--seconds", type=float, help="for each figure; 5 by default")
    parser.add_argument("--directory", type=Path, help="where files are made; a temporary one")
    parser.add_argument(
        "--side", action="append", choices=list(SIDES), help="measures it; may be repeated"
    )
    parser.add_argument("--figures", type=Path, help="figures of other calls, which are added to")
    options = parser.parse_args()
    options.rows = options.rows or (200_000 if options.small else 5_000_000)
    options.seconds = options.seconds or (0.5 if options.small else 5.0)
    return options


def _measured(run: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The figures of each side, and beside what load they were seen: those of the file of figures,
    and those that are measured now.
    """
    found: dict[str, Any] = {}
    if options.figures is not None and options.figures.exists():
        kept = json.loads(options.figures.read_text())
        if kept["run"] != run:
            raise SystemExit(f"{options.figures}: expected figures of {run}, found {kept['run']}")
        found = kept["sides"]
    for name in options.side or SIDES:
        if name not in found:
            found[name] = _in_a_fresh_process(name, run, options.directory)
            if options.figures is not None:
                options.figures.write_text(json.dumps({"run": run, "sides": found}))
    return {name: found[name] for name in SIDES if name in found}


def _in_a_fresh_process(name: str, run: Mapping[str, Any], directory: Path | None) -> Any:
    # Of a process that had measured other sides before, more would be left in its memory.
    print(name, file=sys.stderr, flush=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure_side, name, run, directory).result()


def _measure_side(name: str, run: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
    """What idle workers hold, and what a side adds to them, by the number of workers."""
    idle = {n: measure(None, Rows(num_rows=0), n, BATCH_ROWS, 0).pss_bytes for n in run["workers"]}
    if SIDES[name]().is_in_each_worker:
        pairs = [_scaled(name, n, idle[n], run, directory) for n in run["workers"]]
    else:
        of_all = _of_rows(name, run["rows"], run["workers"], run, directory)
        pairs = [(of, of.pss_bytes - idle[n]) for n, of in of_all.items()]
    return {
        "load": machine().load_average,
        "idle_pss_bytes": {str(n): num_bytes for n, num_bytes in idle.items()},
        "figures": {str(n): _figures(*pair) for n, pair in zip(run["workers"], pairs, strict=True)},
    }


def _scaled(
    name: str, num_workers: int, idle_bytes: int, run: Mapping[str, Any], directory: Path | None
) -> tuple[Measured, int]:
    """What workers do that hold as many rows each as fit, and what they would add with all rows."""
    num_rows = LIST_ROWS // num_workers
    few, many = (
        _of_rows(name, number, [num_workers], run, directory)[num_workers]
        for number in (FEW_LIST_ROWS, num_rows)
    )
    scale = (run["rows"] - FEW_LIST_ROWS) / (num_rows - FEW_LIST_ROWS)
    held_bytes = few.pss_bytes + scale * (many.pss_bytes - few.pss_bytes)
    return many, round(held_bytes) - idle_bytes


def _of_rows(
    name: str, num_rows: int, workers: list[int], run: Mapping[str, Any], parent: Path | None
) -> dict[int, Measured]:
    """A side of so many rows, by the number of workers."""
    side, rows = SIDES[name](), Rows(num_rows=num_rows)
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        side.make(rows, Path(directory))
        found = {n: measure(side, rows, n, BATCH_ROWS, run["seconds"]) for n in workers}
        side.close()
    return found


def _figures(measured: Measured, added_bytes: int) -> Figures:
    return {
        "added_bytes": max(0, added_bytes),
        "rows_per_s": round(measured.rows_per_s),
        "cpu_us_per_row": round(measured.cpu_us_per_row, 3),
    }


def _demands(of: Mapping[str, Figures]) -> dict[str, bool]:
    """What is demanded of the sides that were measured, and whether it is met; costs are CPU time,
    since other programs may run beside.
    """
    found = {
        f"{name}: at most 2 % of the lists' memory": of[name]["added_bytes"]
        <= MOST_OF_LIST * of[LIST]["added_bytes"]
        for name in (STORE, DATASET, ONE_COLUMN)
        if name in of and LIST in of
    }
    for name, factor, peer in FACTORS:
        if name in of and peer in of:
            found[f"{name}: {factor} times the rows of {peer}"] = (
                of[name]["cpu_us_per_row"] * factor <= of[peer]["cpu_us_per_row"]
            )
    return found


def _print_table(num_workers: int, found: Mapping[str, Any]) -> None:
    number = str(num_workers)
    idle = sorted(of["idle_pss_bytes"][number] / 1e6 for of in found.values())
    print(f"\n{num_workers} workers; idle ones hold {idle[0]:,.0f} to {idle[-1]:,.0f} MB together")
    rows = [(name, of["figures"][number]) for name, of in found.items()]
    print(
        tabulate(
            [
                [
                    name,
                    f"{of['added_bytes'] / 1e6:,.0f}",
                    f"{of['rows_per_s'] / 1e3:,.0f}",
                    f"{of['cpu_us_per_row']:.2f}",
                    f"{of['rows_per_s'] * ROW_BYTES / 1e6:,.0f}",
                ]
                for name, of in rows
            ],
            headers=["side", "MB added, all processes", "1,000 rows/s", "CPU us/row", "MB/s"],
            colalign=("left", "right", "right", "right", "right"),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
