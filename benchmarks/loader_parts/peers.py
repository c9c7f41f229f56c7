"""Other ways from the same Parquet to tensors of the same columns, each written as its own documentation advises.

Of every peer each column of each batch becomes a tensor (lists: values and offsets). Batches may end with a file where the peer
makes them so. A peer whose package is not installed is left out, by name.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loader_parts.arrow_batches import Columns, packed, to_columns, unpacked

Batches = Iterator[Columns]
NUM_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Peer:
    """`read(paths, columns, batch_size)` gives the batches. `prepare(paths, directory)` first makes the files it reads, outside
    of any measuring."""

    name: str
    package: str
    read: Callable[[Sequence[str], Sequence[str], int], Batches]
    prepare: Callable[[Sequence[str], Path], Sequence[str]] = lambda paths, directory: paths

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


def bare(paths: Sequence[str], columns: Sequence[str]) -> Iterator[int]:
    """The floor: row groups decoded and dropped; the number of rows of each."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                yield file.read_row_group(index, columns=list(columns)).num_rows


def by_iter_batches(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """pyarrow's own batches of a file."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            yield from map(to_columns, file.iter_batches(batch_size, columns=list(columns)))


def by_polars(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """A file at a time, sliced."""
    import polars as pl

    for path in paths:
        frame = pl.read_parquet(path, columns=list(columns))
        yield from (to_columns(part.to_arrow()) for part in frame.iter_slices(batch_size))


def by_datasets(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """Hugging Face `datasets`, streaming, in the arrow format."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets

    files = datasets.load_dataset("parquet", data_files=list(paths), split="train", streaming=True, columns=list(columns))
    return map(to_columns, files.with_format("arrow").iter(batch_size))


def by_duckdb(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """A query's result in Arrow batches."""
    import duckdb

    names = ", ".join(f'"{name}"' for name in columns)
    with duckdb.connect() as connection:
        found = connection.sql(f"select {names} from read_parquet({list(paths)})")
        yield from map(to_columns, found.to_arrow_reader(batch_size))


def to_lance(paths: Sequence[str], directory: Path) -> Sequence[str]:
    """All rows as one Lance dataset."""
    import lance

    url = str(directory / "rows.lance")
    schema = pq.read_schema(paths[0])
    lance.write_dataset((batch for path in paths for batch in pq.ParquetFile(path).iter_batches()), url, schema=schema)
    return [url]


def by_lance(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """The scanner of a Lance dataset."""
    import lance

    return map(to_columns, lance.dataset(paths[0]).to_batches(columns=list(columns), batch_size=batch_size))


class _Files(IterableDataset[Any]):
    """Batches of the files that fall to the worker, packed into a tensor for each dtype or as they are."""

    def __init__(self, paths: Sequence[str], columns: Sequence[str], batch_size: int, *, is_packed: bool) -> None:
        self._paths, self._columns, self._batch_size, self._is_packed = list(paths), list(columns), batch_size, is_packed

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        paths = self._paths if worker is None else self._paths[worker.id :: worker.num_workers]
        batches = by_iter_batches(paths, self._columns, self._batch_size)
        return map(packed, batches) if self._is_packed else batches


def by_workers(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """A DataLoader of two processes, every tensor sent by itself."""
    return iter(_workers(_Files(paths, columns, batch_size, is_packed=False)))


def by_packing_workers(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """The same with a tensor for each dtype."""
    for tensors, places in _workers(_Files(paths, columns, batch_size, is_packed=True)):
        yield unpacked(tensors, places)


def _workers(files: _Files) -> "DataLoader[Any]":
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]  # else hundreds of tensors use up the file descriptors
    return DataLoader(files, batch_size=None, num_workers=NUM_WORKERS, prefetch_factor=4, multiprocessing_context="fork")


PEERS = (
    Peer(name="pyarrow iter_batches", package="pyarrow", read=by_iter_batches),
    Peer(name="polars", package="polars", read=by_polars),
    Peer(name="Hugging Face datasets", package="datasets", read=by_datasets),
    Peer(name="Lance", package="lance", read=by_lance, prepare=to_lance),
    Peer(name="duckdb", package="duckdb", read=by_duckdb),
    Peer(name="DataLoader, 2 workers", package="torch", read=by_workers),
    Peer(name="DataLoader, 2 workers, packed", package="torch", read=by_packing_workers),
)
