"""What page checksums cost: CPU time of reading files that have them, beside the same files
without.

The same rows are written twice by Arrow, once with `write_page_checksum`. Both are read by the
loader, every column, in turn: in place, where each page is checked as it is decoded; over HTTP into
an empty cache, where each page is checked before the file is published; and from the cache, where
none is checked again. Writing and the size of the files are told too. CPU times are of the whole
process; the server is another one. At most 1.05 is demanded of both first reads, and 1.02 of the
later ones.

    python benchmarks/page_checksums.py [--small]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from featstore import FeatureLoader, open_table
from featstore.table.snapshot import Snapshot
from loader_parts.measuring import by_clocks
from loader_parts.workload import NARROW, Workload, rows_of
from shared_parts.machine import print_result
from staging_parts.table import Remote, at, served

FIRST_MOST, LATER_MOST = 1.05, 1.02
LOOPBACK = Remote(name="loopback", latency_s=0.0, bytes_per_s=10e9)
SIDES = {"without": False, "with": True}


def main() -> int:
    """Prints the ratios and one line `RESULT {json}`; 1 where a ratio is above what is demanded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="half the files, fewer rounds")
    small = parser.parse_args().small
    workload = replace(NARROW, num_files=4 if small else 8)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        written = {
            side: _write(workload, root / side, summed=summed) for side, summed in SIDES.items()
        }
        figures = _figures(root, 9 if small else 15)
    figures["writing"] = _ratio({side: took for side, (took, _) in written.items()})
    figures["size"] = {"ratio": round(written["with"][1] / written["without"][1], 4)}
    most = {"in_place": FIRST_MOST, "staged_first": FIRST_MOST, "staged_again": LATER_MOST}
    is_ok = all(figures[case]["ratio"] <= limit for case, limit in most.items())
    print_result({"with_over_without": figures, "most": most, "ok": is_ok})
    return int(not is_ok)


def _figures(root: Path, repeats: int) -> dict[str, dict[str, float]]:
    tables = {side: open_table(str(root / side)).snapshot for side in SIDES}
    with served(root / "without", LOOPBACK) as plain, served(root / "with", LOOPBACK) as summed:
        remote = {"without": at(tables["without"], plain), "with": at(tables["with"], summed)}
        fresh = count()
        runs: dict[str, Callable[[str], Iterator[Any]]] = {
            "in_place": lambda side: _read(tables[side], None),
            "staged_first": lambda side: _read(remote[side], root / f"cache-{next(fresh)}"),
            "staged_again": lambda side: _read(remote[side], root / f"warm-{side}"),
        }
        found = {}
        for case, run in runs.items():
            sides = {side: partial(run, side) for side in SIDES}
            (seconds,) = by_clocks(sides, repeats, [time.process_time])
            found[case] = _ratio(seconds)
            print(f"{case}: {found[case]}", flush=True)
    return found


def _read(table: Snapshot, cache: Path | None) -> Iterator[Any]:
    staging = None if cache is None else {"directory": str(cache), "mode": "whole"}
    with FeatureLoader(table, slots=["*"], batch_size=4096, staging=staging) as loader:
        yield from loader


def _write(workload: Workload, directory: Path, *, summed: bool) -> tuple[list[float], int]:
    """CPU seconds for each file, and the bytes of all of them."""
    directory.mkdir()
    taken = []
    for number in range(workload.num_files):
        rows, path = rows_of(workload, number), directory / f"part-{number}.parquet"
        since = time.process_time()
        pq.write_table(
            rows, path, row_group_size=workload.rows_per_row_group, write_page_checksum=summed
        )
        taken.append(time.process_time() - since)
    return taken, sum(path.stat().st_size for path in directory.iterdir())


def _ratio(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The median of the pairs, and the least time of one side over that of the other."""
    pairs = [own / other for own, other in zip(seconds["with"], seconds["without"], strict=True)]
    least = {side: min(taken) for side, taken in seconds.items()}
    return {
        "ratio": round(statistics.median(pairs), 3),
        "of_least": round(least["with"] / least["without"], 3),
        "without_s": round(least["without"], 3),
    }


if __name__ == "__main__":
    sys.exit(main())
