"""Tables of 4,000 slots: reading 50 of them from 24 files, opening, a plain directory of 1,000
files, and extracting an hour of 500 rows.

Four files of 2,048 rows are drawn as those of `loader.py` are, and linked under as many names as
there are to be, so that nothing but the names differs. Speeds are ratios to a bare
`read_row_group` loop over the same columns in the same process, on one core, in turn. CPU seconds
of opening and of the hour are those of a process of its own, which has imported everything by doing
the same with a small table; what a Python takes that only imports is told separately. Memory is
Python's own, by tracemalloc, in a run of its own. Ends with one line `RESULT {json}`; exit code 1
if a demanded figure is missed.

    python benchmarks/many_slots.py [--small]
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import featstore
from featstore.table.open import open_snapshot
from loader_parts import reading
from loader_parts.measuring import by_clocks, limit_cores, ratios
from loader_parts.workload import Workload
from shared_parts.machine import print_result

WORKLOAD = Workload(name="many", num_files=4, rows_per_file=2_048, num_slots=4_000, num_selected=50)
SMALL = Workload(name="few", num_files=1, rows_per_file=512, num_slots=200, num_selected=20)
NUM_FILES, NUM_PLAIN, BATCH_SIZE = 24, 1_000, 1_024
# Demanded.
LEAST_RATIO, MOST_OPENING_S, MOST_KEPT_BYTES, MOST_PEAK_BYTES = 1.0, 0.5, 10_000, 200_000_000
MOST_HOUR_S = 2.0


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="fewer rounds, under 5 minutes")
    parser.add_argument("--what", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what is not None:
        what, directory = arguments.what
        print(json.dumps(_CHILDREN[what](Path(directory))))
        return 0
    num_rounds = 3 if arguments.small else 9
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for workload in (WORKLOAD, SMALL):
            workload.write(directory)
        _link(directory, "table", NUM_FILES)
        _link(directory, "plain", NUM_PLAIN)
        write_hour(directory, "hour", 4_000)
        write_hour(directory, "small_hour", 40)
        figures = {"ratio": _reading(directory / "table", num_rounds)}
        for what in ("opening", "plain", "hour", "imports"):
            found = [_child(what, directory) for _ in range(num_rounds)]
            figures[what] = {key: sorted(one[key] for one in found) for key in found[0]}
            print(what, figures[what], flush=True)
    checks = {
        "ratio": figures["ratio"]["least"] >= LEAST_RATIO,
        "opening_s": _median(figures["opening"]["cpu_s"]) < MOST_OPENING_S,
        "plain_kept_bytes": _median(figures["plain"]["kept_bytes"]) <= MOST_KEPT_BYTES,
        "plain_peak_bytes": _median(figures["plain"]["peak_bytes"]) <= MOST_PEAK_BYTES,
        "hour_s": _median(figures["hour"]["cpu_s"]) < MOST_HOUR_S,
        "hour_statistics": figures["hour"]["statistics_bytes"][-1]
        < figures["hour"]["data_bytes"][0],
    }
    ok = all(checks.values())
    print_result({"ok": ok, "small": arguments.small, "checks": checks, **figures})
    return 0 if ok else 1


def _median(values: list[float]) -> float:
    return values[len(values) // 2]


def _link(directory: Path, name: str, num_files: int) -> None:
    """Makes a directory of so many links to the files of the workload."""
    sources = sorted((directory / f"{WORKLOAD.name}-{WORKLOAD.num_rows}").iterdir())
    (directory / name).mkdir()
    for number in range(num_files):
        target = directory / name / f"part-{number:04}.parquet"
        target.hardlink_to(sources[number % len(sources)])


def _reading(directory: Path, num_rounds: int) -> dict[str, Any]:
    """The loader's speed over that of the bare loop, by CPU seconds."""
    limit_cores(1)
    paths = sorted(map(str, directory.iterdir()))
    read = reading.featstore(open_snapshot(str(directory)))
    columns = WORKLOAD.columns
    runs = {
        "pyarrow": partial(reading.floor, paths, columns, BATCH_SIZE, use_threads=False),
        "featstore": partial(read, paths, columns, BATCH_SIZE),
    }
    sums = [
        reading.checksum(rows)
        for rows in (reading.from_arrow(runs["pyarrow"]()), runs["featstore"]())
    ]
    assert sums[0] == sums[1], sums
    [seconds] = by_clocks(runs, num_rounds, [time.process_time])
    found: dict[str, Any] = dict(ratios(seconds, "pyarrow")["featstore"])
    found["cpu_s"] = {name: round(_median(sorted(of)), 3) for name, of in seconds.items()}
    print("ratio", found, flush=True)
    return found


