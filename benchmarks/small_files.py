"""An epoch of many small files, as Spark leaves them: what each file costs.

Tables of eight columns: 3,000 files of one row, which are read in order, and with 300 and 3,000 of
them open at once; the same with 100 rows each; 300 files of 4 row groups of 50 rows; and these
staged from a server on this machine. CPU seconds are those of all threads of a process of its own,
from opening the table to the end of the epoch, as the median of its runs; it has imported
everything before by reading another such table. Every row is counted. Ends with one line
`RESULT {json}`; exit code 1 if a demanded figure is missed, or a row.

    python benchmarks/small_files.py [--small]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import featstore
from shared_parts.machine import print_result
from staging_parts.table import Remote, at, served

# Demanded, in CPU milliseconds for each file of one row, all included. Of fewer files the first batch
# weighs more.
MOST_MS, MOST_SMALL_MS = 1.0, 2.0
NUM_FILES, NUM_SMALL, FEWER, BATCH_SIZE = 3_000, 600, 300, 256
SHUFFLED = [{}, {"shuffle": {"interleave": 300}}, {"shuffle": {"interleave": 3_000}}]


def main() -> int:
    """Prints one line a case and one line `RESULT {json}`; 1 where a figure is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="600 files, read twice each")
    parser.add_argument("--read", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        print(json.dumps(_read(*arguments.read)))
        return 0
    num_files, repeats = (NUM_SMALL, 2) if arguments.small else (NUM_FILES, 5)
    with tempfile.TemporaryDirectory() as made:
        figures = _measured(Path(made), num_files, repeats)
    most_s = num_files / 1_000 * (MOST_SMALL_MS if arguments.small else MOST_MS)
    ok = all(cpu_s <= most_s for name, cpu_s in figures.items() if name.startswith("one row"))
    print_result({"ok": ok, "num_files": num_files, "cpu_s": figures, "demanded_s": most_s})
    return 0 if ok else 1


def _measured(root: Path, num_files: int, repeats: int) -> dict[str, float]:
    warm = _written(root / "warm", 20, 10, 10)
    one = _written(root / "one", num_files, 1, 1)
    hundred = _written(root / "hundred", num_files, 100, 100)
    groups = _written(root / "groups", FEWER, 200, 50)
    cases: dict[str, tuple[str, Mapping[str, Any]]] = {
        name: (table, options)
        for of, table in (("one row", one), ("100 rows", hundred))
        for name, options in zip(
            (f"{of}, in order", f"{of}, 300 mixed", f"{of}, 3000 mixed"), SHUFFLED, strict=True
        )
    }
    cases["4 row groups of 50"] = groups, {}
    figures = {name: _cpu_s(warm, *case, repeats=repeats) for name, case in cases.items()}
    with served(root, Remote(name="store", latency_s=0.0, bytes_per_s=0)) as url:
        remote = (groups, {"staging": {"mode": "whole"}}, url)
        figures["4 row groups of 50, staged"] = _cpu_s(warm, *remote, repeats=repeats)
    return figures


def _written(directory: Path, num_files: int, num_rows: int, group_rows: int) -> str:
    draw = np.random.default_rng(0)
    directory.mkdir()
    for index in range(num_files):
        ids = {f"id{i}": draw.integers(1, 1_000, num_rows) for i in range(5)}
        floats = {f"x{i}": draw.random(num_rows, np.float32) for i in range(2)}
        click = {"click": draw.integers(0, 2, num_rows).astype(np.float32)}
        path = directory / f"part-{index:05}.parquet"
        pq.write_table(pa.table({**ids, **floats, **click}), path, row_group_size=group_rows)
    return str(directory)


def _cpu_s(
    warm: str, table: str, options: Mapping[str, Any], url: str = "", *, repeats: int
) -> float:
    """Median CPU seconds of processes that read the table, or its files at a URL."""
    found = list[float]()
    command = [sys.executable, __file__, "--read", warm, table, json.dumps(options), url]
    for _ in range(repeats):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found.append(json.loads(done.stdout))
    cpu_s = round(statistics.median(found), 3)
    print(f"{Path(table).name}, {dict(options)} {url}: {cpu_s} s", flush=True)
    return cpu_s


def _read(warm: str, table: str, options: str, url: str) -> float:
    """CPU seconds of opening and reading a table."""
    for name in (warm, table):
        begun, num_rows = time.process_time(), 0
        snapshot = featstore.open_table(name).snapshot
        if url:
            snapshot = at(snapshot, f"{url}/{Path(name).name}")
        with featstore.FeatureLoader(
            snapshot,
            slots=["id*", "x*"],
            labels=["click"],
            batch_size=BATCH_SIZE,
            **json.loads(options),
        ) as loader:
            for batch in loader:
                num_rows += batch["id0"].shape[0]
        cpu_s = time.process_time() - begun
        if num_rows != snapshot.num_rows:
            raise SystemExit(f"{name}: expected {snapshot.num_rows} rows, found {num_rows}")
    return cpu_s


if __name__ == "__main__":
    sys.exit(main())
