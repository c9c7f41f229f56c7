"""What statistics cost: their share of an extraction's CPU, and the CPU time to merge those of a
file in the driver.

The extraction runs on one thread, without Spark, over the raw log of 61 slots of `extraction.py`;
the CPU time of the thread is taken around every call that gathers, and that of the process around
the whole run, its first round left out. Merging reads the small files of so many data files, made
of as many copies of those that the extraction wrote, and writes one.

    python benchmarks/table_statistics.py [--small]
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from extraction_sides.workload import features, num_blocks, spec_of, write_raw
from featstore.extraction import job
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units.unit_statistics import Gathering, merge_partition
from featstore.spec.parse import load_spec
from featstore.statistics.column_statistics import StatisticsGatherer
from featstore.table.layout import data_file_name, file_statistics_path, new_tag, statistics_path
from featstore.table.snapshot import DataFile
from shared_parts.machine import print_result
from shared_parts.spent import Spent

NUM_SLOTS = 61
DEMANDED_SHARE, AIMED_SHARE = 0.15, 0.10
DEMANDED_MERGE_MS = 50.0


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small", action="store_true", help="fewer rows, rounds and files, under 5 minutes"
    )
    small = parser.parse_args().small
    num_rows, num_rounds, num_files = (1 << 19, 2, 50) if small else (1 << 20, 5, 500)
    with tempfile.TemporaryDirectory() as directory:
        spent = Spent()
        for owner, name in (
            (StatisticsGatherer, "update"),
            (Gathering, "draw"),
            (Gathering, "store"),
            (job, "merge_partition"),
        ):
            spent.time(owner, name)
        figures = [
            share(Path(directory), num_rows, num_rounds, spent),
            merging(Path(directory), num_files),
        ]
    for figure in figures:
        print(figure, flush=True)
    ok = all(figure["ok"] for figure in figures)
    print_result({"benchmark": "table_statistics", "small": small, "figures": figures, "ok": ok})
    return 0 if ok else 1


def share(directory: Path, num_rows: int, num_rounds: int, spent: Spent) -> dict[str, Any]:
    """The CPU time of gathering over that of the extraction which it is part of."""
    write_raw(directory / "raw", num_rows, 2, num_blocks(NUM_SLOTS))
    document = spec_of(features(NUM_SLOTS, maps=False), num_rows)
    spec = load_spec(document | {"output": document["output"] | {"statistics": True}})
    shares, parts, whole = [], {}, []
    for number in range(num_rounds + 1):
        shutil.rmtree(directory / "table", ignore_errors=True)
        spent.cpu_s.clear()
        started = time.process_time()
        report = extract_files(
            ExtractJob(
                spec=spec,
                input_url=str(directory / "raw"),
                table_url=str(directory / "table"),
                partition={"dt": "1"},
            ),
            runner=LocalRunner(1),
        )
        cpu_s = time.process_time() - started
        if number:
            whole.append(cpu_s)
            shares.append(sum(spent.cpu_s.values()) / cpu_s)
            parts = {name: round(value, 3) for name, value in spent.cpu_s.items()}
    [stored] = (directory / "table" / "_stats").rglob("*.statistics")
    found = statistics.median(shares)
    return {
        "name": f"{NUM_SLOTS} slots, gathering / extraction, CPU",
        "found": round(found, 3),
        "demanded": DEMANDED_SHARE,
        "aim": AIMED_SHARE,
        "ok": found <= DEMANDED_SHARE,
        "rounds": [round(value, 3) for value in shares],
        "extraction_cpu_s": round(statistics.median(whole), 2),
        "last_round_cpu_s": parts,
        "rows": num_rows,
        "stored_bytes": stored.stat().st_size,
        "data_bytes": report.size_bytes,
    }


def merging(directory: Path, num_files: int) -> dict[str, Any]:
    """The driver's CPU time for one file, of a partition of so many."""
    table = directory / "table"
    [stored] = (table / "_stats").rglob("*.statistics")
    tag = new_tag("merging")
    files = []
    for unit in range(num_files):
        path = f"dt=2/{data_file_name(tag, unit, 0)}"
        target = table / file_statistics_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(stored, target)
        files.append(DataFile(path=path, url="", size_bytes=1, num_rows=1, partition={"dt": "2"}))
    started = time.process_time()
    merge_partition(str(table), tag, files, [])
    ms = (time.process_time() - started) / num_files * 1000
    merged = table / statistics_path({"dt": "2"}, tag)
    ok = ms <= DEMANDED_MERGE_MS and merged.exists()
    name = f"{NUM_SLOTS} slots, merging a file's statistics, ms of CPU"
    return {
        "name": name,
        "found": round(ms, 2),
        "demanded": DEMANDED_MERGE_MS,
        "ok": ok,
        "files": num_files,
    }


if __name__ == "__main__":
    sys.exit(main())
