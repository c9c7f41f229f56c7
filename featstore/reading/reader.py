"""Reads row groups of one open data file as Arrow columns under the names of the table."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from featstore.base.errors import DataFileError
from featstore.base.processes import cached_property
from featstore.base.schema import Slot
from featstore.native.damage import damage_as
from featstore.ops.arrays import array_of
from featstore.reading.buffers import (
    Array,
    SharedLists,
    Values,
    as_type,
    chosen_rows,
    missing_values,
    num_chosen,
    slot_values,
)
from featstore.reading.field_ids import absent_value
from featstore.reading.file_columns import FileColumns, FileLeaf, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import NOTHING_DECODED, DecodedColumns, PageReader, Take

# How much of a column chunk is read at once in slices. Less takes more requests of a remote store.
_SLICE_BUFFER_BYTES = 1 << 20
_NONE = pa.table({})
# Threads of one read. Each has its own working memory, and a row group has few large columns.
_MOST_THREADS = 16
# Each thread decodes so many bytes: fewer take less time than its start, 50 to 90 us.
_THREAD_BYTES = 1 << 17


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one file as read: the selected columns of one or more row groups.

    Made by a reader, in the decoding thread. Consumed by filters and the assembler. Owns the
    columns' memory.

    Attributes:
        file_name: The file's name in errors.
        num_rows: Number of rows.
        arrow: The columns under their names in the file.
        columns: Which of them is which selected column.
        decoded: Further columns, which the kernels have decoded. Then each column, also of those
            above, is one contiguous array.
        histories: The slots of histories, by name.
        own_lists_bytes: The memory of lists that were made of others while reading.
        positions: The rows' numbers in the data file, int64 (num_rows,), where they are asked for.
    """

    file_name: str
    num_rows: int
    arrow: pa.Table
    columns: FileColumns
    decoded: DecodedColumns = field(default_factory=lambda: NOTHING_DECODED)
    histories: "Histories" = field(default_factory=dict)
    own_lists_bytes: int = 0
    positions: Array | None = None

    @cached_property
    def table(self) -> pa.Table:
        """All columns under their names in the file."""
        if not self.decoded:
            return self.arrow
        found = {name: (each.field, each.array) for name, each in self.decoded.items()}
        for field_, column in zip(self.arrow.schema, self.arrow.columns, strict=True):
            found[field_.name] = field_, column
        fields, columns = zip(*(found[name] for name in self.columns.places), strict=True)
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    @property
    def size_bytes(self) -> int:
        return int(self.table.nbytes)

    @cached_property
    def history_bytes(self) -> int:
        """The memory of the lists of all rows, once they are gathered."""
        counts = {id(each.ranges): int(each.lengths.sum()) for each in self.histories.values()}
        lists = self.histories.values()
        return sum(counts[id(each.ranges)] * each.dtype.itemsize for each in lists)

    def slot(self, slot: Slot) -> Values:
        """The slot's values, views of Arrow's buffers where possible; missing marks, or the table's
        default, if the file does not have the slot. DataFileError if its values do not fit the
        slot.
        """
        name = self.columns.slots[slot.name]
        if name is None:
            return missing_values(slot, self.num_rows)
        if name in self.decoded:
            return self.decoded[name].values
        with self._expecting(slot.arrow_type(), name):
            return slot_values(self.arrow.column(name), slot)

    def other(self, field: pa.Field) -> pa.ChunkedArray:
        """A column that is not a slot, in the type of the table; nulls, or the table's default, if
        the file does not have it.
        """
        return self._typed(self.columns.others[field.name], field)

    def slot_column(self, slot: Slot) -> pa.ChunkedArray:
        """The slot as an Arrow column, with missing marks and nulls as in the file; nulls, or the
        table's default, if the file does not have it.
        """
        return self._typed(self.columns.slots[slot.name], slot.to_field(nullable=True))

    def _typed(self, name: str | None, field: pa.Field) -> pa.ChunkedArray:
        type_ = field.type
        if name is None:
            return pa.chunked_array([pa.repeat(absent_value(field), self.num_rows)])
        found = self.decoded.get(name)
        column = self.arrow.column(name) if found is None else pa.chunked_array([found.array])
        with self._expecting(type_, name):
            return as_type(column, type_)

    def _expecting(self, type_: pa.DataType, name: str) -> AbstractContextManager[None]:
        where = f"{self.file_name}: column {name!r}"
        return damage_as(
            lambda error: DataFileError(f"{where}: expected {type_}, found {error}"), where
        )

    def take(self, chosen: np.ndarray) -> "Rows":
        """The chosen rows, as of `RowGroupReader.read`."""
        table = self.table.take(array_of(chosen_rows(chosen)))
        return replace(
            self,
            num_rows=num_chosen(chosen),
            arrow=table,
            decoded=NOTHING_DECODED,
            histories=chosen_lists(self.histories, chosen),
            positions=None if self.positions is None else self.positions[chosen],
        )

    def beside(self, table: pa.Table, columns: FileColumns) -> "Rows":
        """The same rows with other columns of theirs, too.

        Args:
            table: These columns under their names in the file.
            columns: Which of them is which selected column.
        """
        sides = (self.arrow, table)
        arrow = pa.table({name: side.column(name) for side in sides for name in side.column_names})
        return replace(
            self,
            arrow=arrow.combine_chunks() if self.decoded else arrow,
            columns=FileColumns(
                slots={**self.columns.slots, **columns.slots},
                others={**self.columns.others, **columns.others},
                leaves=(*self.columns.leaves, *columns.leaves),
            ),
        )

    def pieces(self) -> list["Rows"]:
        """The same rows in pieces, in each of which every column is one contiguous Arrow array."""
        if self.decoded or not self.arrow.num_columns:
            return [self]
        tables = [pa.Table.from_batches([batch]) for batch in self.arrow.to_batches()]
        found, end = [], 0
        for table in tables or [self.arrow]:
            rows, end = slice(end, end + table.num_rows), end + table.num_rows
            of_piece = chosen_lists(self.histories, rows)
            positions = None if self.positions is None else self.positions[rows]
            found.append(
                replace(
                    self,
                    num_rows=table.num_rows,
                    arrow=table,
                    histories=of_piece,
                    positions=positions,
                )
            )
        return found


