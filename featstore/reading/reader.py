"""Row groups of one open data file, one at a time, as Arrow columns under the names of the
table.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.errors import DataFileError
from featstore.parquet.damage import DAMAGE
from featstore.reading.buffers import Values, as_type, missing_values, slot_values
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import PageReader
from featstore.schema import Slot

_SLICE_BUFFER_BYTES = 1 << 20
_MOST_THREADS = 16  # of one read; each has room of its own


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one file as read: the selected columns of one or more row groups."""

    file_name: str
    num_rows: int
    table: pa.Table
    columns: FileColumns

    @property
    def size_bytes(self) -> int:
        return int(self.table.nbytes)

    def slot(self, slot: Slot) -> Values:
        """The slot's value and offset buffers, views of Arrow's where possible; missing marks where
        the file has none.
        """
        name = self.columns.slots[slot.name]
        if name is None:
            return missing_values(slot, self.num_rows)
        try:
            return slot_values(self.table.column(name), slot)
        except DAMAGE as error:
            raise DataFileError(
                f"{self.file_name}: column {name!r}: expected {slot.arrow_type()}, found {error}"
            ) from error

    def other(self, field: pa.Field) -> pa.ChunkedArray:
        """Another column in the type that the table gives it; nulls where the file has no such
        column.
        """
        return self._typed(self.columns.others[field.name], field.type)

    def slot_column(self, slot: Slot) -> pa.ChunkedArray:
        """The slot as Arrow column, marks and nulls as they are in the file; nulls where the file
        has no such slot.
        """
        return self._typed(self.columns.slots[slot.name], slot.arrow_type(nullable=True))

    def _typed(self, name: str | None, type_: pa.DataType) -> pa.ChunkedArray:
        if name is None:
            return pa.chunked_array([pa.nulls(self.num_rows, type_)])
        column = self.table.column(name)
        try:
            return as_type(column, type_)
        except DAMAGE as error:
            raise DataFileError(
                f"{self.file_name}: column {name!r}: expected {type_}, found {error}"
            ) from error

    def take(self, indices: np.ndarray) -> "Rows":
        """The rows at these places, in this order."""
        return replace(self, num_rows=len(indices), table=self.table.take(pa.array(indices)))

    def pieces(self) -> list["Rows"]:
        """The same rows, cut where the memory of any column is: views, each of one piece of memory
        a column.
        """
        if not self.table.num_columns:
            return [self]
        tables = [pa.Table.from_batches([batch]) for batch in self.table.to_batches()] or [
            self.table
        ]
        return [replace(self, num_rows=table.num_rows, table=table) for table in tables]


