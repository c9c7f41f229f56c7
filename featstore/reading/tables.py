"""Arrow tables in which missing values are null, for notebooks, profiles and SQL; and conversion
between nulls and the missing marks of slots that have them (0, `[0]`, NaN, `[NaN]`).
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.schema import Slot, SlotKind, SlotSchema, without_places
from featstore.ops.arrays import array_of, values_of
from featstore.ops.lists import flat, mark_missing, offsets_from, positions_of
from featstore.reading.aligned import aligned_reader
from featstore.reading.buffers import Array, SharedLists, converted, rows_left
from featstore.reading.file_columns import Selection
from featstore.reading.histories import SelectedHistory, with_histories
from featstore.reading.open_file import OpenFile


def read_tables(
    file: OpenFile,
    schema: SlotSchema,
    partition: Mapping[str, str | None],
    groups: Sequence[OpenFile] = (),
    row_groups: Sequence[int] | None = None,
    deleted: Array | None = None,
) -> Iterator[pa.Table]:
    """Reads a file as one table per row group, without deleted rows.

    Missing values are null, whether the file marks them, holds nulls, or lacks the column. NaN is
    null in all columns.

    Args:
        file: The data file. The caller closes it, and the groups.
        schema: The columns to read, in their order.
        partition: Values of the partition keys, as text.
        groups: The open files of its slot groups.
        row_groups: The row groups to read, in this order; None reads all.
        deleted: The deleted rows of the file, ascending: int64 (num_deleted,); None: none.

    Raises:
        DataFileError: A file is damaged, or a column has another type.
    """
    keys = {field.name for field in schema.partition_keys}
    seen, target = schema.seen, arrow_schema(schema)
    reader = aligned_reader(file, groups, Selection(slots=seen.slots, others=seen.others))
    first_rows = [0, *itertools.accumulate(file.row_group_rows)]
    for index in range(len(file.row_group_rows)) if row_groups is None else row_groups:
        left = rows_left(deleted, first_rows[index], first_rows[index + 1])
        rows = reader.read([index], None if left.all() else left)
        columns = {slot.name: rows.slot_column(slot) for slot in seen}
        columns |= {field.name: nan_to_null(rows.other(field)) for field in seen.others}
        for name in keys:
            value = pa.scalar(partition.get(name), pa.string()).cast(target.field(name).type)
            columns[name] = nan_to_null(pa.chunked_array([pa.repeat(value, rows.num_rows)]))
        table = pa.table([columns[name] for name in target.names], names=target.names)
        # Not cast: Arrow views no struct with nulls as one whose members may not be null.
        yield pa.table(marks_to_nulls(table, seen.slots).columns, schema=target)


def arrow_schema(schema: SlotSchema) -> pa.Schema:
    """The schema of `read_tables`: nullable, with the partition keys, in the types that predicates
    see.
    """
    kept = {column.name: column.type for column in schema.seen.kept}
    fields = schema.to_arrow(nullable=True, partition_keys=True)
    return without_places(pa.schema([f.with_type(kept.get(f.name, f.type)) for f in fields]))


def read_lists(
    file: OpenFile,
    groups: Sequence[OpenFile],
    histories: Sequence[SelectedHistory],
    row_group: int,
    chosen: Array,
    deleted: Array | None = None,
) -> dict[str, pa.Array]:
    """The slots of histories in some rows of a row group, as lists by name, with nulls for
    missing values.

    Args:
        file: As of `read_tables`, and so `groups` and `deleted`.
        groups: The open files of its slot groups.
        histories: The histories.
        row_group: The row group.
        chosen: Which of the rows that `read_tables` gives of it: int64 (num_rows,).
        deleted: The deleted rows of the file.

    Raises:
        DataFileError: As of `read_tables`, or a row's range is not one of its own key's list.
    """
    if not histories:
        return {}
    first = sum(file.row_group_rows[:row_group])
    left = np.flatnonzero(rows_left(deleted, first, first + file.row_group_rows[row_group]))
    of_rows = aligned_reader(file, groups, Selection())
    rows = with_histories(of_rows, [file, *groups], histories).read([row_group], left[chosen])
    return {
        slot.name: _lists(rows.histories[slot.name], slot)
        for each in histories
        for slot in each.slots
    }


def _lists(shared: SharedLists, slot: Slot) -> pa.Array:
    lengths = shared.lengths
    values = shared.values[positions_of(shared.ranges[:, 0], lengths)]
    if shared.dtype != values.dtype:  # of ages
        as_of, unit = (np.repeat(column, lengths) for column in shared.ranges[:, 2:].T)
        values = ((as_of - values) / unit).astype(np.float32)
    is_missing = values == 0 if slot.kind is SlotKind.ID else np.isnan(values)
    type_ = slot.arrow_type(nullable=True)
    elements = pa.array(values, type_.value_type, mask=is_missing)
    return pa.ListArray.from_arrays(
        array_of(offsets_from(lengths).astype(np.int32)), elements, type_
    )


def marks_to_nulls(table: pa.Table, slots: Iterable[Slot]) -> pa.Table:
    """The table with missing marks of slots as nulls. Nulls, and columns that are not slots, stay.

    Args:
        table: Columns under the slots' names; slots that it lacks are ignored.
        slots: The slots.
    """
    for slot in slots:
        index = table.schema.get_field_index(slot.name)
        if index >= 0:
            chunks = table.column(index).chunks
            if slot.has_marks:
                chunks = [_to_null(chunk, slot) for chunk in chunks]
            type_ = slot.arrow_type(nullable=True)
            column = pa.chunked_array([chunk.cast(type_) for chunk in chunks], type_)
            table = table.set_column(index, slot.to_field(nullable=True), column)
    return table


def nan_to_null(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A label's, a weight's or a kept column with NaN as null, as in slots. Columns of other types
    stay as they are.
    """
    if not pa.types.is_floating(column.type):
        return column
    is_nan = pc.is_nan(column)
    return (
        pc.if_else(is_nan, pa.scalar(None, column.type), column)
        if pc.any(is_nan).as_py()
        else column
    )