Histories = Mapping[str, SharedLists]


def chosen_lists(histories: Histories, chosen: Array | slice) -> dict[str, SharedLists]:
    """The lists of rows that are chosen as numpy indexes arrays. Shared ranges stay shared."""
    known = {id(each.ranges): each.ranges for each in histories.values()}
    found = {number: ranges[chosen] for number, ranges in known.items()}
    return {
        name: SharedLists(each.values, found[id(each.ranges)]) for name, each in histories.items()
    }


class RowGroupReader:
    """Reads a selection of an open file. Not thread-safe.

    To hold the memory of one result at a time, drop each before reading the next.

    Args:
        file: The file. The caller closes it.
        selection: The columns to read.
        num_threads: In how many threads columns of a local file are decoded, at most 16; None: one
            for each core that Arrow uses. Those of another file are decoded in the caller's.
        as_values: Whether only `Rows.slot` will be called for slots, and not `Rows.slot_column`.
            That is faster, since nulls are decoded as missing marks.
        most_room_bytes: The working memory that all decoding threads together may take, each as
            much as the largest column chunk needs. It limits the number of threads, but there is at
            least one. None is no limit.
        take: As of `PageReader`, for slots of local files.

    Raises:
        DataFileError: A column cannot be what was selected.
    """

    def __init__(
        self,
        file: OpenFile,
        selection: Selection,
        *,
        num_threads: int | None = None,
        as_values: bool = False,
        most_room_bytes: int | None = None,
        take: Take | None = None,
    ) -> None:
        self.file = file
        self.columns = file.resolve(selection)
        self._most_room_bytes = most_room_bytes
        # Threads of Arrow's pool may free what they decode after `read` has returned, at the
        # interpreter's end too. The bytes of files that are not local are Python's.
        most_threads = min(num_threads or pa.cpu_count(), _MOST_THREADS)
        self._most_threads = most_threads if file.is_local else 1
        self._pages = PageReader(
            file,
            selection.slots if as_values else (),
            self.columns,
            take,
            others=selection.others,
        )

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]:
        """The files that are read, each with the columns that are read from it."""
        return [(self.file, self.columns)]

    def read(self, row_groups: Iterable[int], chosen: Array | None = None) -> Rows:
        """The rows of these row groups.

        A column that the kernels decode is one contiguous array; one that Arrow decodes has one
        array per row group.

        Args:
            row_groups: The row groups.
            chosen: The rows: int64 (num_chosen,), in this order, each row of the row groups at most
                once, which takes more working memory; or bool (num_rows,), those for which it is
                true, as they lie in the file. None: all of them.

        Raises:
            DataFileError: The file is damaged. Names the column and row group.
            StateError: Reading was cancelled.
        """
        row_groups = list(row_groups)
        most_threads = 1 + self.size_bytes(row_groups) // _THREAD_BYTES
        room_bytes = self._room_bytes(row_groups, in_order=chosen is not None)
        num_threads = min(most_threads, self._num_threads(room_bytes))
        found = self._pages.read(row_groups, num_threads, chosen)
        others = [leaf for leaf in self.columns.leaves if leaf.column not in found]
        table = self._table(row_groups, others, num_threads) if others or not found else _NONE
        if chosen is not None and table.num_columns:
            indices, schema, columns = array_of(chosen_rows(chosen)), table.schema, []
            # One by one: no two of them are in memory in both orders.
            while table.num_columns:
                columns.append(table.column(0).take(indices))
                table = table.remove_column(0)
            table = pa.Table.from_arrays(columns, schema=schema)
        num_rows = sum(self.file.row_group_rows[index] for index in row_groups)
        return Rows(
            file_name=self.file.name,
            num_rows=num_rows if chosen is None else num_chosen(chosen),
            arrow=table.combine_chunks() if found else table,
            columns=self.columns,
            decoded=found,
        )

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema([self.file.schema.field(name) for name in self.columns.places])

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """A row group in slices of at most `num_rows` rows, which takes less memory and more time;
        None if no column is read.
        """
        return self._slices(row_group, num_rows) if self.columns.leaves else None

    def _slices(self, row_group: int, num_rows: int) -> Iterator[Rows]:
        leaves = list(self.columns.leaves)
        file = self.file.reopened(self.columns, _SLICE_BUFFER_BYTES)
        self.file.require_within(row_group, leaves)
        with self._reading(row_group, leaves):
            use_threads = self._most_threads > 1
            found = file.iter_batches(
                num_rows, row_groups=[row_group], columns=_paths(leaves), use_threads=use_threads
            )
            for batch in found:
                table = pa.Table.from_batches([batch])
                yield Rows(
                    file_name=self.file.name,
                    num_rows=batch.num_rows,
                    arrow=table,
                    columns=self.columns,
                )

    def size_bytes(self, row_groups: Iterable[int]) -> int:
        """The memory that the decoded columns of these row groups take, computed from their numbers
        of values. For text columns it is an estimate.
        """
        return sum(self._size_bytes[index] for index in row_groups)

    @cached_property
    def _decoded_bytes(self) -> Array:
        return self.file.decoded_bytes(self.columns)

    @cached_property
    def _size_bytes(self) -> list[int]:
        return list(map(int, self._decoded_bytes.sum(axis=1)))

    @cached_property
    def _stored_bytes(self) -> list[int]:
        """The working memory of decoding the largest column chunk of each row group."""
        row_groups = range(len(self.file.row_group_rows))
        return self.file.footer.room_bytes(row_groups, self.columns.leaf_places)

    def room_bytes(self, row_groups: Iterable[int], *, in_order: bool = False) -> int:
        """The working memory of reading these row groups, beyond their decoded columns.

        Args:
            row_groups: The row groups.
            in_order: Whether their rows are read in another order than that of the file.
        """
        room_bytes = self._room_bytes(list(row_groups), in_order=in_order)
        return room_bytes * self._num_threads(room_bytes)

    def _room_bytes(self, row_groups: list[int], *, in_order: bool) -> int:
        """The working memory of one thread. Columns that are put in order are decoded there."""
        room_bytes = max((self._stored_bytes[index] for index in row_groups), default=0)
        if not in_order:
            return room_bytes
        of_columns = self._decoded_bytes[row_groups].sum(axis=0)
        return room_bytes + int(of_columns.max(initial=0))

    def _num_threads(self, room_bytes: int) -> int:
        """How many threads decode if each takes `room_bytes` of working memory; at least one."""
        most = min(self._most_threads, len(self.columns.leaves))
        if self._most_room_bytes is not None and room_bytes:
            most = min(most, self._most_room_bytes // room_bytes)
        return max(1, most)

    def _table(self, row_groups: list[int], leaves: list[FileLeaf], num_threads: int) -> pa.Table:
        # Arrow uses one thread per column, or none at all.
        use_threads = num_threads == min(self._most_threads, len(self.columns.leaves)) > 1
        tables = [self._row_group(index, leaves, use_threads) for index in row_groups]
        if not tables:
            return pa.Table.from_batches([], self._schema)  # `empty_table` imports pandas
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _row_group(self, index: int, leaves: list[FileLeaf], use_threads: bool) -> pa.Table:
        if not leaves:
            return pa.table({"": pa.nulls(self.file.row_group_rows[index])}).select([])
        file = self.file.arrow_file(self.columns)
        with self.file.kept(index, (leaf.place for leaf in leaves)):
            self.file.require_within(index, leaves)
            with self._reading(index, leaves):
                table = file.read_row_group(index, columns=_paths(leaves), use_threads=use_threads)
        if table.num_rows != (expected := self.file.row_group_rows[index]):
            raise DataFileError(
                f"{self.file.name}: row group {index}: expected {expected} rows, as the footer "
                f"says, found {table.num_rows}"
            )
        return table

    def _reading(self, index: int, leaves: list[FileLeaf]) -> AbstractContextManager[None]:
        """Names what Arrow cannot read in the block."""
        return damage_as(lambda error: self._unreadable(index, leaves, error), self.file.where)

    def _unreadable(self, index: int, leaves: list[FileLeaf], error: Exception) -> DataFileError:
        """The error for a row group that Arrow cannot read. Reads its columns one by one, to name
        the first that fails.
        """
        what, file = f"row group {index} cannot be read", self.file.arrow_file(self.columns)
        for leaf in leaves:
            where = f"{self.file.name}: column {leaf.column!r}"
            with damage_as(partial(_error_at, f"{where}: {what}"), self.file.where):
                file.read_row_group(index, columns=[leaf.path], use_threads=False)
        return _error_at(f"{self.file.name}: {what}", error)


def _paths(leaves: Iterable[FileLeaf]) -> list[str]:
    return [leaf.path for leaf in leaves]


def _error_at(where: str, error: Exception) -> DataFileError:
    return DataFileError(f"{where}: {' '.join(str(error).split())}")
