"""Reads the samples of a store: many with one statement, each compared with its checksum."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from featstore.errors import SampleStoreError, UnknownSampleError
from featstore.redaction import shown
from featstore.sampling.sample_fields import Sample, checksum
from featstore.sampling.sample_file import SampleFile, StoreView, fields_of, value_columns
from featstore.sqlite_connection import ForkSafeConnection

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
        with self.use() as connection:
            self.fields = fields_of(connection)
        columns = ", ".join(["checksum", "samples.id", *value_columns(self.fields)])
        self._by_position = f"SELECT {_VERSION}, {columns} {_AT_POSITIONS}"
        self._by_id = (
            f"SELECT {_VERSION}, wanted.key, position, {columns} "
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
            return StoreView.of(connection)

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
        unknown = [row[1] for row in rows if row[2] is None or row[2] >= view.num_samples]
        if unknown:
            raise UnknownSampleError(
                f"sample store {self._file.path}: no sample has id "
                f"{', '.join(shown(ids[place]) for place in sorted(unknown)[:3])}"
                f"{' and others' * (len(unknown) > 3)}; refresh() shows what others appended"
            )
        return self._samples(sorted(rows, key=lambda row: int(row[1])), 3)

    def position_of_id(self, one: str | None) -> int | None:
        """The position of the sample of an id; None if there is none."""
        with self.use() as connection:
            row = connection.execute("SELECT position FROM samples WHERE id = ?", (one,)).fetchone()
        return None if row is None else int(row[0])

    def imports(self) -> dict[str, str]:
        """The progress of imports by source, as JSON."""
        with self.use() as connection:
            return dict(connection.execute("SELECT source, progress FROM imports").fetchall())

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
        """The samples of rows whose columns from `first` on are checksum, id and values."""
        samples, sample_of = [], self.fields.sample
        for row in rows:
            stored = row[first + 1 :]
            if checksum(stored) != row[first]:
                raise self._file.damaged(
                    f"the values of a sample do not match their checksum (id {shown(stored[0])})"
                )
            samples.append(sample_of(stored[1:]))
        return samples

    def _missing(self, view: StoreView) -> SampleStoreError:
        """The error that samples are not there which should be."""
        if self.view().version != view.version:
            return self._file.deleted_meanwhile()
        return self._file.damaged(f"expected {view.num_samples} samples, and some are not there")
