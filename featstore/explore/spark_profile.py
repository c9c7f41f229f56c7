"""Profiles of big tables, and of what Spark can query, computed on Spark from the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from featstore.errors import InputError, nearest
from featstore.explore.profile import Profile
from featstore.explore.stored import rows_profile
from featstore.explore.table import Table
from featstore.extraction.spark.row_statistics import gather_dataframe, gather_items
from featstore.schema import SlotSchema
from featstore.selection.where import select
from featstore.table.snapshot import DataFile, Snapshot


def profile_table(
    spark: Any, table: Table, where: str | None = None, slots: Sequence[str] | None = None
) -> Profile:
    """As `table.profile(where, slots)`, computed on a Spark session, a task for each data file, in
    one pass.

    Distinct values, quantiles and top values are estimates, as in stored statistics, and label
    rates of top values null.
    """
    schema = table.schema
    if slots is not None:
        schema = replace(schema, slots=tuple(schema[name] for name in select(slots, schema.names)))
    read = partial(
        _rows,
        replace(table.snapshot, data_files=()),
        None if slots is None else schema.names,
        where,
    )
    found = gather_items(spark, schema, table.data_files(where), read)
    return rows_profile(found, schema.slots, _numbers(schema))


def profile_dataframe(dataframe: Any, labels: Sequence[str] = ()) -> Profile:
    """The profile of a Spark DataFrame, in one pass: integers are ids, floats are floats, lists of
    either are lists.

    Columns of other types are left out. 0, NaN and lists of only one of these are missing, as is
    null. `labels` are numbers. InputError where there is no column to profile, or no such label.
    """
    columns = dataframe.limit(0).toArrow().schema
    for name in labels:
        if name not in columns.names:
            raise InputError(f"no label {name!r} among the columns{nearest(name, columns.names)}")
    found = SlotSchema.from_arrow(
        pa.schema([column for column in columns if column.name not in labels])
    )
    schema = SlotSchema(slots=found.slots, labels=tuple(columns.field(name) for name in labels))
    if not schema.slots:
        raise InputError(
            f"no column of integers, floats or lists of them to profile; found "
            f"{', '.join(columns.names)}"
        )
    return rows_profile(gather_dataframe(dataframe, schema), schema.slots, _numbers(schema))


def _rows(
    snapshot: Snapshot, slots: Sequence[str] | None, where: str | None, file: DataFile
) -> Iterator[pa.RecordBatch]:
    return Table(replace(snapshot, data_files=(file,))).to_batches(slots, where)


def _numbers(schema: SlotSchema) -> list[str]:
    return [label.name for label in schema.labels if not pa.types.is_nested(label.type)]
