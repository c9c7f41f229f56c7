"""Rows in SQLite: as one asks for them who moves a list there, and in a SampleStore."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from featstore.samples.indices import Array
from featstore.samples.sample_store import SampleStore
from random_access_parts.rows import NUM_SLOTS, Rows


class QueryForEachRow:
    """A table of an integer key and a blob, a connection in each worker, a query for each row."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._path = directory / "rows.sqlite"
        connection = sqlite3.connect(self._path)
        with connection:
            connection.execute("CREATE TABLE samples (number INTEGER PRIMARY KEY, value BLOB)")
            connection.executemany("INSERT INTO samples VALUES (?, ?)", enumerate(_blobs(rows)))
        connection.close()

    def open(self) -> "_Queries":
        return _Queries(sqlite3.connect(self._path))

    def close(self) -> None:
        pass


class SampleStoreSide:
    """A SampleStore with one field, a batch in one statement."""

    is_in_each_worker = False

    def make(self, rows: Rows, directory: Path) -> None:
        self._path = directory / "rows.samples"
        with SampleStore.create(self._path, {"row": "bytes"}) as store:
            store.append({"row": blob} for blob in _blobs(rows))

    def open(self) -> "_Store":
        return _Store(SampleStore(self._path))

    def close(self) -> None:
        pass


class _Queries:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def take(self, indices: Array) -> Array:
        execute = self._connection.execute
        query = "SELECT value FROM samples WHERE number = ?"
        return matrix_of([execute(query, (index,)).fetchone()[0] for index in indices.tolist()])


class _Store:
    def __init__(self, store: Any) -> None:
        self._store = store

    def take(self, indices: Array) -> Array:
        return matrix_of([sample["row"] for sample in self._store[indices]])


def matrix_of(blobs: list[bytes]) -> Array:
    """The rows of their bytes: int64 (num_rows, 40)."""
    return np.frombuffer(b"".join(blobs), np.int64).reshape(-1, NUM_SLOTS)


def _blobs(rows: Rows) -> Iterator[bytes]:
    for block in rows.blocks():
        yield from (row.tobytes() for row in block)
