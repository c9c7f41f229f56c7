"""Other ways from the same Parquet to tensors of the same columns, each written as its own
documentation advises.

A peer is a `Reader` (see reading.py): each column of each batch becomes a tensor (lists: values and
offsets). Batches may end with a file where the peer makes them so. Those whose package is not
installed are left out.
"""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loader_parts.arrow_batches import Columns, packed, to_columns, unpacked
from loader_parts.reading import Reader

Batches = Iterator[Columns]
NUM_WORKERS = 2


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

    files = datasets.load_dataset(
        "parquet", data_files=list(paths), split="train", streaming=True, columns=list(columns)
    )
    return map(to_columns, files.with_format("arrow").iter(batch_size))


def by_duckdb(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """A query's result in Arrow batches."""
    import duckdb

    names = ", ".join(f'"{name}"' for name in columns)
    with duckdb.connect() as connection:
        found = connection.sql(f"select {names} from read_parquet({list(paths)})")
        yield from map(to_columns, found.to_arrow_reader(batch_size))


def by_lance(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """The scanner of a Lance dataset of the same rows, which the first call writes beside their
    folder.
    """
    import lance

    path = Path(paths[0]).parent.with_suffix(".lance")
    if not path.exists():
        schema = pq.read_schema(paths[0])
        lance.write_dataset(
            (batch for of in paths for batch in pq.ParquetFile(of).iter_batches()),
            str(path),
            schema=schema,
        )
    return map(
        to_columns,
        lance.dataset(str(path)).to_batches(columns=list(columns), batch_size=batch_size),
    )


def by_torcheasyrec(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """TorchEasyRec's reader of Parquet, without what its datasets make of the columns after it."""
    from tzrec.datasets.parquet_dataset import ParquetReader

    reader = ParquetReader(",".join(paths), batch_size, list(columns))
    for found in reader.to_batches():
        yield to_columns(pa.record_batch({name: found[name] for name in columns}))


class _Files(IterableDataset[Any]):
    """Batches of the files that fall to the worker, packed into a tensor for each dtype or as they
    are.
    """

    def __init__(
        self, paths: Sequence[str], columns: Sequence[str], batch_size: int, *, is_packed: bool
    ) -> None:
        self._paths, self._columns, self._batch_size, self._is_packed = (
            list(paths),
            list(columns),
            batch_size,
            is_packed,
        )

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
    options: dict[str, Any] = {
        "batch_size": None,
        "collate_fn": _as_it_is,
        "multiprocessing_context": "fork",
    }
    return DataLoader(files, num_workers=NUM_WORKERS, prefetch_factor=4, **options)


def _as_it_is(batch: Any) -> Any:
    return batch


_READERS: dict[str, tuple[str, Reader]] = {
    "pyarrow iter_batches": ("pyarrow", by_iter_batches),
    "polars": ("polars", by_polars),
    "Hugging Face datasets": ("datasets", by_datasets),
    "Lance": ("lance", by_lance),
    "duckdb": ("duckdb", by_duckdb),
    "TorchEasyRec's reader": ("tzrec", by_torcheasyrec),
    "DataLoader of 2 workers": ("torch", by_workers),
    "DataLoader of 2 workers, packed": ("torch", by_packing_workers),
}
PEERS = {
    name: reader
    for name, (package, reader) in _READERS.items()
    if importlib.util.find_spec(package)
}
