"""Orders that featstore's loader delivers, what they cost, and which rows come twice after a kill."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore import FeatureLoader
from loader_parts import measuring
from loader_parts.reading import columns_of, floor
from loader_parts.workload import LABEL, Workload
from shuffle_parts.orders import Rows, stored

BATCH_ROWS = 1_024
# A kill costs what was delivered since the last report, which is sent every half a second.
_ROWS_PER_S, _KILLED_AFTER_S, _LEASE_S = 20_000, 1.7, 2.0


def write_rows(directory: Path, sizes: Sequence[int], row_group_rows: int) -> str:
    """Files of these sizes whose rows hold their number, one in each directory `month=...`."""
    for number, rows in enumerate(stored(sizes)):
        path = directory / f"month={number:02}" / "rows.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"row": rows}), path, row_group_size=row_group_rows)
    return str(directory)


def order_of(url: str, **options: Any) -> Rows:
    """The rows in the order of delivery."""
    with FeatureLoader(url, slots=["row"], batch_size=BATCH_ROWS, **options) as loader:
        return np.concatenate([batch["row"].numpy() for batch in loader])


def costs(
    workload: Workload, directory: Path, options: dict[str, Any], repeats: int
) -> dict[str, dict[str, float]]:
    """Of each of these options the speed by CPU time as a share of a bare `read_row_group` loop,
    the median of runs in turn; and the most memory beyond that of the loop, each in a process of
    its own.
    """
    paths = workload.write(directory)
    loaders = {name: _loader(paths, workload, shuffle) for name, shuffle in options.items()}
    runs: dict[str, Callable[[], Iterator[Any]]] = {
        "floor": partial(_floor, paths, workload),
        **{name: partial(_columns, loader) for name, loader in loaders.items()},
    }
    (seconds,) = measuring.by_clocks(runs, repeats, [time.process_time])
    shares = measuring.ratios(seconds, over="floor")
    for loader in loaders.values():
        loader.close()
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, max_tasks_per_child=1) as processes:
        return {
            name: {
                "share_of_floor": shares[name]["median"],
                "cpu_s": round(statistics.median(seconds[name]), 3),
                "extra_mb": processes.submit(_extra_mb, paths, workload, shuffle).result(),
            }
            for name, shuffle in options.items()
        }


def _loader(paths: Sequence[str], workload: Workload, shuffle: Any) -> FeatureLoader:
    return FeatureLoader(
        str(Path(paths[0]).parent),
        slots=workload.selected,
        labels=[LABEL],
        batch_size=4096,
        shuffle=shuffle,
    )


def _floor(paths: Sequence[str], workload: Workload) -> Iterator[Any]:
    return floor(paths, workload.columns, 0, use_threads=False)


def _extra_mb(paths: Sequence[str], workload: Workload, shuffle: Any) -> float:
    """In a process of its own."""
    peaks = []
    with _loader(paths, workload, shuffle) as loader:
        for run in (partial(_floor, paths, workload), partial(_columns, loader)):
            measuring.forget_peak()
            for _ in run():
                pass
            peaks.append(measuring.peak_bytes())
    return round((peaks[1] - peaks[0]) / 1e6, 1)


def _columns(loader: FeatureLoader) -> Iterator[Any]:
    for batch in loader:
        yield columns_of(batch)


def twice_after_a_kill(url: str, shuffle: Any, directory: Path) -> dict[str, int]:
    """A worker is killed between two batches, without a checkpoint, and another one reads on in the
    same run: the rows that come twice, and those that do not come.
    """
    directory.mkdir()
    dispatch = {"store": f"sqlite:///{directory}/store.db", "run_id": "killed", "lease_s": _LEASE_S}
    options = {"slots": ["row"], "batch_size": BATCH_ROWS, "shuffle": shuffle, "dispatch": dispatch}
    first = str(directory / "first.npy")
    child = multiprocessing.get_context("spawn").Process(
        target=_deliver_and_die, args=(url, options, first)
    )
    child.start()
    child.join()
    before = np.load(first)
    with FeatureLoader(url, **options) as rest:
        after = np.concatenate([batch["row"].numpy() for batch in rest])
    times = np.bincount(np.concatenate([before, after]))
    return {
        "delivered_before": len(before),
        "twice": int((times == 2).sum()),
        "more": int((times > 2).sum()),
        "missing": int((times == 0).sum()),
    }


def _deliver_and_die(url: str, options: dict[str, Any], path: str) -> None:
    """In a process of its own: trains at a fixed speed for a while, and ends as one that is
    killed.
    """
    # Kept by a name: an iteration that is dropped would tell the store what was delivered.
    rows, batches = list[Any](), iter(FeatureLoader(url, **options))
    began = time.monotonic()
    for batch in batches:
        rows.append(batch["row"].numpy().copy())
        time.sleep(BATCH_ROWS / _ROWS_PER_S)
        if time.monotonic() - began > _KILLED_AFTER_S:
            break
    np.save(path, np.concatenate(rows))
    os._exit(0)
