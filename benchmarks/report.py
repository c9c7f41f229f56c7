"""The report of a table of 1,000 slots: what making it costs, its size, and how long a headless Chromium
takes to open, sort and search it.

The table has 400 hashes, 300 crosses of two and 300 logarithms, and a label. Values are skewed, and the
texts of frequent ones are kept. The report has the label's rates, and compares the first day with the last.
Without a Chromium on PATH the page is made, and not opened.

    python benchmarks/report.py [--small]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import featstore
from featstore.spec.parse import load_spec
from shared_parts.chromium import Tab, chromium, chromium_binary
from shared_parts.machine import print_result

NUM_HASHES, NUM_CROSSES, NUM_LOGS, DAY_ROWS = 400, 300, 300, 2_000
OPEN_S, SIZE_BYTES = 2.0, 10_000_000
PROGRAM = """
import sys, time
import featstore
featstore.report(sys.argv[1], sys.argv[2], label="click", days=(sys.argv[3], sys.argv[4]))
print(time.process_time())"""
# From the start of the navigation until the page has been drawn.
DRAWN_MS = "performance.now()"
SORT_MS = """(async () => {
  const begin = performance.now();
  document.querySelectorAll("#slots thead button")[%d].click();
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - begin;
})()"""
SEARCH_MS = """(async () => {
  const begin = performance.now(), input = document.getElementById("search");
  input.value = "%s";
  input.dispatchEvent(new Event("input"));
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - begin;
})()"""


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="3 days and 3 rounds")
    small = parser.parse_args().small
    num_days, num_rounds = (3, 3) if small else (30, 9)
    days = [f"2026-11-{day:02}" for day in range(1, num_days + 1)]
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        make_table(home, days)
        figures = made(home, days)
        binary = chromium_binary()
        if binary is not None:
            figures |= opened(binary, home / "report.html", num_rounds)
    for name, figure in figures.items():
        print(f"{name}: {figure}", flush=True)
    ok = figures["size_bytes"] < SIZE_BYTES and max(figures.get("open_s", [0.0])) < OPEN_S
    print_result({"benchmark": "report", "small": small, **figures, "ok": ok})
    return 0 if ok else 1


def make_table(home: Path, days: list[str]) -> None:
    """Writes raw rows and extracts them."""
    for number, day in enumerate(days):
        draw = np.random.default_rng(number)
        # The largest values change from day to day: u^3 makes small numbers frequent.
        ids = (draw.random((NUM_HASHES, DAY_ROWS)) ** 3 * (500 + 20 * number)).astype(np.int64)
        columns = {f"id{i}": pa.array([f"value {one}" for one in of]) for i, of in enumerate(ids)}
        columns |= {f"x{i}": pa.array(draw.lognormal(size=DAY_ROWS)) for i in range(NUM_LOGS)}
        columns["clicked"] = pa.array((draw.random(DAY_ROWS) < 0.1).astype(np.int64))
        (home / "raw" / f"dt={day}").mkdir(parents=True)
        pq.write_table(pa.table(columns), home / "raw" / f"dt={day}" / "rows.parquet")
    featstore.extract(load_spec(spec()), home / "raw", home / "table", partition_from_path=["dt"])


def spec() -> dict[str, Any]:
    """The spec of 1,000 slots."""
    ids, numbers = [f"id{i}" for i in range(NUM_HASHES)], [f"x{i}" for i in range(NUM_LOGS)]
    hashes = [{"name": f"slot_{name}", "op": "hash", "of": name} for name in ids]
    crosses = [
        {"name": f"{ids[i]}_x_{ids[i + 1]}", "op": "cross", "of": ids[i : i + 2]}
        for i in range(NUM_CROSSES)
    ]
    logs = [{"name": f"log_{name}", "op": "log1p", "of": name} for name in numbers]
    nodes: list[dict[str, Any]] = [*hashes, *crosses, *logs]
    slots = [{"slot": 101 + i, **node} for i, node in enumerate(nodes)]
    inputs = dict.fromkeys(ids, "string") | dict.fromkeys(numbers, "double") | {"clicked": "long"}
    return {
        "spec": 1,
        "inputs": inputs,
        "labels": {"click": "clicked"},
        "slots": slots,
    }


def made(home: Path, days: list[str]) -> dict[str, Any]:
    """What a fresh process takes to make the report, and its size."""
    path, begin = home / "report.html", time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, str(home / "table"), str(path), days[0], days[-1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        "make_s": round(time.perf_counter() - begin, 2),
        "make_cpu_s": round(float(done.stdout), 2),
        "size_bytes": path.stat().st_size,
    }


def opened(binary: str, path: Path, num_rounds: int) -> dict[str, Any]:
    """How long the page takes in the browser. Each round is a browser of its own."""
    rounds = []
    for _ in range(num_rounds):
        with chromium(binary) as tab:
            tab.resize(1300, 900)
            rounds.append(one_round(tab, path))
    return {
        f"{name}_s": [
            round(of(one[name] for one in rounds) / 1000, 3) for of in (min, statistics.median, max)
        ]
        for name in rounds[0]
    }


def one_round(tab: Tab, path: Path) -> dict[str, float]:
    """Milliseconds of each step."""
    tab.open(path)
    return {
        "open": tab.value(DRAWN_MS),
        "open_cpu": 1000 * tab.task_cpu_s(),
        "sort_by_number": tab.value(SORT_MS % 2),
        "sort_by_name": tab.value(SORT_MS % 0),
        "search": tab.value(SEARCH_MS % "log_x7"),
    }


if __name__ == "__main__":
    sys.exit(main())
