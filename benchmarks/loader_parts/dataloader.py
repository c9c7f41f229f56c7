"""featstore under torch's DataLoader with worker processes, against the floor: a bare `read_row_group` loop on as many cores.

Workload: 400k rows in 8 files, row groups of 25k, 200 nullable slots (120 int64 ids, 30 float32, 50 lists of int64), 41 of
them selected, batches of 4,096. Floor and DataLoader run in turn in one process tree, on the same warm files; each ratio is
of two neighbouring runs, the result the median. Workers persist, and an epoch before the clock starts warms them up.

    python benchmarks/loader_parts/dataloader.py [--small] [--directory DIR] [--repeats N]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

from featstore.loader.loader import FeatureLoader
from featstore.loader.tensors import Batch, Jagged

REQUIRED_RATIO = 0.6
NUM_IDS, NUM_FLOATS, NUM_LISTS = 120, 30, 50
SELECTED = [f"id{i}" for i in range(24)] + [f"float{i}" for i in range(6)] + [f"list{i}" for i in range(11)]


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where the DataLoader is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="3 repeats instead of 7")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--directory", help="keep the data here, and use it again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths = workload(Path(arguments.directory or directory))
        repeats = arguments.repeats or (3 if arguments.small else 7)
        result = compare(paths, arguments.batch_size, num_workers=arguments.num_workers, repeats=repeats)
    result |= {"required_ratio": REQUIRED_RATIO, "ok": result["ratio"] >= REQUIRED_RATIO}
    print(f"RESULT {json.dumps(result)}")
    return 0 if result["ok"] else 1


def compare(paths: Sequence[str], batch_size: int, *, num_workers: int, repeats: int) -> dict[str, Any]:
    """Rows per second of the floor and of the DataLoader, run in turn, and the median ratio."""
    floors, rates = [], []
    with epochs(paths, SELECTED, batch_size, num_workers=num_workers) as epoch:
        next(epoch)
        for _ in range(repeats):
            floors.append(floor(paths, SELECTED))
            rates.append(next(epoch))
            print(f"floor {floors[-1] / 1e6:.3f} M rows/s, DataLoader {rates[-1] / 1e6:.3f} M rows/s", flush=True)
    ratios = [rate / bare for rate, bare in zip(rates, floors, strict=True)]
    return {
        "num_workers": num_workers,
        "batch_size": batch_size,
        "ratio": round(statistics.median(ratios), 3),
        "lowest_ratio": round(min(ratios), 3),
        "floor_rows_per_s": round(statistics.median(floors)),
        "dataloader_rows_per_s": round(statistics.median(rates)),
    }


def floor(paths: Sequence[str], columns: Sequence[str]) -> float:
    """Rows per second of `read_row_group` with Arrow's threads and nothing else."""
    started, num_rows = time.perf_counter(), 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                num_rows += file.read_row_group(index, columns=list(columns)).num_rows
    return num_rows / (time.perf_counter() - started)


def measure(paths: Sequence[str], columns: Sequence[str], batch_size: int, *, num_workers: int = 2) -> float:
    """Rows per second of one epoch under a DataLoader, its workers started and warm."""
    with epochs(paths, columns, batch_size, num_workers=num_workers) as epoch:
        next(epoch)
        return next(epoch)


@contextmanager
def epochs(paths: Sequence[str], columns: Sequence[str], batch_size: int, *, num_workers: int = 2) -> Iterator[Iterator[float]]:
    """Each item is an epoch, run when asked for: its rows per second. All columns are made."""
    with FeatureLoader(str(Path(paths[0]).parent), slots=list(columns), batch_size=batch_size) as loader:
        batches = DataLoader(loader, batch_size=None, num_workers=num_workers, persistent_workers=True)
        yield _rates(batches)
        del batches


def _rates(batches: DataLoader[Batch]) -> Iterator[float]:
    while True:
        started, num_rows = time.perf_counter(), 0
        for batch in batches:
            num_rows += batch.num_rows
            for slot in batch.slots:
                _ = batch[slot]
        yield num_rows / (time.perf_counter() - started)


def checksum(batches: Iterator[Batch], columns: Sequence[str]) -> int:
    """The sum of the ids of these columns, to compare readers by."""
    total = 0
    for batch in batches:
        for name in columns:
            column = batch[name]
            values = column.values if isinstance(column, Jagged) else column
            total += 0 if values.is_floating_point() else int(values.sum())
    return total


def workload(directory: Path, num_rows: int = 400_000, num_files: int = 8) -> list[str]:
    """The files' paths; written once where they are missing."""
    paths = [directory / f"{index}.parquet" for index in range(num_files)]
    for index, path in enumerate(paths):
        if not path.exists():
            pq.write_table(_rows(index, num_rows // num_files), path, row_group_size=25_000, compression="snappy")
    return [str(path) for path in paths]


def _rows(seed: int, num_rows: int) -> pa.Table:
    random = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {}
    for i in range(NUM_IDS):
        columns[f"id{i}"] = pa.array(_ids(random, num_rows, 10 ** (2 + i % 5)))
    for i in range(NUM_FLOATS):
        columns[f"float{i}"] = pa.array(random.random(num_rows, dtype=np.float32))
    for i in range(NUM_LISTS):
        lengths = random.integers(0, 11, num_rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns[f"list{i}"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(_ids(random, int(offsets[-1]), 100_000)))
    return pa.table(columns)


def _ids(random: np.random.Generator, num_values: int, num_distinct: int) -> np.ndarray[Any, Any]:
    """Signs as a hash spreads them."""
    return random.integers(0, 2**62, num_distinct)[random.zipf(1.3, num_values) % num_distinct]


if __name__ == "__main__":
    sys.exit(main())