def _child(what: str, directory: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--what", what, str(directory)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _first_batch(table: Path, slots: list[str]) -> None:
    loader = featstore.FeatureLoader(
        str(table), slots=slots, labels=["click"], batch_size=BATCH_SIZE
    )
    with loader:
        batch = next(iter(loader))
        assert all(batch[name] is not None for name in slots)


def _opening(directory: Path) -> dict[str, float]:
    """CPU seconds from the table's URL to its first batch. Only the files are warm: its schema was
    not seen before.
    """
    _first_batch(directory / f"{SMALL.name}-{SMALL.num_rows}", SMALL.selected)
    for path in (directory / "table").iterdir():
        path.read_bytes()
    started = time.process_time()
    _first_batch(directory / "table", WORKLOAD.selected)
    return {"cpu_s": round(time.process_time() - started, 3)}


def _plain(directory: Path) -> dict[str, float]:
    """What is kept of each file of a plain directory, and what is needed for a moment."""
    open_snapshot(str(directory / "table"))
    tracemalloc.start()
    started = time.process_time()
    snapshot = open_snapshot(str(directory / "plain"))
    cpu_s = time.process_time() - started
    gc.collect()
    kept, peak = tracemalloc.get_traced_memory()
    num_files = len(snapshot.data_files)
    assert num_files == NUM_PLAIN
    return {
        "kept_bytes": round(kept / num_files),
        "peak_bytes": peak,
        "traced_cpu_s": round(cpu_s, 2),
    }


def _hour(directory: Path) -> dict[str, float]:
    """CPU seconds from the spec's file to the commit."""
    _extract(directory / "small_hour")
    started = time.process_time()
    report = _extract(directory / "hour")
    cpu_s = time.process_time() - started
    stored = (directory / "hour" / "table" / "_stats").rglob("*.statistics")
    found = {
        "cpu_s": round(cpu_s, 2),
        "data_bytes": report.size_bytes,
        "statistics_bytes": sum(path.stat().st_size for path in stored),
    }
    for path in sorted((directory / "hour" / "table").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return found


def _imports(directory: Path) -> dict[str, float]:
    """CPU seconds of a Python that imports what an extraction needs, and does nothing else."""
    imported = "import featstore.api, time; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", imported], capture_output=True, check=True)
    return {"cpu_s": round(float(done.stdout), 2)}


def _extract(hour: Path) -> Any:
    return featstore.extract(
        featstore.load_spec(str(hour / "spec.yaml")),
        str(hour / "raw.parquet"),
        str(hour / "table"),
        partition={"dt": "2026-11-01", "hour": "0"},
    )


def write_hour(
    directory: Path,
    name: str,
    num_slots: int,
    num_rows: int = 500,
    output: Mapping[str, Any] | None = None,
) -> None:
    """Raw rows, and a spec of so many slots: a quarter logarithms, the others hashes and crosses of
    300 columns at most. `output` is the spec's.
    """
    random = np.random.default_rng(7)
    num_texts, num_numbers = min(300, num_slots // 4), min(100, num_slots // 4)
    vocabularies = (10, 1_000, 100_000)
    raw: dict[str, Any] = {
        f"s{number}": [
            f"v{value}" for value in random.integers(0, vocabularies[number % 3], num_rows)
        ]
        for number in range(num_texts)
    }
    raw |= {f"f{number}": random.exponential(10, num_rows) for number in range(num_numbers)}
    slots: list[dict[str, Any]] = []
    for number in range(num_slots):
        place, turn = number % num_texts, number // num_texts
        if number % 4 == 3:
            what: dict[str, Any] = {"op": "log1p", "of": f"f{number // 4 % num_numbers}"}
        elif turn:
            what = {"op": "cross", "of": [f"s{place}", f"s{(place + turn) % num_texts}"]}
        else:
            what = {"op": "hash", "of": f"s{place}"}
        slots.append({"slot": number + 1, "name": f"slot{number}", **what})
    inputs = {name: "string" if name[0] == "s" else "double" for name in raw}
    (directory / name).mkdir()
    pq.write_table(pa.table(raw), directory / name / "raw.parquet")
    document = {"spec": 1, "inputs": inputs, "slots": slots, "output": dict(output or {})}
    (directory / name / "spec.yaml").write_text(yaml.safe_dump(document))


_CHILDREN = {"opening": _opening, "plain": _plain, "hour": _hour, "imports": _imports}
if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))
    sys.exit(main())
