"""Reads a data file as Arrow tables in which missing values are null, for notebooks, profiles and
SQL.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from featstore.base.schema import SlotSchema
from featstore.reading.aligned import aligned_reader
from featstore.reading.file_columns import Selection
from featstore.reading.missing import marks_to_nulls, nan_to_null
from featstore.reading.open_file import OpenFile


def read_tables(
    file: OpenFile,
    schema: SlotSchema,
    partition: Mapping[str, str | None],
    groups: Sequence[OpenFile] = (),
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.Table]:
    """Reads a file as one table per row group.

    Missing values are null, whether the file marks them, holds nulls, or lacks the column. NaN is
    null in all columns.

    Args:
        file: The data file. The caller closes it, and the groups.
        schema: The columns to read, in their order.
        partition: Values of the partition keys, as text.
        groups: The open files of its slot groups.
        row_groups: The row groups to read, in this order; None reads all.

    Raises:
        DataFileError: A file is damaged, or a column has another type.
    """
    keys = {field.name for field in schema.partition_keys}
    others = tuple(field for field in schema.to_arrow(nullable=True) if field.name not in schema)
    reader = aligned_reader(file, groups, Selection(slots=schema.slots, others=others))
    target = schema.to_arrow(nullable=True, partition_keys=True)
    for index in range(len(file.row_group_rows)) if row_groups is None else row_groups:
        rows = reader.read([index])
        columns = {slot.name: rows.slot_column(slot) for slot in schema}
        columns |= {field.name: nan_to_null(rows.other(field)) for field in others}
        for name in keys:
            constant = _constant(partition.get(name), target.field(name).type, rows.num_rows)
            columns[name] = nan_to_null(constant)
        table = pa.table([columns[name] for name in target.names], names=target.names)
        yield marks_to_nulls(table, schema.slots).cast(target)


def _constant(value: str | None, type_: pa.DataType, num_rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(value, pa.string()).cast(type_), num_rows)])
