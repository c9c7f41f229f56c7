"""Peers that read rows by number: Hugging Face datasets, LMDB and ArrayRecord, each in the fastest
form that its documentation names for many rows at a time.
"""

from pathlib import Path
from typing import Any

import datasets
import lmdb
import numpy as np
import pyarrow as pa
from array_record.python import array_record_module
from array_record.python.array_record_data_source import ArrayRecordDataSource

from featstore.samples.indices import Array
from random_access_parts.rows import NUM_SLOTS, ROW_BYTES, Rows
from random_access_parts.sqlite_files import matrix_of
from random_access_parts.tables import (
    LISTS,
    NAMES,
    batch_of_columns,
    batch_of_lists,
    schema_of_columns,
    schema_of_lists,
)


class HuggingFace:
    """A dataset of 40 columns in a memory-mapped Arrow file, formatted as Arrow."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._path = directory / "rows.arrow"
        schema = schema_of_columns()
        with pa.OSFile(str(self._path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for block in rows.blocks():
                writer.write_batch(batch_of_columns(block))

    def open(self) -> "_Columns":
        return _Columns(_dataset(self._path))

    def close(self) -> None:
        pass


class HuggingFaceOneColumn:
    """A dataset of one column of lists of 40, in a memory-mapped Arrow file, formatted as Arrow."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._path = directory / "rows.arrow"
        schema = schema_of_lists()
        with pa.OSFile(str(self._path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for block in rows.blocks():
                writer.write_batch(batch_of_lists(block))

    def open(self) -> "_Lists":
        return _Lists(_dataset(self._path))

    def close(self) -> None:
        pass


class Lmdb:
    """A B+ tree of big-endian numbers, read with one `getmulti` for a batch, without locks."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._path = directory / "rows.lmdb"
        map_bytes = 4 * rows.num_rows * ROW_BYTES + (64 << 20)
        with lmdb.open(str(self._path), subdir=False, map_size=map_bytes, sync=False) as made:
            first = 0
            for block in rows.blocks():
                with made.begin(write=True) as transaction:
                    for index, row in enumerate(block, first):
                        transaction.put(_key(index), row.tobytes(), append=True)
                first += len(block)

    def open(self) -> "_Tree":
        return _Tree(
            lmdb.open(str(self._path), subdir=False, readonly=True, lock=False, readahead=False)
        )

    def close(self) -> None:
        pass


class ArrayRecord:
    """A file of records, one to a group, uncompressed, read with one call for a batch."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._path = directory / "rows.array_record"
        writer = array_record_module.ArrayRecordWriter(str(self._path), "group_size:1,uncompressed")
        for block in rows.blocks():
            for row in block:
                writer.write(row.tobytes())
        writer.close()

    def open(self) -> "_Records":
        return _Records(ArrayRecordDataSource(str(self._path)))

    def close(self) -> None:
        pass


class _Columns:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def take(self, indices: Array) -> Array:
        table = self._dataset[indices.tolist()]
        return np.stack([table.column(name).to_numpy() for name in NAMES], axis=1)


class _Lists:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def take(self, indices: Array) -> Array:
        lists = self._dataset[indices.tolist()].column(LISTS).combine_chunks()
        return np.asarray(lists.flatten().to_numpy().reshape(-1, NUM_SLOTS))


class _Tree:
    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def take(self, indices: Array) -> Array:
        with self._environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            found = cursor.getmulti([_key(index) for index in indices.tolist()])
            return matrix_of([value for _, value in found])


class _Records:
    def __init__(self, source: Any) -> None:
        self._source = source

    def take(self, indices: Array) -> Array:
        return matrix_of(self._source.__getitems__(indices.tolist()))


def _key(index: int) -> bytes:
    return index.to_bytes(8, "big")


def _dataset(path: Path) -> Any:
    # Arrow's tables are its fastest format; each value of numpy's is made by itself.
    return datasets.Dataset.from_file(str(path)).with_format("arrow")
