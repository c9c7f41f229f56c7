"""What the cache of decoded columns costs and saves: building it, an epoch from it, random rows, and
further workers.

A table of 24 ids, 6 floats and 10 lists of ids (5 elements in the mean) is read, in order of value:

- `gather`: batches of 4,096 random rows of a `SampleDataset`, and beside each the same rows by plain
  numpy from arrays in memory that hold the same bytes: `array[rows]` for a scalar, and for lists one
  index of all elements. Demanded: at most 1.5 times its CPU time.
- `build`: decoding the table into the cache, beside one epoch of a `FeatureLoader` over it that asks
  for all columns. Demanded: at most 1.5 times its CPU time.
- `second_epoch`: all rows in order, in batches of 8,192, from the cache; demanded: at most a fifth of
  the CPU time of the loader's epoch.
- `loader_second_epoch`: the second epoch of a `FeatureLoader` with `staging: {decoded: true}`, which
  reads decoded columns, beside that loader's epoch; demanded: at most a fifth of its CPU time.
  `loader_first_epoch`, which makes them, is shown.
- `workers`: the proportional set size (PSS) of a training process and its DataLoader workers after an
  epoch of random rows, less what the same number of idle workers takes. Demanded: less than 60 MB
  for each further worker.

Each pair is run in turn, several times; the figure is the median of the ratios. Before each building
and each epoch of the loader a file of the cache's size is written and removed, in blocks of 2 MiB,
as the cache is written: a virtual machine pays for memory that it touches for the first time, ten
times what a copy costs, and which of the two gets such memory is chance. What plain writes of as many bytes take is printed beside, on memory as
it was found at the begin (`first_write_s`) and then (`write_s`).

    python benchmarks/decoded.py [--small]
"""

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset

from featstore.loader.feature_loader import FeatureLoader
from featstore.samples.sample_dataset import SampleDataset
from featstore.tensors.columns import Jagged
from shared_parts.machine import print_result
from shared_parts.process_tree import pss_bytes

Array = npt.NDArray[Any]
NUM_IDS, NUM_FLOATS, NUM_LISTS, MEAN_LENGTH = 24, 6, 10, 5
BATCH_ROWS, EPOCH_ROWS, FILE_ROWS, GROUP_ROWS = 4_096, 8_192, 262_144, 65_536
# What a row takes in the cache: ids, floats, lists with offsets, the label and it as a number.
_ROW_BYTES = 8 * NUM_IDS + 4 * NUM_FLOATS + NUM_LISTS * (8 * MEAN_LENGTH + 4) + 12
MOST = {
    "gather": 1.5,
    "build": 1.5,
    "second_epoch": 0.2,
    "loader_second_epoch": 0.2,
    "worker_mb": 60.0,
}


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where one is above what is demanded."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--small", action="store_true", help="a quarter of the rows")
    is_small = parser.parse_args().small
    torch.set_num_threads(1)
    num_files = 2 if is_small else 8
    with tempfile.TemporaryDirectory() as made:
        table = _table(Path(made) / "table", num_files)
        cache = Path(made) / "cache"
        found = _epochs(table, cache, 3 if is_small else 5)
        dataset = _samples(table, cache)
        found |= {"rows": len(dataset), "cache_mb": round(_size_bytes(cache) / 1e6)}
        found |= _gathers(dataset, 60 if is_small else 200)
        found |= _workers(dataset, (1, 5))
    met = {name: found[name] <= most for name, most in MOST.items()}
    print_result(found | {"most": MOST, "ok": all(met.values())})
    return int(not all(met.values()))


