"""How near the loader comes to the floor: a bare loop of `read_row_group` over the same columns of
the same files.

The data is the demo's click log, extracted by its spec. Floor and loader run in turn in one
process, on the same warm files; each ratio is of two neighbouring runs, the result the median. What
it costs to start (first batch, first row group included) is told beside it and not counted: the
clock starts with the first batch, or the first row group, and the first row group's rows are left
out of both counts.

    python benchmarks/read_floor.py [--small] [--rows N] [--batch-size N] [--shuffle] [--directory
    DIR]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from featstore import api
from featstore.explore.table import Table, open_table
from featstore.loader.feature_loader import FeatureLoader
from featstore.tools.demo_synthetic import PARTITION_KEY, write_click_log
from shared_parts.machine import print_result

REQUIRED_RATIO = 0.8
ROWS_PER_ROW_GROUP = 1 << 16
LABEL, CHECKED_LIST = "click", "item_tags"


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where the loader is too slow."""
    arguments = _parse()
    with tempfile.TemporaryDirectory() as directory:
        table = _table(Path(arguments.directory or directory), arguments.rows)
        result = compare(table, arguments)
    result["required_ratio"] = None if arguments.shuffle else REQUIRED_RATIO
    result["ok"] = arguments.shuffle or result["ratio"] >= REQUIRED_RATIO
    print_result(result)
    return 0 if result["ok"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="1 million rows instead of 5 million")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--shuffle",
        action="store_true",
        help="rows shuffled within windows of 100,000; no figure is demanded",
    )
    parser.add_argument("--directory", help="keep the data here, and use it again")
    arguments = parser.parse_args()
    arguments.rows = arguments.rows or (1_000_000 if arguments.small else 5_000_000)
    return arguments


def _table(directory: Path, num_rows: int) -> Table:
    """The click log as the demo extracts it."""
    url = str(directory / "table")
    if not Path(url).exists():
        write_click_log(directory / "raw", num_rows)
        spec = str(files("featstore.tools").joinpath("synthetic.spec.yaml"))
        print(
            api.extract(spec, str(directory / "raw"), url, partition_from_path=[PARTITION_KEY]),
            flush=True,
        )
    return open_table(url)


def compare(table: Table, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs floor and loader in turn; seconds to the first rows, rows per second after them, and the
    ratio of the rates.
    """
    _check(table, arguments)
    floors, loaders = [], []
    for _ in range(arguments.repeats):
        floors.append(_measured(lambda: _floor(table)))
        loaders.append(_measured(lambda: _batches(table, arguments)))
        print(
            f"floor {floors[-1][1] / 1e6:.3f} M rows/s, loader {loaders[-1][1] / 1e6:.3f} M rows/s",
            flush=True,
        )
    ratios = [loader[1] / floor[1] for floor, loader in zip(floors, loaders, strict=True)]
    return {
        "rows": table.num_rows,
        "slots": len(table.slots),
        "batch_size": arguments.batch_size,
        "ratio": round(statistics.median(ratios), 3),
        "lowest_ratio": round(min(ratios), 3),
        "floor_rows_per_s": round(statistics.median(rate for _, rate in floors)),
        "loader_rows_per_s": round(statistics.median(rate for _, rate in loaders)),
        "floor_first_s": round(statistics.median(first for first, _ in floors), 4),
        "loader_first_s": round(statistics.median(first for first, _ in loaders), 4),
    }


def _measured(make: Callable[[], Iterator[int]]) -> tuple[float, float]:
    """Seconds to the first row group, or batch, and rows per second after the first row group."""
    started = time.perf_counter()
    counts = make()
    total = next(counts)
    first = time.perf_counter()
    total += sum(counts)
    return first - started, (total - ROWS_PER_ROW_GROUP) / (time.perf_counter() - first)


def _paths(table: Table) -> list[str]:
    return [file.url for file in table.data_files()]


def _floor(table: Table) -> Iterator[int]:
    columns = [*table.schema.names, LABEL]
    for path in _paths(table):
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                yield file.read_row_group(index, columns=columns).num_rows


def _loader(table: Table, arguments: argparse.Namespace) -> FeatureLoader:
    shuffle = {"window_rows": 100_000} if arguments.shuffle else None
    return FeatureLoader(
        table, slots=["*"], labels=[LABEL], batch_size=arguments.batch_size, shuffle=shuffle
    )


def _batches(table: Table, arguments: argparse.Namespace) -> Iterator[int]:
    """Every column of every batch is made."""
    with _loader(table, arguments) as loader:
        for batch in loader:
            for slot in batch.slots:
                _ = batch[slot]
            yield len(batch.labels[LABEL])


def _check(table: Table, arguments: argparse.Namespace) -> None:
    """Loader and floor must read the same values, or their speeds mean nothing. Warms the files up,
    too.
    """
    expected = found = 0
    for path in _paths(table):
        column = pq.ParquetFile(path).read(columns=[CHECKED_LIST]).column(0)
        expected += sum(_sum(chunk.flatten().to_numpy()) for chunk in column.chunks)
    for batch in _loader(table, arguments):
        found += _sum(batch[CHECKED_LIST].values.numpy())
    if expected != found:
        raise SystemExit(
            f"the loader's values differ from the files': their sum is {found} instead of "
            f"{expected}"
        )


def _sum(signs: np.ndarray[Any, Any]) -> int:
    """The exact sum, beyond 64 bits: of the upper and the lower halves."""
    return (int((signs >> 32).sum()) << 32) + int((signs & 0xFFFFFFFF).sum())


if __name__ == "__main__":
    sys.exit(main())
