"""Tables of a lake: what opening those of many files costs, and what deleted rows cost.

*Opening*: Delta and Iceberg tables of many files, with 0, 1 and 10 % of the rows deleted by
vectors, from the URL to the first batch. Required: at most the CPU that delta-rs or pyiceberg takes
to plan a scan of the table, and that of the first batch of a table of one file.

*Row masks*: epochs of 40 columns with 1 % of the rows deleted, against epochs of the same files
without deletions. Required: at most 1.05 of the CPU.

CPU seconds, of all threads: medians of processes of their own, which have opened a table of one
file before; epochs alternate in one process. Ends with one line `RESULT {json}`; exit code 1 if a
figure is missed.

    python benchmarks/lake.py [--small]
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # writers of tables of the tests

from deltalake import DeltaTable
from pyiceberg.table import StaticTable

import featstore
from lake_parts.tables import FILE_ROWS, write_delta, write_iceberg
from loader_parts.workload import LABEL, NARROW
from shared_parts.machine import print_result
from tests.masked_tables import with_deleted

NUM_FILES, NUM_SMALL = (1_000, 20_000), (1_000,)
SHARES = (0, 1, 10)  # per cent of the rows that are deleted
MOST_MASKED = 1.05
MOST_PLAN_S = 60.0  # a plan is stopped then, and counts as so long
BATCH_ROWS, EPOCH_BATCH_ROWS = 256, 4_096
# As many columns as `loader.py` reads of its narrow files, and no others.
EPOCH = replace(NARROW, name="lake", num_slots=40)


def main() -> int:
    """Prints a line a figure and one line `RESULT {json}`; 1 where one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="1,000 files, fewer repeats")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        side, *urls = arguments.measure
        print([_cpu_s(SIDES[side], url) for url in urls][-1])
        return 0
    repeats, num_epochs = (1, 5) if arguments.small else (3, 15)
    with tempfile.TemporaryDirectory() as made:
        opening = {
            str(num_files): _opening(Path(made) / str(num_files), num_files, repeats)
            for num_files in (NUM_SMALL if arguments.small else NUM_FILES)
        }
        masks = _masks(Path(made) / "epochs", num_epochs)
    ok = all(case["ratio"] <= 1 for cases in opening.values() for case in cases.values())
    ok = ok and all(case["ratio"] <= MOST_MASKED for case in masks.values())
    print_result(
        {
            "benchmark": "lake",
            "small": arguments.small,
            "opening": opening,
            "masks": masks,
            "ok": ok,
        }
    )
    return 0 if ok else 1


def _opening(root: Path, num_files: int, repeats: int) -> dict[str, dict[str, float]]:
    """CPU seconds of the sides, by the table's format and how many per cent are deleted."""
    draw = np.random.default_rng(0)
    deleted = {
        f"{share} %": sorted(draw.permutation(FILE_ROWS)[: share * FILE_ROWS // 100].tolist())
        for share in SHARES
    }
    found = dict[str, dict[str, float]]()
    for kind, write in {"delta": write_delta, "iceberg": write_iceberg}.items():
        of_one = write(root / f"{kind}-1", 1, deleted)
        of_many = write(root / kind, num_files, deleted)
        for share in deleted:
            one, many = of_one[share], of_many[share]
            case = {
                "featstore_s": _median_s("featstore", one, many, repeats),
                "one_file_s": _median_s("featstore", one, one, repeats),
                "plan_s": _median_s(kind, one, many, repeats),
            }
            case["ratio"] = round(case["featstore_s"] / (case["plan_s"] + case["one_file_s"]), 3)
            print(f"{kind}, {num_files} files, {share} deleted: {case}", flush=True)
            found[f"{kind}, {share}"] = case
    return found


def _median_s(side: str, warm: str, url: str, repeats: int) -> float:
    command = [sys.executable, __file__, "--measure", side, warm, url]
    found = list[float]()
    for _ in range(repeats):
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=MOST_PLAN_S)
        except subprocess.TimeoutExpired:
            if side == "featstore":
                raise
            return MOST_PLAN_S
        found.append(float(done.stdout))
    return round(statistics.median(found), 3)


def _cpu_s(act: Callable[[str], object], url: str) -> float:
    begun = time.process_time()
    act(url)
    return time.process_time() - begun


def _first_batch(url: str) -> None:
    with featstore.FeatureLoader(
        url, slots=["id*", "x*"], labels=["click"], batch_size=BATCH_ROWS
    ) as loader:
        assert len(next(iter(loader))["id0"]) == BATCH_ROWS


def _plan_of_iceberg(url: str) -> None:
    files = StaticTable.from_metadata(url.removeprefix("iceberg+")).scan().plan_files()
    assert len(list(files))


SIDES: Mapping[str, Callable[[str], object]] = {
    "featstore": _first_batch,
    # Its list of files, without vectors, for which a plan of 1,000 files takes over a minute.
    "delta": lambda url: DeltaTable(url).get_add_actions(flatten=True),
    "iceberg": _plan_of_iceberg,
}


def _masks(root: Path, num_epochs: int) -> dict[str, dict[str, float]]:
    """CPU seconds of epochs without deleted rows and with them."""
    EPOCH.write(root)
    plain = featstore.open_table(str(root / f"{EPOCH.name}-{EPOCH.num_rows}")).snapshot
    draw, num_rows, count = (
        np.random.default_rng(0),
        EPOCH.rows_per_file,
        EPOCH.rows_per_file // 100,
    )
    firsts = draw.integers(0, num_rows - count, EPOCH.num_files).tolist()
    deleted = {
        "scattered": [sorted(draw.permutation(num_rows)[:count].tolist()) for _ in firsts],
        "together": [list(range(first, first + count)) for first in firsts],
    }
    paths = [file.path for file in plain.data_files]
    snapshots = {
        name: with_deleted(plain, dict(zip(paths, rows, strict=True)))
        for name, rows in deleted.items()
    }
    found = dict[str, dict[str, float]]()
    for (name, masked), shuffle in itertools.product(snapshots.items(), (False, True)):
        options: dict[str, Any] = {"batch_size": EPOCH_BATCH_ROWS, "shuffle": shuffle}
        loaders = [
            featstore.FeatureLoader(each, slots=EPOCH.selected, labels=[LABEL], **options)
            for each in (plain, masked)
        ]
        # The first epochs warm up. Two neighbours have met the same load.
        sides = list(zip(loaders, (EPOCH.num_rows, EPOCH.num_rows * 99 // 100), strict=True))
        pairs = []
        for number in range(num_epochs + 1):
            turn = -1 if number % 2 else 1  # Each side is the first one in every other pair.
            pairs.append([_epoch_s(*side) for side in sides[::turn]][::turn])
        del pairs[0]
        for loader in loaders:
            loader.close()
        plain_s, masked_s = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(masked_s / plain_s for plain_s, masked_s in pairs)
        case = {"plain_s": plain_s, "masked_s": masked_s, "ratio": ratio}
        key = f"{'shuffled' if shuffle else 'in order'}, {name}"
        found[key] = {name: round(value, 3) for name, value in case.items()}
        print(f"1 % deleted, {key}: {found[key]}", flush=True)
    return found


def _epoch_s(loader: featstore.FeatureLoader, expected_rows: int) -> float:
    begun, num_rows = time.process_time(), 0
    for batch in loader:
        num_rows += len(batch.labels[LABEL])
    assert num_rows == expected_rows
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