def _table(root: Path, num_files: int) -> Path:
    rng = np.random.default_rng(7)
    root.mkdir()
    for number in range(num_files):
        columns: dict[str, pa.Array] = {"row": pa.array(range(FILE_ROWS), pa.int64())}
        for slot in range(NUM_IDS):
            distinct = 10 ** (1 + slot % 6)
            ids = rng.integers(1, 1 << 62, distinct)[rng.integers(0, distinct, FILE_ROWS)]
            columns[f"id_{slot}"] = pa.array(ids)
        for slot in range(NUM_FLOATS):
            columns[f"float_{slot}"] = pa.array(rng.random(FILE_ROWS, np.float32))
        for slot in range(NUM_LISTS):
            lengths = rng.integers(1, 2 * MEAN_LENGTH, FILE_ROWS)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            ids = rng.integers(1, 1 << 62, 10_000)[rng.integers(0, 10_000, offsets[-1])]
            columns[f"list_{slot}"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
        columns["click"] = pa.array(rng.integers(0, 2, FILE_ROWS))
        pq.write_table(pa.table(columns), root / f"{number}.parquet", row_group_size=GROUP_ROWS)
    return root


def _samples(table: Path, cache: Path) -> SampleDataset:
    return SampleDataset(
        str(table), slots=SLOTS, labels=["click"], staging={"directory": str(cache)},
        decode_threads=1,
    )  # fmt: skip


SLOTS = [
    *(f"id_{slot}" for slot in range(NUM_IDS)),
    *(f"float_{slot}" for slot in range(NUM_FLOATS)),
    *(f"list_{slot}" for slot in range(NUM_LISTS)),
]


def _epochs(table: Path, cache: Path, repeats: int) -> dict[str, float]:
    """An epoch of the loader, building the cache, and an epoch from it, in turn."""
    times: dict[str, list[float]] = {"stream": [], "build": [], "cached": [], "open": []}
    times |= {"loader_first": [], "loader_second": []}
    num_rows, room = 0, partial(_write_and_remove, cache.with_name("room"), _expected_bytes(table))
    first_write_s = _cpu_s(room)
    write_s = list[float]()
    for number in range(repeats):
        write_s.append(_cpu_s(room))
        loader = FeatureLoader(
            str(table), slots=SLOTS, labels=["click"], batch_size=EPOCH_ROWS, decode_threads=1
        )
        times["stream"].append(_cpu_s(partial(_read, loader)))
        of_run = cache if number == 0 else cache.with_name(f"cache-{number}")
        write_s.append(_cpu_s(room))
        times["build"].append(_cpu_s(partial(_opened_and_closed, table, of_run)))
        times["open"].append(_cpu_s(partial(_opened_and_closed, table, of_run)))
        dataset = _samples(table, of_run)
        num_rows = len(dataset)
        batches = (dataset[at : at + EPOCH_ROWS] for at in range(0, num_rows, EPOCH_ROWS))
        times["cached"].append(_cpu_s(partial(_read, batches)))
        dataset.close()
        of_loader = cache.with_name(f"loader-{number}")
        write_s.append(_cpu_s(room))
        with FeatureLoader(
            str(table), slots=SLOTS, labels=["click"], batch_size=EPOCH_ROWS, decode_threads=1,
            staging={"directory": str(of_loader), "decoded": True},
        ) as twice:  # fmt: skip
            for name in ("loader_first", "loader_second"):
                times[name].append(_cpu_s(partial(_read, twice)))
        shutil.rmtree(of_loader)
        if number:
            for path in sorted(of_run.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
    rates = {
        f"{name}_rows_per_cpu_s": round(num_rows / statistics.median(of))
        for name, of in times.items()
    }
    return rates | {
        "first_write_s": round(first_write_s, 3),
        "write_s": round(statistics.median(write_s), 3),
        "build_s": round(statistics.median(times["build"]), 3),
        "build": _ratio(times["build"], times["stream"]),
        "second_epoch": _ratio(times["cached"], times["stream"]),
        "loader_first_epoch": _ratio(times["loader_first"], times["stream"]),
        "loader_second_epoch": _ratio(times["loader_second"], times["stream"]),
    }


def _expected_bytes(table: Path) -> int:
    num_rows: int = sum(pq.read_metadata(path).num_rows for path in table.iterdir())
    return num_rows * _ROW_BYTES


def _write_and_remove(path: Path, num_bytes: int) -> None:
    block = bytes(2 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(num_bytes // len(block)):
            os.write(file.fileno(), block)
    path.unlink()


def _opened_and_closed(table: Path, cache: Path) -> None:
    _samples(table, cache).close()


def _read(batches: Any) -> None:
    """Asks for all columns of all batches."""
    for batch in batches:
        for column in batch.made().values():
            assert isinstance(column, torch.Tensor | Jagged)


def _gathers(dataset: SampleDataset, repeats: int) -> dict[str, float]:
    """Random rows, gathered by the dataset and by plain numpy, in turn."""
    columns = {key: _plain(column) for key, column in dataset[:].made().items()}
    rng, times = np.random.default_rng(8), {"samples": list[float](), "numpy": list[float]()}
    for number in range(repeats + 10):
        rows = rng.integers(0, len(dataset), BATCH_ROWS)
        # Neither always finds the rows in the CPU's cache after the other.
        other = rng.integers(0, len(dataset), BATCH_ROWS)
        taken = {
            "samples": _cpu_s(partial(_read_rows, dataset, rows)),
            "numpy": _cpu_s(partial(_gather_plainly, columns, other)),
        }
        if number >= 10:
            for name, taken_s in taken.items():
                times[name].append(taken_s)
    return {
        "gather": _ratio(times["samples"], times["numpy"]),
        "gather_rows_per_cpu_s": round(BATCH_ROWS / statistics.median(times["samples"])),
        "numpy_rows_per_cpu_s": round(BATCH_ROWS / statistics.median(times["numpy"])),
    }


def _read_rows(dataset: SampleDataset, rows: Array) -> None:
    _read([dataset[rows]])


def _plain(column: Any) -> tuple[Array, Array | None]:
    if isinstance(column, Jagged):
        return column.values.numpy().copy(), column.offsets.numpy().copy()
    return column.numpy().copy(), None


def _gather_plainly(columns: Mapping[Any, tuple[Array, Array | None]], rows: Array) -> list[Array]:
    found = []
    for values, offsets in columns.values():
        if offsets is None:
            found.append(values[rows])
            continue
        firsts = offsets[rows]
        lengths = offsets[rows + 1] - firsts
        ends = np.concatenate([[0], np.cumsum(lengths)])
        found.append(values[np.arange(ends[-1]) + np.repeat(firsts - ends[:-1], lengths)])
        found.append(ends)
    return found


class _Idle(Dataset[torch.Tensor]):
    """As many samples, of one number each."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.zeros(1)]


def _workers(dataset: SampleDataset, numbers: tuple[int, int]) -> dict[str, float]:
    few, many = numbers
    found = {}
    for method in ("fork", "spawn"):
        sizes = {
            (kind, number): _pss_mb(of, number, method)
            for kind, of in (("samples", dataset), ("idle", _Idle(len(dataset))))
            for number in numbers
        }
        per_worker = {
            kind: (sizes[kind, many] - sizes[kind, few]) / (many - few)
            for kind in ("samples", "idle")
        }
        found[f"worker_mb_{method}"] = round(per_worker["samples"] - per_worker["idle"], 1)
        found[f"idle_worker_mb_{method}"] = round(per_worker["idle"], 1)
    found["worker_mb"] = max(found["worker_mb_fork"], found["worker_mb_spawn"])
    return found


def _pss_mb(dataset: Dataset[Any], num_workers: int, method: str) -> float:
    """Of this process and its workers together, after each has read its share of an epoch."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader: Any = DataLoader(
            dataset, batch_size=BATCH_ROWS, shuffle=True, num_workers=num_workers,
            multiprocessing_context=method, persistent_workers=True,
        )  # fmt: skip
    batches = iter(loader)
    for _ in batches:
        pass
    total_mb = sum(map(pss_bytes, (os.getpid(), *(of.pid for of in batches._workers)))) / 1e6
    del batches, loader
    return total_mb


def _cpu_s(work: Callable[[], object]) -> float:
    before_s = time.process_time()
    work()
    return time.process_time() - before_s


def _ratio(taken_s: list[float], other_s: list[float]) -> float:
    pairs = zip(taken_s, other_s, strict=True)
    return round(statistics.median(one / other for one, other in pairs), 3)


def _size_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
