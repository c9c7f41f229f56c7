"""The statements of a sample store: samples are read, many with one statement, each compared with
its checksum; and added and deleted, in transactions.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from featstore.base.errors import SampleError, UnknownSampleError
from featstore.base.redaction import shown
from featstore.base.sqlite_connection import ForkSafeConnection
from featstore.samples.indices import Array
from featstore.samples.sample_fields import Sample, SampleFields, Stored, checksum
from featstore.samples.sample_file import (
    SQLITE_ERRORS,
    SampleFile,
    StoreView,
    new_version,
    value_columns,
)

READ_SAMPLES = 4_096  # of one statement while all samples are read
# CROSS JOIN keeps the order of the loops, so rows come in the order of the positions.
_AT_POSITIONS = "FROM json_each(?) AS wanted CROSS JOIN samples ON position = wanted.value"
# Evaluated once, and of the same moment as the rows.
_OF_VERSION = "(SELECT version FROM store) = ?"


class SampleReader:
    """A reading connection in each process. Safe for threads, which take turns, and for fork.

    Raises:
        SampleStoreError: As of `SampleFile.connect`.
    """

    def __init__(self, file: SampleFile) -> None:
        self._file = file
        self._connection = ForkSafeConnection(file.connect, file.closed)
        self.fields = self.view().fields
        values = ", ".join(value_columns(self.fields))
        of_sample = f"samples.checksum, position, samples.id, {values}"
        self._one = f"SELECT {of_sample} FROM samples WHERE position = ? AND {_OF_VERSION}"
        self._by_position = f"SELECT {of_sample} {_AT_POSITIONS} WHERE {_OF_VERSION}"
        self._by_id = (
            f"SELECT wanted.key, samples.checksum, position, {values} FROM json_each(?) AS wanted "
            f"LEFT JOIN samples ON samples.id = wanted.value WHERE {_OF_VERSION}"
        )
        self._ids = f"SELECT samples.id {_AT_POSITIONS} WHERE {_OF_VERSION}"
        self._place = f"SELECT (SELECT position FROM samples WHERE id = ?) WHERE {_OF_VERSION}"

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone until the end of the block."""
        with self._file.translated(), self._connection.lock:
            yield self._connection.opened()

    def view(self) -> StoreView:
        """What the store holds now."""
        with self.use() as connection:
            return self._file.view(connection)

    def sample_at(self, position: int, view: StoreView) -> Sample:
        """The sample at a position."""
        [row] = self._rows(self._one, position, 1, view)
        return self._sample(row[0], row[1:])

    def samples_at(self, positions: list[int], view: StoreView) -> list[Sample]:
        """The samples at positions, in the same order."""
        rows = self._rows(self._by_position, json.dumps(positions), len(positions), view)
        return [self._sample(row[0], row[1:]) for row in rows]

    def ids_at(self, positions: list[int], view: StoreView) -> list[str | None]:
        """The ids of the samples at positions, in the same order."""
        rows = self._rows(self._ids, json.dumps(positions), len(positions), view)
        return [one for (one,) in rows]

    def samples_of(self, ids: list[str | None], view: StoreView) -> list[Sample]:
        """The samples of ids, in the same order.

        Raises:
            UnknownSampleError: There is no sample of an id.
        """
        rows = self._rows(self._by_id, json.dumps(ids), len(ids), view)
        unknown = [row[0] for row in rows if row[2] is None or row[2] >= view.num_samples]
        if unknown:
            raise UnknownSampleError(
                f"sample store {self._file.path}: no sample has id "
                f"{', '.join(shown(ids[place]) for place in sorted(unknown)[:3])}"
                f"{' and others' * (len(unknown) > 3)}; refresh() shows what others appended"
            )
        rows.sort(key=lambda row: int(row[0]))
        # With the id that is wanted: the index, which leads to a sample, has no checksum.
        return [self._sample(row[1], (row[2], ids[int(row[0])], *row[3:])) for row in rows]

    def has_id(self, one: str | None, view: StoreView) -> bool:
        """Whether a sample has this id."""
        [(position,)] = self._rows(self._place, one, 1, view)
        return position is not None and position < view.num_samples

    def noted(self, source: str) -> str | None:
        """The progress of an import, as JSON; None before its first transaction."""
        with self.use() as connection:
            return self._file.noted(connection, source)

    def check(self, view: StoreView) -> None:
        """Reads everything that a view shows, and what SQLite can check besides.

        Raises:
            SampleStoreError: The file is damaged.
        """
        with self.use() as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise self._file.damaged(found)
        for first in range(0, view.num_samples, READ_SAMPLES):
            end = min(first + READ_SAMPLES, view.num_samples)
            self.samples_at(list(range(first, end)), view)

    def close(self) -> None:
        """Closes the connection of this process."""
        self._connection.close()

    def _rows(
        self, statement: str, parameter: Stored, num_rows: int, view: StoreView
    ) -> list[tuple[Any, ...]]:
        """The rows of a statement, which gives none where the store has another version."""
        # What `use` does, without its two generators, which take a tenth of reading one sample.
        try:
            with self._connection.lock:
                connection = self._connection.opened()
                rows = connection.execute(statement, (parameter, view.version)).fetchall()
        except SQLITE_ERRORS as error:
            raise self._file.error(error) from error
        if len(rows) != num_rows:
            if self.view().version != view.version:
                raise self._file.deleted_meanwhile()
            raise self._file.damaged(f"expected {view.num_samples} samples, and some are not there")
        return rows

    def _sample(self, found: Stored, stored: Sequence[Stored]) -> Sample:
        """The sample of a checksum, and of position, id and values."""
        self._file.require_sound(found, stored)
        return self.fields.sample(stored[2:])


