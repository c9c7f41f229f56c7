"""Decoded columns as Arrow record batches, in which an entry of the cache holds them, and back.

A batch has these columns:

- `slot/<name>`: the values of a slot, int64 or float32, in its shape, without nulls: missing is 0,
  NaN, or a list of one of them.
- `other/<name>`: a column that is not a slot, in its type in the table, with nulls.
- `number/<name>`: the same column as float32, if it is numeric, with NaN for null: as labels and
  weights are delivered.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from featstore.base.schema import Slot, SlotKind
from featstore.reading.buffers import Array, Ragged, Values, one_array, scalar_floats, slot_values
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.reader import Rows

_SLOT, _OTHER, _NUMBER = "slot/", "other/", "number/"
# Numbers are read as a slot of floats is: a view.
_FLOAT = Slot(name="", kind=SlotKind.FLOAT)


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
    """What `decoded_batch` adds to the decoded columns of so many rows, at most."""
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
    rows = Rows(file_name=file_name, num_rows=batch.num_rows, table=table, columns=columns)
    return Piece(
        rows=rows,
        slots={slot.name: rows.slot(slot) for slot in selection.slots},
        numbers={
            field.name: _floats(table.column(_NUMBER + field.name))
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


def _floats(column: pa.ChunkedArray) -> Array:
    values = slot_values(column, _FLOAT)
    assert not isinstance(values, Ragged)
    return values


def _is_number(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(is_kind(type_) for is_kind in kinds)
