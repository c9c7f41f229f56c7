"""Decoded columns as Arrow record batches, in which an entry of the cache holds them, and back; and
those of one data file as its row groups, in the place of the file itself.

A batch has these columns:

- `slot/<name>`: the values of a slot, int64 or float32, in its shape, without nulls: missing is 0,
  NaN, or a list of one of them.
- `other/<name>`: a column that is not a slot, in its type in the table, with nulls.
- `number/<name>`: the same column as float32, if it is numeric, with NaN for null: as labels and
  weights are delivered.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from featstore.base.closing import Closing
from featstore.base.schema import Slot
from featstore.decoded.entry_file import MappedEntry
from featstore.ops.arrays import values_of
from featstore.reading.buffers import Array, Ragged, Values, one_array, scalar_floats
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import Rows

_SLOT, _OTHER, _NUMBER = "slot/", "other/", "number/"


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Consecutive rows of one data file, as views of decoded memory.

    Attributes:
        rows: The rows, as a reader gives them.
        slots: The values of each slot.
        numbers: Each numeric column that is not a slot, float32 (num_rows,), with NaN for null.
    """

    rows: Rows
    slots: Mapping[str, Values]
    numbers: Mapping[str, Array]

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows


def decoded_batch(rows: Rows, selection: Selection) -> pa.RecordBatch:
    """The selected columns of rows as read, without nulls in slots.

    Raises:
        DataFileError: Values do not fit a slot.
    """
    columns = {_SLOT + slot.name: _arrow_of(rows.slot(slot), slot) for slot in selection.slots}
    for field in selection.others:
        column = rows.other(field)
        columns[_OTHER + field.name] = one_array(column)
        if _is_number(field.type):
            columns[_NUMBER + field.name] = pa.array(scalar_floats(column)[0])
    return pa.record_batch(columns)


def decoded_schema(selection: Selection) -> pa.Schema:
    """The schema of `decoded_batch`."""
    no_rows = {_SLOT + slot.name: slot.arrow_type(nullable=True) for slot in selection.slots}
    for field in selection.others:
        no_rows[_OTHER + field.name] = field.type
        if _is_number(field.type):
            no_rows[_NUMBER + field.name] = pa.float32()
    return pa.schema(no_rows)


def num_bytes_beside(selection: Selection, num_rows: int) -> int:
    """What `decoded_batch` adds at most to the decoded columns of this many rows."""
    return 4 * num_rows * sum(_is_number(field.type) for field in selection.others)


def piece_of(batch: pa.RecordBatch, selection: Selection, file_name: str) -> Piece:
    """The rows of a batch that `decoded_batch` made. Nothing is copied.

    Args:
        batch: The batch.
        selection: The same selection.
        file_name: The name of the data file, for errors.
    """
    table = pa.Table.from_batches([batch])
    columns = columns_of(batch.schema, selection)
    rows = Rows(file_name=file_name, num_rows=batch.num_rows, arrow=table, columns=columns)
    return Piece(
        rows=rows,
        slots={slot.name: rows.slot(slot) for slot in selection.slots},
        numbers={
            field.name: values_of(batch.column(_NUMBER + field.name))
            for field in selection.others
            if _is_number(field.type)
        },
    )


def columns_of(schema: pa.Schema, selection: Selection) -> FileColumns:
    """Where an entry of this schema has the selected columns; None for one that it does not have:
    an entry has the columns that are delivered or looked at, while a label may be a slot, too, that
    nobody asks for.
    """
    names = set(schema.names)

    def name(found: str) -> str | None:
        return found if found in names else None

    return FileColumns(
        slots={slot.name: name(_SLOT + slot.name) for slot in selection.slots},
        others={field.name: name(_OTHER + field.name) for field in selection.others},
        leaves=(),
    )


def no_rows(selection: Selection) -> Piece:
    """A piece without rows."""
    return piece_of(pa.RecordBatch.from_pylist([], decoded_schema(selection)), selection, "")


def _arrow_of(values: Values, slot: Slot) -> pa.Array:
    if isinstance(values, Ragged):
        # A row group with more values than 32 bits count cannot be read as an Arrow list either.
        offsets = pa.array(values.offsets).cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.array(values.values))
    if slot.width is None:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), slot.width)