Row = tuple[str | None, tuple[Stored, ...]]  # id and values
Note = Callable[[sqlite3.Connection, int, int], None]
# A transaction's samples are in memory. More of them would not make writing faster.
_TRANSACTION_SAMPLES, _TRANSACTION_BYTES = 10_000, 16 << 20


class SampleWriter:
    """A writing connection in each process, opened at its first use."""

    def __init__(self, file: SampleFile, fields: SampleFields) -> None:
        self._file, self._fields = file, fields
        columns = ", ".join(value_columns(fields))
        self._whole = f"SELECT checksum, position, id, {columns} FROM samples WHERE position = ?"
        self._connection = ForkSafeConnection(partial(file.connect, to_write=True), file.closed)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction, committed at the end of the block or undone. No code of users runs in it,
        which may fork.
        """
        with self._connection.lock:
            connection = self._connection.opened()
            with self._file.transaction(connection):
                yield connection

    def append(self, rows: Iterable[Row], note: Note) -> Iterator[tuple[int, StoreView]]:
        """Adds rows at the end. `note` is called in each transaction with the number of rows added
        before it, and of those that it adds.

        Yields:
            After each transaction the number of rows added so far, and what the store holds.

        Raises:
            SampleError: `rows` raises it, or an id is taken.
            SampleStoreError: The store has other fields meanwhile, as another file is in its place.
        """
        num_added = 0
        for chunk in _chunks(rows):
            view = self._add(chunk, num_added, note)
            num_added += len(chunk)
            yield num_added, view

    def delete(self, gone: Array, seen: StoreView) -> StoreView:
        """Deletes samples, and moves the last ones into the gaps.

        Args:
            gone: The positions, ascending, each once.
            seen: By which view they were chosen.

        Returns:
            What the store holds then.

        Raises:
            SampleStoreError: Samples were deleted by others meanwhile.
        """
        with self.transaction() as connection:
            now = self._file.view(connection)
            if now.version != seen.version:
                raise self._file.deleted_meanwhile()
            num_left = now.num_samples - len(gone)
            last = np.setdiff1d(np.arange(num_left, now.num_samples), gone, assume_unique=True)
            gaps = gone[gone < num_left]
            connection.executemany(
                "DELETE FROM samples WHERE position = ?", ((row,) for row in gone.tolist())
            )
            for position, gap in zip(last.tolist(), gaps.tolist(), strict=True):
                self._move(connection, position, gap)
            left = replace(now, version=new_version(), num_samples=num_left)
            left.write(connection)
            return left

    def close(self) -> None:
        """Closes the connection of this process."""
        self._connection.close()

    def _move(self, connection: sqlite3.Connection, position: int, gap: int) -> None:
        """Moves a sample into a gap. Its position is part of its checksum."""
        row = connection.execute(self._whole, (position,)).fetchone()
        if row is None:
            raise self._file.damaged(f"there is no sample at position {position}")
        self._file.require_sound(row[0], row[1:])
        connection.execute(
            "UPDATE samples SET position = ?, checksum = ? WHERE position = ?",
            (gap, checksum((gap, *row[2:])), position),
        )

    def _add(self, rows: list[Row], num_before: int, note: Note) -> StoreView:
        with self.transaction() as connection:
            now = self._file.view(connection)
            if now.fields.as_json != self._fields.as_json:
                raise self._file.deleted_meanwhile()
            first = now.num_samples
            marks = ", ".join("?" * (3 + len(self._fields.kinds)))
            try:
                connection.executemany(
                    f"INSERT INTO samples VALUES ({marks})",
                    (
                        (position, one, checksum((position, one, *values)), *values)
                        for position, (one, values) in enumerate(rows, first)
                    ),
                )
            except sqlite3.IntegrityError as error:
                taken = _taken(connection, [one for one, _ in rows], first)
                if taken is None:
                    raise self._file.damaged(
                        f"expected {first} samples, and there are more"
                    ) from error
                raise SampleError(
                    f"id {shown(taken)} is taken: expected another one for each sample; the first "
                    f"{num_before} of those given are stored"
                ) from error
            note(connection, num_before, len(rows))
            grown = replace(now, num_samples=first + len(rows))
            grown.write(connection)
            return grown


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows of each transaction."""
    chunk: list[Row] = []
    num_bytes = num_before = 0
    try:
        for row in rows:
            chunk.append(row)
            num_bytes += sum(len(value) for value in row[1] if isinstance(value, str | bytes))
            if len(chunk) == _TRANSACTION_SAMPLES or num_bytes >= _TRANSACTION_BYTES:
                yield chunk
                num_before += len(chunk)
                chunk, num_bytes = [], 0
    except SampleError as error:
        raise SampleError(
            f"sample {num_before + len(chunk)} of those given: {error}; the first {num_before} are "
            f"stored"
        ) from error
    if chunk:
        yield chunk


def _taken(connection: sqlite3.Connection, ids: list[str | None], first: int) -> str | None:
    """An id of `ids` that is given twice, or that a sample before position `first` has; None if
    there is none.
    """
    counts = Counter(one for one in ids if one is not None)
    for one, count in counts.items():
        if count > 1:
            return one
    row = connection.execute(
        "SELECT samples.id FROM json_each(?) AS wanted JOIN samples "
        "ON samples.id = wanted.value AND position < ?",
        (json.dumps(list(counts)), first),
    ).fetchone()
    return None if row is None else str(row[0])
