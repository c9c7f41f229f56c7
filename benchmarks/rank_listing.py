"""What listing the files of a table costs; and what a worker keeps of the list in `rank` order,
which lists parts, and in `dynamic` order, which keeps the whole.

A Delta table of 1,000,000 files (a checkpoint, and 20 small commits after it; the files themselves
are not there). One of 8 workers in 4 mini-epochs makes its loader and lists two of its parts;
another process lists the whole, as `dynamic` order does. Each is a process of its own: memory of
Python by tracemalloc, and of Arrow, once everything is imported, resident memory from the kernel;
another one does nothing but open the table with delta-rs. Ends with one line `RESULT {json}`; exit
code 1 if a million files cost more than 1 s of CPU beyond delta-rs' own, or more than 100 MB that
are kept; if the whole keeps more than 100 bytes a split, or a part, 1/32 of them, more than 150 a
split and 1 MB besides. Resident memory is reported.
"""

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction, create_table_with_add_actions

from featstore.dispatch.orders import MiniEpoch, WorkerInfo
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.table_source import TableSource
from featstore.table.open import open_snapshot
from shared_parts.machine import print_result

NUM_WORKERS, MINI_EPOCHS = 8, 4
WHOLE_SPLIT_BYTES, PART_SPLIT_BYTES, PART_BYTES = 100, 150, 1_000_000
FILE_CPU_US, FILE_BYTES = 1.0, 100
NUM_TRIES = 3  # of listing, of which the fastest counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="100,000 files")
    parser.add_argument("--what", help=argparse.SUPPRESS)
    parser.add_argument("--table", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what is not None:
        print(json.dumps(_measured(arguments.what, arguments.table)))
        return 0
    num_files = 100_000 if arguments.small else 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        url = arguments.table or str(Path(directory) / "table")
        if arguments.table is None:
            make = f"import rank_listing; rank_listing._make({url!r}, {num_files})"
            subprocess.run([sys.executable, "-c", make], check=True, env=_env())
        found = {
            what: _child(what, url)
            for what in ("files", "rank", "whole", "delta", "rank-traced", "whole-traced")
        }
    num_in_part = num_files // (NUM_WORKERS * MINI_EPOCHS)
    whole = found["whole-traced"]["kept_bytes"] / num_files
    part_bytes = found["rank-traced"]["kept_bytes"]
    part_limit = PART_SPLIT_BYTES * num_in_part + PART_BYTES
    cpu_s, cpu_limit_s = found["files"]["cpu_s"], FILE_CPU_US * num_files / 1e6
    kept_bytes, kept_limit = found["files"]["kept_bytes"], FILE_BYTES * num_files
    figures = {
        "listing_cpu_s": {"value": cpu_s, "limit": cpu_limit_s, "ok": cpu_s <= cpu_limit_s},
        "listing_bytes": {
            "value": kept_bytes,
            "limit": kept_limit,
            "ok": kept_bytes <= kept_limit,
        },
        "bytes_a_split": {
            "value": round(whole, 1),
            "limit": WHOLE_SPLIT_BYTES,
            "ok": whole <= WHOLE_SPLIT_BYTES,
        },
        "bytes_of_a_part": {
            "value": part_bytes,
            "limit": part_limit,
            "ok": part_bytes <= part_limit,
        },
    }
    ok = all(figure["ok"] for figure in figures.values())
    print_result({"ok": ok, "num_files": num_files, **figures, "processes": found})
    return 0 if ok else 1


def _make(url: str, num_files: int) -> None:
    stats = json.dumps({"numRecords": 100_000})
    names = (
        (f"dt=2026-11-{1 + i % 28:02}", f"part-{i:07}-{uuid.UUID(int=i * 7919)}.parquet", i)
        for i in range(num_files)
    )
    actions = [
        AddAction(f"{day}/{name}", 12_345_678 + i, {"dt": day[3:]}, 1, True, stats)
        for day, name, i in names
    ]
    schema = pa.schema([("row", pa.int64()), ("dt", pa.string())])
    create_table_with_add_actions(url, Schema.from_arrow(schema), actions, partition_by=["dt"])
    table = DeltaTable(url)
    table.create_checkpoint()
    for number in range(20):
        rows = pa.table({"row": pa.array([number], pa.int64()), "dt": ["2026-11-01"]})
        write_deltalake(table, rows, partition_by=["dt"], mode="append")


def _child(what: str, url: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--what", what, "--table", url],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=_env(),
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(what, found, file=sys.stderr)
    return found


def _env() -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "RANK": "3",
    }


def _measured(what: str, url: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        _make(f"{directory}/small", 64)
        _delta(f"{directory}/small")
        _loader(f"{directory}/small", "rank")  # imports everything
    if what == "files":
        return _listed(url)
    before_bytes, started = _resident_bytes(), time.monotonic()
    arrow_bytes = pa.total_allocated_bytes()
    if what.endswith("traced"):
        tracemalloc.start()
    kept: Any = (
        _delta(url)
        if what == "delta"
        else _loader(url, "rank" if what.startswith("rank") else "dynamic")
    )
    spent_s = time.monotonic() - started
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow_bytes
    del kept
    return {
        "seconds": round(spent_s, 1),
        "before_bytes": before_bytes,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "kept_bytes": traced,
    }


def _listed(url: str) -> dict[str, Any]:
    """The CPU that a list of files takes beyond that of delta-rs, and what it keeps."""
    costs = list[tuple[float, float]]()
    for _ in range(NUM_TRIES):
        started_s = time.process_time()
        _delta(url)
        opened_s = time.process_time()
        open_snapshot(url)
        costs.append((time.process_time() - opened_s, opened_s - started_s))
    gc.collect()
    before_bytes = pa.total_allocated_bytes()
    tracemalloc.start()
    snapshot = open_snapshot(url)
    gc.collect()
    kept_bytes = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before_bytes
    del snapshot
    of_delta_s = min(cost[1] for cost in costs)
    return {
        "cpu_s": round(min(cost[0] for cost in costs) - of_delta_s, 2),
        "of_delta_s": round(of_delta_s, 2),
        "kept_bytes": kept_bytes,
    }


def _delta(url: str) -> Any:
    """The least that listing takes: delta-rs's own memory and its list of actions."""
    return DeltaTable(url).get_add_actions(flatten=True)


def _loader(url: str, order: str) -> Any:
    """A loader; in rank order with the second of its parts, the first being let go of."""
    os.environ["WORLD_SIZE"] = str(NUM_WORKERS)
    with tempfile.TemporaryDirectory() as directory:
        dispatch = {"store": f"sqlite://{directory}/x.db", "run_id": "a"}
        options = {"kind": "rank", "mini_epochs": MINI_EPOCHS} if order == "rank" else order
        loader = FeatureLoader(
            url, slots=["row"], order=options, dispatch=dispatch, shuffle={"window_rows": 100_000}
        )
    if order == "dynamic":
        return loader
    worker_info = WorkerInfo(index=3, num_workers=NUM_WORKERS)
    assert isinstance(loader._source, TableSource)
    job = loader._source.job
    for number in range(2):
        part = job.part(
            MiniEpoch(
                seed=0,
                epoch=0,
                worker_info=worker_info,
                number=number,
                num_mini_epochs=MINI_EPOCHS,
            )
        )
        if number == 0:
            del part
    return loader, part


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