def _is_number(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(is_kind(type_) for is_kind in kinds)


_ROW_GROUPS = b"row_groups"


def with_row_groups(
    schema: pa.Schema, row_group_rows: Sequence[int], row_group_bytes: Sequence[int]
) -> pa.Schema:
    """The schema of an entry, with the row groups of its data file as `DecodedFile` has them."""
    pairs = list(zip(row_group_rows, row_group_bytes, strict=True))
    return schema.with_metadata({_ROW_GROUPS: json.dumps(pairs)})


def row_groups_of(schema: pa.Schema) -> list[tuple[int, int]]:
    """The rows of each row group of an entry's data file, and the memory that its columns take."""
    return [
        (num_rows, num_bytes) for num_rows, num_bytes in json.loads(schema.metadata[_ROW_GROUPS])
    ]


def has_columns(schema: pa.Schema) -> bool:
    """Whether the data file of an entry with this schema had any of the entry's columns."""
    return any(num_bytes or not num_rows for num_rows, num_bytes in row_groups_of(schema))


class DecodedFile(Closing):
    """An entry of a data file, open. Whoever opened it closes it. For one thread.

    Args:
        entry: The entry, whose ownership passes to this object.
        name: The data file's name in errors, and for what is chosen by it.
        on_close: Called once it is closed.

    Attributes:
        name: As above.
        row_group_rows: Rows of each row group of the data file.
        row_group_bytes: The memory that the entry's columns of each row group take if they are
            read from the data file, as `RowGroupReader.size_bytes` says.
        has_columns: Whether the data file had any of the entry's columns.
    """

    def __init__(self, entry: MappedEntry, name: str, on_close: Callable[[], object]) -> None:
        self.name = name
        self._entry, self._on_close = entry, on_close
        self._table = pa.Table.from_batches(entry.batches, entry.schema)
        found = row_groups_of(entry.schema)
        self.row_group_rows: tuple[int, ...] = tuple(num_rows for num_rows, _ in found)
        self.row_group_bytes: tuple[int, ...] = tuple(num_bytes for _, num_bytes in found)
        self.has_columns = has_columns(entry.schema)

    def reader(self, selection: Selection) -> "DecodedReader":
        """A reader of these columns, which must be among those of the entry."""
        return DecodedReader(
            self._entry, self._table, columns_of(self._table.schema, selection), self
        )

    def close(self) -> None:
        """Allows eviction. Rows that were read stay valid. To be called once."""
        self._entry.close()
        self._on_close()


class DecodedReader:
    """Reads row groups of a `DecodedFile`: views of its memory; made by `DecodedFile.reader`.

    Has the methods of `RowGroupReader`. Row groups that were decoded together, and follow each
    other, are one contiguous array.
    """

    def __init__(
        self, entry: MappedEntry, table: pa.Table, columns: FileColumns, file: DecodedFile
    ) -> None:
        self.columns, self._entry, self._file = columns, entry, file
        names = {*columns.slots.values(), *columns.others.values()} - {None}
        self._table = table.select([name for name in table.column_names if name in names])
        self._first_rows = [0, *accumulate(file.row_group_rows)]

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]:
        """No file is read."""
        return []

    def read(self, row_groups: Iterable[int], chosen: Array | None = None) -> Rows:
        """The rows of these row groups, copied if they are `chosen`, as of `RowGroupReader`.

        Raises:
            StagingError: Somebody wrote to the entry, or truncated it.
        """
        self._entry.require_unchanged()
        runs = list(self._runs(row_groups)) or [(0, 0)]
        tables = [self._table.slice(first, end - first) for first, end in runs]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        rows = Rows(
            file_name=self._file.name,
            num_rows=sum(end - first for first, end in runs),
            arrow=table,
            columns=self.columns,
        )
        return rows if chosen is None else rows.take(chosen)

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """None: rows that are views need no slices."""
        return None

    def size_bytes(self, row_groups: Iterable[int]) -> int:
        """The memory of all columns of the entry in these row groups, whichever are read."""
        return sum(self._file.row_group_bytes[index] for index in row_groups)

    def room_bytes(self, row_groups: Iterable[int], *, in_order: bool = False) -> int:
        """0: nothing is decoded."""
        return 0

    def _runs(self, row_groups: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The rows of row groups that follow each other, without those that have none."""
        first = end = 0
        for index in row_groups:
            if self._first_rows[index] != end and first < end:
                yield first, end
            if self._first_rows[index] != end or first == end:
                first = self._first_rows[index]
            end = self._first_rows[index + 1]
        if first < end:
            yield first, end
