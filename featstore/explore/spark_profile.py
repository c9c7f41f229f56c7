"""Profiles of large tables and of Spark DataFrames, computed from the rows by Spark tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from featstore.base.errors import InputError, nearest
from featstore.base.schema import SlotSchema
from featstore.explore.profile import Profile, numeric_labels
from featstore.explore.profiling import rows_profile
from featstore.explore.table import Table, selected_schema
from featstore.explore.whatis import named_profile
from featstore.extraction.spark.row_statistics import gather_dataframe, gather_items
from featstore.statistics.stale_groups import require_fresh
from featstore.table.snapshot import DataFile, FileList, Snapshot


def profile_table(
    spark: Any, table: Table, where: str | None = None, slots: Sequence[str] | None = None
) -> Profile:
    """Profiles a table in one pass over its rows, with a Spark task for each data file.

    Distinct values, quantiles and top values are estimates, as in stored statistics. Label rates of
    top values are null.

    Args:
        spark: A Spark session.
        table: The table.
        where: A predicate; by default every row counts.
        slots: Names and globs of slots; by default all.

    Raises:
        StaleGroupError: A slot group of the selection is stale.
    """
    schema = selected_schema(table.schema, slots)
    require_fresh(table.snapshot, table.data_files(where), schema.column_names)
    # The snapshot travels to every task, so the list of its files is left out.
    read = partial(
        _rows,
        replace(table.snapshot, data_files=FileList.of()),
        None if slots is None else schema.names,
        where,
    )
    statistics = gather_items(spark, schema, table.data_files(where), read)
    found = rows_profile(statistics, schema.slots, numeric_labels(schema))
    return named_profile(found, table.snapshot)


def profile_dataframe(dataframe: Any, labels: Sequence[str] = ()) -> Profile:
    """Profiles a Spark DataFrame in one pass.

    Columns of integers are treated as ids, floating point columns as floats, and lists of either as
    lists. Columns of other types are left out. Null and NaN count as missing, and 0 as a value: of
    a table of featstore `profile_table` knows the missing marks, and the view with nulls has none.

    Args:
        dataframe: A Spark DataFrame.
        labels: Columns of numbers that are labels.

    Raises:
        InputError: There is no column to profile, or no such label.
    """
    columns = dataframe.limit(0).toArrow().schema
    for name in labels:
        if name not in columns.names:
            raise InputError(f"no label {name!r} among the columns{nearest(name, columns.names)}")
    features = pa.schema([column for column in columns if column.name not in labels])
    schema = SlotSchema(
        slots=SlotSchema.from_arrow(features).slots,
        labels=tuple(columns.field(name) for name in labels),
    )
    if not schema.slots:
        raise InputError(
            f"no column of integers, floats or lists of them to profile; found "
            f"{', '.join(columns.names)}"
        )
    return rows_profile(gather_dataframe(dataframe, schema), schema.slots, numeric_labels(schema))


def _rows(
    snapshot: Snapshot, slots: Sequence[str] | None, where: str | None, file: DataFile
) -> Iterator[pa.RecordBatch]:
    return Table(replace(snapshot, data_files=FileList.of((file,)))).to_batches(slots, where)