def nulls_to_marks(batch: pa.RecordBatch, slots: Iterable[Slot]) -> pa.RecordBatch:
    """The batch with slot columns as data files store them: marks for nulls, and lists without null
    elements. Slots without marks keep their nulls.
    """
    chosen = {slot.name: slot for slot in slots}
    columns = [_to_mark(column, chosen[name]) if name in chosen else column
               for name, column in zip(batch.schema.names, batch.columns, strict=True)]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _to_mark(array: pa.Array, slot: Slot) -> pa.Array:
    array = converted(array, slot.arrow_type(nullable=True))
    if not slot.has_marks:
        return array
    if slot.is_list:
        return mark_missing(flat(array), slot.missing, slot.arrow_type())
    if slot.width is not None:
        # Arrow fills nulls of lists, but not of those of a fixed size. `take` drops an offset.
        lists = pa.list_(array.type.value_type)
        rows = array.take(pa.array(np.arange(len(array)))).cast(lists)
        missing = pa.scalar([slot.missing] * slot.width, lists)
        return pc.fill_null(rows, missing).cast(slot.arrow_type())
    return pc.fill_null(array, pa.scalar(slot.missing, array.type))


def _to_null(array: pa.Array, slot: Slot) -> pa.Array:
    if slot.is_list:
        missing = _are_missing(array, slot)
    elif slot.width is not None:
        elements = array.values.slice(array.offset * slot.width, len(array) * slot.width)
        missing = np.all(_mark_flags(elements, slot).reshape(-1, slot.width), axis=1)
    else:
        return pc.if_else(_is_mark(array, slot), pa.scalar(None, array.type), array)
    return array.take(pa.array(np.arange(len(array)), mask=missing)) if missing.any() else array


def _is_mark(values: pa.Array, slot: Slot) -> pa.Array:
    return pc.equal(values, 0) if slot.kind is SlotKind.ID else pc.is_nan(values)


def _mark_flags(values: pa.Array, slot: Slot) -> np.ndarray:
    """Which values are the missing mark: bool (num_values,), false for null."""
    return values_of(pc.fill_null(_is_mark(values, slot), False))


def _are_missing(array: pa.Array, slot: Slot) -> np.ndarray:
    """Which lists are missing: bool (num_rows,). Their only element is the missing mark."""
    offsets = np.asarray(array.offsets)
    single = np.flatnonzero(np.diff(offsets) == 1)
    missing = np.zeros(len(array), dtype=bool)
    missing[single[_mark_flags(array.values.take(pa.array(offsets[single])), slot)]] = True
    return missing
