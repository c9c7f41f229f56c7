"""What all readers of the workload have in common, and the two that are always measured: the floor
and featstore's loader.

A reader is a function `read(paths, columns, batch_size)` that yields batches: by column name a
tensor (or array) of values, or `(values, offsets)` for a list, for every column of every batch.
`columns` are slots and, last, the label. A missing id is 0 or a list without it, a missing float
NaN. `checksum` is the same for equal rows, in any order and whatever stands for missing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.loader.feature_loader import FeatureLoader
from featstore.table.snapshot import Snapshot
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Jagged

Columns = Mapping[str, Any]
Reader = Callable[[Sequence[str], Sequence[str], int], Iterator[Columns]]


def checksum(batches: Iterable[Columns]) -> dict[str, int]:
    """Rows, ids that are not missing, their sum, and the sum of the floats' bits, all modulo 2^64.
    Not timed.
    """
    rows = num_ids = ids = bits = 0
    for batch in batches:
        for number, column in enumerate(batch.values()):
            values, offsets = column if isinstance(column, tuple) else (column, None)
            values = np.asarray(values)
            rows += 0 if number else (len(values) if offsets is None else len(offsets) - 1)
            if values.dtype.kind == "f":
                known = np.ascontiguousarray(values[~np.isnan(values)], dtype=np.float32)
                bits += int(known.view(np.uint32).sum(dtype=np.uint64))
            else:
                num_ids += int(np.count_nonzero(values))
                ids += int(values.astype(np.uint64).sum(dtype=np.uint64))
    return {"rows": rows, "num_ids": num_ids, "ids": ids % 2**64, "bits": bits % 2**64}


def floor(
    paths: Sequence[str], columns: Sequence[str], _: int, *, use_threads: bool = True
) -> Iterator[pa.Table]:
    """A bare `read_row_group` loop, without tensors: what there is to reach."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                yield file.read_row_group(index, columns=list(columns), use_threads=use_threads)


def from_arrow(tables: Iterable[pa.Table]) -> Iterator[Columns]:
    """Tables as batches, for their checksum."""
    for table in tables:
        yield {
            name: _from_arrow(column)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }


def _from_arrow(column: pa.ChunkedArray) -> Any:
    if pa.types.is_list(column.type):
        lists = column.combine_chunks()
        return np.asarray(lists.flatten()), np.zeros(len(lists) + 1)
    if pa.types.is_integer(column.type) and column.type != pa.int64():
        return np.asarray(column.cast(pa.float32()))
    return np.asarray(column.fill_null(0 if column.type == pa.int64() else np.nan))


def featstore(table: Snapshot, *, shuffle_rows: int | None = None, **options: Any) -> Reader:
    """featstore's loader, of a table opened before. It is made once and iterated for each read, as
    by a training script for each epoch.
    """
    shuffle = None if shuffle_rows is None else {"window_rows": shuffle_rows}
    return _Loaders(partial(FeatureLoader, table, shuffle=shuffle, **options))


class _Loaders:
    """A loader for each selection and batch size."""

    def __init__(self, make: Callable[..., FeatureLoader]) -> None:
        self._make = make
        self._made: dict[tuple[tuple[str, ...], int], FeatureLoader] = {}

    def __call__(
        self,
        _: Sequence[str],
        columns: Sequence[str],
        batch_size: int,
        *,
        stats: dict[str, Any] | None = None,
    ) -> Iterator[Columns]:
        """`stats` is filled with the loader's own numbers of this read."""
        key = (tuple(columns), batch_size)
        if key not in self._made:
            slots, labels = columns[:-1], columns[-1:]
            self._made[key] = self._make(slots=slots, labels=labels, batch_size=batch_size)
        loader = self._made[key]
        before = loader.stats()
        for batch in loader:
            yield columns_of(batch)
        if stats is not None:
            for name, after in loader.stats().items():
                if isinstance(after, int | float):
                    stats[name] = after - before.get(name, 0)


def columns_of(batch: Batch) -> Columns:
    """Every column of a batch."""
    columns: dict[str, Any] = {}
    for name in batch.slots:
        column = batch[name]
        columns[name] = (column.values, column.offsets) if isinstance(column, Jagged) else column
    return columns | dict(batch.labels)
