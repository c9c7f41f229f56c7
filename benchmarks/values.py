"""What keeping texts of values costs: its share of an extraction's CPU and of the table's bytes.

The extraction runs on one thread, without Spark, over the raw logs of 61 and of 400 slots of
`extraction.py`, each in one unit.
Rounds with and without texts take turns. The share is measured twice: as the CPU time of all calls
that gather texts over that of the run, and as the ratio of the rounds, which has the noise of whole
runs. The bytes are those of the texts beside one partition's data files.

    python benchmarks/values.py [--small]
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extraction_sides.workload import features, num_blocks, spec_of, write_raw
from featstore.extraction import job
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units import unit, unit_values
from featstore.spec.parse import load_spec
from shared_parts.machine import print_result
from shared_parts.spent import Spent

# Rows by number of slots: about as many as a data file takes, 1,048,576 or 512 MB.
FULL = {61: 1 << 20, 400: 1 << 17}
SMALL = {61: 1 << 18, 400: 1 << 15}
DEMANDED_CPU, DEMANDED_BYTES = 0.03, 0.01


@dataclass(frozen=True, kw_only=True)
class Log:
    """The raw rows below `directory`, and where their table is written."""

    directory: Path
    num_slots: int
    num_rows: int


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="fewer rows and rounds")
    small = parser.parse_args().small
    rows_by_slots, num_rounds = (SMALL, 3) if small else (FULL, 5)
    spent = Spent()
    spent.time(unit_values.ValueGathering, "_count_held")
    spent.time(unit, "store_values")
    spent.time(job, "merge_partition_values")
    figures = []
    for num_slots, num_rows in rows_by_slots.items():
        with tempfile.TemporaryDirectory() as directory:
            log = Log(directory=Path(directory), num_slots=num_slots, num_rows=num_rows)
            write_raw(log.directory / "raw", num_rows, 2, num_blocks(num_slots))
            rounds = [
                {values: extracted(log, values, spent) for values in order}
                for order in orders(num_rounds + 1)
            ]
        # The first round also loads libraries.
        for figure in figures_of(num_slots, rounds[1:]):
            print(figure, flush=True)
            figures.append(figure)
    ok = all(figure["found"] <= figure["demanded"] for figure in figures if "demanded" in figure)
    print_result(
        {"benchmark": "values", "small": small, "rows": rows_by_slots, "figures": figures, "ok": ok}
    )
    return 0 if ok else 1


def orders(num_rounds: int) -> Iterator[tuple[str, str]]:
    """Which side goes first, in turn."""
    for number in range(num_rounds):
        yield ("auto", "none") if number % 2 else ("none", "auto")


def extracted(log: Log, values: str, spent: Spent) -> dict[str, Any]:
    """One extraction: its CPU time, that of gathering texts, and the bytes that it wrote."""
    # One file, and at least the least that a spec may say.
    document = spec_of(features(log.num_slots, maps=False), max(log.num_rows, 1 << 16))
    output = document["output"] | {"statistics": True}
    spec = load_spec(document | {"output": output, "values": values})
    table = log.directory / "table"
    shutil.rmtree(table, ignore_errors=True)
    spent.cpu_s.clear()
    started = time.process_time()
    report = extract_files(
        ExtractJob(
            spec=spec,
            input_url=str(log.directory / "raw"),
            table_url=str(table),
            partition={"dt": "1"},
        ),
        runner=LocalRunner(1),
    )
    cpu_s = time.process_time() - started
    stored = [path.stat().st_size for path in (table / "_stats").rglob("*.values")]
    return {
        "cpu_s": cpu_s,
        "gathering_cpu_s": dict(spent.cpu_s),
        "values_bytes": sum(stored),
        "data_bytes": report.size_bytes,
    }


def figures_of(num_slots: int, rounds: list[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The figures of all rounds."""
    shares = [
        sum(both["auto"]["gathering_cpu_s"].values()) / both["none"]["cpu_s"] for both in rounds
    ]
    ratios = [both["auto"]["cpu_s"] / both["none"]["cpu_s"] - 1 for both in rounds]
    last = rounds[-1]["auto"]
    parts = {name: round(cpu_s, 3) for name, cpu_s in last["gathering_cpu_s"].items()}
    return [
        {
            "name": f"{num_slots} slots, calls that gather texts / extraction without, CPU",
            "found": round(statistics.median(shares), 4),
            "demanded": DEMANDED_CPU,
            "rounds": [round(share, 4) for share in shares],
            "extraction_cpu_s": round(
                statistics.median(both["none"]["cpu_s"] for both in rounds), 2
            ),
            "last_round_cpu_s": parts,
        },
        {
            "name": f"{num_slots} slots, extraction with texts / without - 1, CPU",
            "found": round(statistics.median(ratios), 4),
            "rounds": [round(ratio, 4) for ratio in ratios],
        },
        {
            "name": f"{num_slots} slots, bytes of texts / bytes of data files",
            "found": round(last["values_bytes"] / last["data_bytes"], 5),
            "demanded": DEMANDED_BYTES,
            "values_bytes": last["values_bytes"],
            "data_bytes": last["data_bytes"],
        },
    ]


if __name__ == "__main__":
    sys.exit(main())
