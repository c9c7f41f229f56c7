"""Epochs over a remote table by each staging mode: `auto` against the best of the others, and
staging against reading in place.

Three remotes (a server of latency and bandwidth, see staging_parts/server.py; the disk-like one
works on one request at a time, as a disk with one head does), four selections of 200 slots, a cold
cache each time, no model: what an epoch takes is what the data take. All modes of a cell run in
turn, `--repeats` times, and more often where that takes less than half a minute; medians are
compared.

    python benchmarks/staging_modes.py [--small] [--repeats N] [--directory DIR]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from featstore.files import storage
from featstore.loader.feature_loader import FeatureLoader
from featstore.table.snapshot import Snapshot
from shared_parts.machine import print_result
from staging_parts.table import Remote, at, disk_speeds, served, write_flat

REMOTES = (
    Remote(name="near", latency_s=0.001, bytes_per_s=200e6),
    Remote(name="regional", latency_s=0.020, bytes_per_s=50e6),
    Remote(name="disk-like", latency_s=0.010, bytes_per_s=40e6, has_one_head=True),
)
MODES = ("whole", "ranges", "auto")
IN_PLACE = "in place"
PERCENTS = (5, 20, 60, 100)
NUM_SLOTS, NUM_FILES = 200, 3
MOST_OF_BEST, SAVED = 1.1, 0.3
LEAST_CELL_S, LEAST_SMALL_CELL_S, MOST_REPEATS = 30.0, 8.0, 9


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where `auto` is more than 1.1 times the
    best of the others.
    """
    arguments = _parse()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.directory or temporary)
        speeds = disk_speeds(Path(temporary))
        print(f"local disk: {speeds}", flush=True)
        snapshot = write_flat(
            directory / f"t{arguments.file_bytes}",
            num_files=NUM_FILES,
            file_bytes=arguments.file_bytes,
        )
        cells = [cell for remote in REMOTES for cell in _cells(snapshot, remote, arguments)]
    worst = max(cells, key=lambda cell: float(cell["auto_of_best"]))
    missed = [f"{cell['remote']} {cell['percent']} %" for cell in cells if cell["saved"] < SAVED]
    ok = worst["auto_of_best"] <= MOST_OF_BEST
    result = {
        "ok": ok,
        "auto_of_best": worst["auto_of_best"],
        "required_at_most": MOST_OF_BEST,
        "saves_less_than_30_percent": missed,
        "local_disk": speeds,
        "cells": cells,
    }
    print_result(result)
    return 0 if ok else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small", action="store_true", help="files of 48 MB instead of 96 MB, once each"
    )
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--directory", help="keep the data here, and use it again")
    arguments = parser.parse_args()
    arguments.file_bytes = 48_000_000 if arguments.small else 96_000_000
    arguments.repeats = arguments.repeats or (1 if arguments.small else 3)
    arguments.cell_s = LEAST_SMALL_CELL_S if arguments.small else LEAST_CELL_S
    return arguments


def _cells(
    snapshot: Snapshot, remote: Remote, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    directory = Path(snapshot.data_files[0].url).parent
    with served(directory, remote) as url:
        return [
            _cell(at(snapshot, url), remote, percent, arguments.repeats, arguments.cell_s)
            for percent in PERCENTS
        ]


def _cell(
    snapshot: Snapshot, remote: Remote, percent: int, repeats: int, least_s: float
) -> dict[str, Any]:
    slots = (
        [f"s{i:03}" for i in range(0, NUM_SLOTS, 100 // percent)]
        if percent != 60
        else _three_of_five()
    )
    runs: dict[str, list[float]] = {how: [] for how in (*MODES, IN_PLACE)}
    since, num_runs = time.perf_counter(), 0
    while num_runs < repeats or (num_runs < MOST_REPEATS and time.perf_counter() - since < least_s):
        num_runs += 1
        for mode in MODES:
            runs[mode].append(_epoch_s(snapshot, slots, mode))
        runs[IN_PLACE].append(_in_place_s(snapshot, slots))
    seconds = {how: round(statistics.median(values), 3) for how, values in runs.items()}
    best = min(seconds[mode] for mode in MODES if mode != "auto")
    cell = {
        "remote": remote.name,
        "percent": percent,
        "seconds": seconds,
        "auto_of_best": round(seconds["auto"] / best, 3),
        "saved": round(1 - seconds["auto"] / seconds[IN_PLACE], 3),
    }
    print(cell, flush=True)
    return cell


def _three_of_five() -> list[str]:
    return [f"s{i:03}" for i in range(NUM_SLOTS) if i % 5 < 3]


def _epoch_s(snapshot: Snapshot, slots: list[str], mode: str) -> float:
    expected = sum(file.num_rows for file in snapshot.data_files)
    since = time.perf_counter()
    with FeatureLoader(snapshot, slots=slots, staging={"mode": mode}) as loader:
        num_rows = sum(batch.num_rows for batch in loader)
        seconds = time.perf_counter() - since
    if num_rows != expected:
        raise SystemExit(f"{mode}: {num_rows} rows instead of {expected}")
    return seconds


def _in_place_s(snapshot: Snapshot, slots: list[str]) -> float:
    """Seconds to read the columns from where they are, in requests of 1 MiB and more."""
    since = time.perf_counter()
    for file in snapshot.data_files:
        with storage.open_read(file.url) as source:
            opened = pq.ParquetFile(source, pre_buffer=False)
            for group in range(opened.num_row_groups):
                opened.read_row_group(group, columns=slots, use_threads=False)
    return time.perf_counter() - since


if __name__ == "__main__":
    sys.exit(main())
