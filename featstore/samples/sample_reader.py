"""Reads the samples of a store: many with one statement, each compared with its checksum."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from featstore.base.errors import SampleStoreError, UnknownSampleError
from featstore.base.redaction import shown
from featstore.base.sqlite_connection import ForkSafeConnection
from featstore.samples.sample_fields import Sample
from featstore.samples.sample_file import SampleFile, StoreView, value_columns

READ_SAMPLES = 4_096  # of one statement while all samples are read
# CROSS JOIN keeps the order of the loops, so rows come in the order of the positions.
_AT_POSITIONS = "FROM json_each(?) AS wanted CROSS JOIN samples ON position = wanted.value"
_VERSION = "(SELECT version FROM store)"  # evaluated once, and of the same moment as the rows


class SampleReader:
    """A reading connection in each process. Safe for threads, which take turns, and for fork.

    Raises:
        SampleStoreError: As of `SampleFile.connect`.
    """

    def __init__(self, file: SampleFile) -> None:
        self._file = file
        self._connection = ForkSafeConnection(file.connect)
        self.fields = self.view().fields
        values = ", ".join(value_columns(self.fields))
        self._by_position = (
            f"SELECT {_VERSION}, samples.checksum, position, samples.id, {values} {_AT_POSITIONS}"
        )
        self._by_id = (
            f"SELECT {_VERSION}, wanted.key, samples.checksum, position, {values} "
            f"FROM json_each(?) AS wanted LEFT JOIN samples ON samples.id = wanted.value"
        )
        self._ids = f"SELECT {_VERSION}, samples.id {_AT_POSITIONS}"

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone until the end of the block."""
        with self._file.translated(), self._connection.use() as connection:
            if connection is None:
                raise self._file.closed()
            yield connection

    def view(self) -> StoreView:
        """What the store holds now."""
        with self.use() as connection:
            return self._file.view(connection)

    def samples_at(self, positions: list[int], view: StoreView) -> list[Sample]:
        """The samples at positions, in the same order."""
        return self._samples(self._rows(self._by_position, positions, view), 1)

    def ids_at(self, positions: list[int], view: StoreView) -> list[str | None]:
        """The ids of the samples at positions, in the same order."""
        return [one for _, one in self._rows(self._ids, positions, view)]

    def samples_of(self, ids: list[str | None], view: StoreView) -> list[Sample]:
        """The samples of ids, in the same order.

        Raises:
            UnknownSampleError: There is no sample of an id.
        """
        with self.use() as connection:
            rows = connection.execute(self._by_id, (json.dumps(ids),)).fetchall()
        if rows and rows[0][0] != view.version:
            raise self._file.deleted_meanwhile()
        unknown = [row[1] for row in rows if row[3] is None or row[3] >= view.num_samples]
        if unknown:
            raise UnknownSampleError(
                f"sample store {self._file.path}: no sample has id "
                f"{', '.join(shown(ids[place]) for place in sorted(unknown)[:3])}"
                f"{' and others' * (len(unknown) > 3)}; refresh() shows what others appended"
            )
        rows.sort(key=lambda row: int(row[1]))
        # With the id that is wanted: the index, which leads to a sample, has no checksum.
        return self._samples([(*row[2:4], ids[int(row[1])], *row[4:]) for row in rows], 0)

    def has_id(self, one: str | None, view: StoreView) -> bool:
        """Whether a sample has this id."""
        with self.use() as connection:
            version, position = connection.execute(
                f"SELECT {_VERSION}, (SELECT position FROM samples WHERE id = ?)", (one,)
            ).fetchone()
        if version != view.version:
            raise self._file.deleted_meanwhile()
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

    def _rows(self, statement: str, positions: list[int], view: StoreView) -> list[Any]:
        """The rows at positions; their first column is the version."""
        if not positions:
            return []
        with self.use() as connection:
            rows = connection.execute(statement, (json.dumps(positions),)).fetchall()
        if rows and rows[0][0] != view.version:
            raise self._file.deleted_meanwhile()
        if len(rows) != len(positions):
            raise self._missing(view)
        return rows

    def _samples(self, rows: list[Any], first: int) -> list[Sample]:
        """The samples of rows whose columns from `first` on are checksum, position, id, values."""
        samples, sample_of = [], self.fields.sample
        for row in rows:
            stored = row[first + 1 :]
            self._file.require_sound(row[first], stored)
            samples.append(sample_of(stored[2:]))
        return samples

    def _missing(self, view: StoreView) -> SampleStoreError:
        """The error that samples are not there which should be."""
        if self.view().version != view.version:
            return self._file.deleted_meanwhile()
        return self._file.damaged(f"expected {view.num_samples} samples, and some are not there")