class RowGroupReader:
    """Reads a selection of an open file; the caller closes the file and drops one result before
    asking for the next, so that the memory of one at a time is held.

    `as_values`: of slots only `Rows.slot` will be asked, which is quicker where nulls are marks
    from the first. `most_room_bytes`: the memory that threads may take besides the decoded columns,
    each as much as the longest column chunk needs; there are as many threads as fit into it, and
    one in any case.
    """

    def __init__(
        self,
        file: OpenFile,
        selection: Selection,
        *,
        use_threads: bool = True,
        as_values: bool = False,
        most_room_bytes: int | None = None,
    ) -> None:
        self.file = file
        self.columns = file.resolve(selection)
        self._most_room_bytes = most_room_bytes
        self._most_threads = min(pa.cpu_count(), _MOST_THREADS) if use_threads else 1
        self._pages = PageReader(file, selection.slots if as_values else (), self.columns)

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]:
        """Each file that is read, and the columns that are read of it."""
        return [(self.file, self.columns)]

    def read(self, row_groups: Iterable[int]) -> Rows:
        """The rows of these row groups, in order. DataFileError where the file turns out to be
        damaged.

        What the kernels decode is one piece of memory a column, what Arrow does one a row group.
        """
        row_groups = list(row_groups)
        num_threads = self._num_threads(self.file.room_bytes(row_groups, self.columns))
        found = self._pages.read(row_groups, num_threads)
        table = self._table(row_groups, self.columns.leaves_besides(found), num_threads)
        table = self._united(table, found) if found else table
        num_rows = sum(self.file.row_group_rows[index] for index in row_groups)
        return Rows(file_name=self.file.name, num_rows=num_rows, table=table, columns=self.columns)

    def _united(self, table: pa.Table, found: dict[str, pa.Array]) -> pa.Table:
        columns = dict[str, pa.Array | pa.ChunkedArray](found)
        columns |= zip(table.column_names, table.combine_chunks().columns, strict=True)
        return pa.table({name: columns[name] for name in self.columns.places})

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """A row group's rows, at most so many at a time, in less memory and more time; None where
        no column is read.
        """
        return self._slices(row_group, num_rows) if self.columns.leaves else None

    def _slices(self, row_group: int, num_rows: int) -> Iterator[Rows]:
        leaves, file = (
            list(self.columns.leaves),
            self.file.reopened(self.columns, _SLICE_BUFFER_BYTES),
        )
        self.file.require_within(row_group, self.columns.places_of(leaves))
        try:
            use_threads = self._most_threads > 1
            found = file.iter_batches(
                num_rows, row_groups=[row_group], columns=leaves, use_threads=use_threads
            )
            for batch in found:
                table = pa.Table.from_batches([batch])
                yield Rows(
                    file_name=self.file.name,
                    num_rows=batch.num_rows,
                    table=table,
                    columns=self.columns,
                )
        except DAMAGE as error:
            raise self._unreadable(row_group, leaves, error) from error

    def size_bytes(self, row_groups: Iterable[int]) -> int:
        """The memory that the decoded columns of these row groups take, by their numbers of values;
        of texts an estimate.
        """
        return sum(self.file.decoded_bytes(index, self.columns) for index in row_groups)

    def room_bytes(self, row_groups: Iterable[int]) -> int:
        """The memory that reading these row groups takes besides their decoded columns."""
        room_bytes = self.file.room_bytes(list(row_groups), self.columns)
        return room_bytes * self._num_threads(room_bytes)

    def _num_threads(self, room_bytes: int) -> int:
        """How many threads decode, where each takes so much room: as many as fit, one in any
        case.
        """
        most = min(self._most_threads, len(self.columns.leaves))
        if self._most_room_bytes is not None and room_bytes:
            most = min(most, self._most_room_bytes // room_bytes)
        return max(1, most)

    def _no_rows(self) -> pa.Table:
        names = {*self.columns.slots.values(), *self.columns.others.values()} - {None}
        return self.file.schema.empty_table().select(
            sorted(name for name in names if name is not None)
        )

    def _table(self, row_groups: list[int], leaves: list[str], num_threads: int) -> pa.Table:
        # Arrow takes a thread for each column, or none.
        use_threads = num_threads == min(self._most_threads, len(self.columns.leaves)) > 1
        tables = [self._row_group(index, leaves, use_threads) for index in row_groups] or [
            self._no_rows()
        ]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _row_group(self, index: int, leaves: list[str], use_threads: bool) -> pa.Table:
        if not leaves:
            return pa.table({"": pa.nulls(self.file.row_group_rows[index])}).select([])
        places = self.columns.places_of(leaves)
        file = self._file
        with self.file.kept(index, (place for place, _ in places)):
            self.file.require_within(index, places)
            try:
                table = file.read_row_group(index, columns=leaves, use_threads=use_threads)
            except DAMAGE as error:
                raise self._unreadable(index, leaves, error) from error
        if table.num_rows != (expected := self.file.row_group_rows[index]):
            raise DataFileError(
                f"{self.file.name}: row group {index}: expected {expected} rows, as the footer "
                f"says, found {table.num_rows}"
            )
        return table

    @property
    def _file(self) -> pq.ParquetFile:
        return self.file.arrow_file(self.columns)

    def _unreadable(self, index: int, leaves: list[str], error: Exception) -> DataFileError:
        """What is wrong with a row group, of which columns are read one by one to find the first
        that cannot be.
        """
        for leaf in leaves:
            try:
                self._file.read_row_group(index, columns=[leaf], use_threads=False)
            except DAMAGE as found:
                name = self.columns.column_of(leaf)
                return DataFileError(
                    f"{self.file.name}: column {name!r}: row group {index} cannot be read: {found}"
                )
        return DataFileError(f"{self.file.name}: row group {index} cannot be read: {error}")
