"""A snapshot as a lazy view of another engine, which reads the data files itself: duckdb and polars.

Slots, labels, weight, kept columns, then partition keys, as in `Table.to_arrow`, with marks of missing values shown as null.
These engines know columns by name: a slot that was renamed is null in the files written before, where `to_arrow` finds it by
its number.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from featstore.errors import missing_extra
from featstore.files import canonical, filesystem, local_path, scheme
from featstore.schema import Slot, SlotKind
from featstore.table.layout import partition_path
from featstore.table.snapshot import DataFile, Snapshot


def duckdb_view(snapshot: Snapshot, connection: Any = None) -> Any:
    """A `DuckDBPyRelation` over the snapshot, on the given connection or one of its own. Remote files come through fsspec."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise missing_extra("Table.duckdb()", error) from error
    connection = duckdb.connect() if connection is None else connection
    if local_path(snapshot.url) is None and not connection.filesystem_is_registered(_protocol(snapshot)):
        connection.register_filesystem(filesystem(snapshot.url))
    return connection.sql(_select(snapshot))


def polars_view(snapshot: Snapshot) -> Any:
    """A `polars.LazyFrame` over the snapshot. Remote files are read by polars' own client."""
    try:
        import polars
    except ModuleNotFoundError as error:
        raise missing_extra("Table.polars()", error) from error
    parts = [_scan(polars, snapshot, files) for files in _by_partition(snapshot).values()]
    return polars.concat(parts) if parts else polars.LazyFrame(polars.from_arrow(_schema(snapshot).empty_table()))


def _by_partition(snapshot: Snapshot) -> Mapping[str, list[DataFile]]:
    found: dict[str, list[DataFile]] = {}
    for file in snapshot.data_files:
        found.setdefault(partition_path(file.partition), []).append(file)
    return found


def _schema(snapshot: Snapshot) -> pa.Schema:
    return snapshot.schema.to_arrow(nullable=True, partition_keys=True)


def _url(file: DataFile) -> str:
    path = local_path(file.url)
    return canonical(file.url) if path is None else str(path.absolute())


def _protocol(snapshot: Snapshot) -> str:
    return scheme(canonical(snapshot.url))


def _select(snapshot: Snapshot) -> str:
    """One query over all partitions; duckdb leaves out those that a condition on the keys excludes."""
    empty = "SELECT " + ", ".join(f"NULL::{_sql_type(field.type)} AS {_name(field.name)}" for field in _schema(snapshot))
    parts = [_select_partition(snapshot, files) for files in _by_partition(snapshot).values()]
    rows = "\nUNION ALL BY NAME\n".join([f"{empty} WHERE false", *parts])
    slots = {slot.name: slot for slot in snapshot.schema.slots}
    shown = (_shown(slots[name], _name(name)) if name in slots else _name(name) for name in _schema(snapshot).names)
    return f"SELECT {', '.join(shown)} FROM ({rows})"


def _select_partition(snapshot: Snapshot, files: list[DataFile]) -> str:
    keys = {key.name: _sql_type(key.type) for key in snapshot.schema.partition_keys}
    found = files[0].partition.items()
    values = [f"{_text(value)}::{keys[key]} AS {_name(key)}" for key, value in found]
    urls = ", ".join(_text(_url(file)) for file in files)
    return f"SELECT {', '.join(['*', *values])} FROM read_parquet([{urls}], union_by_name=true, hive_partitioning=false)"


def _shown(slot: Slot, name: str) -> str:
    """The slot's values, the mark of a missing one as null: a list is missing if the mark is all it holds."""
    if not slot.shape:
        return f"CASE WHEN {_is_mark(slot, name)} THEN NULL ELSE {name} END AS {name}"
    marks = f"len(list_filter({name}, lambda x: {_is_mark(slot, 'x')}))"
    return f"CASE WHEN len({name}) = {slot.width or 1} AND {marks} = len({name}) THEN NULL ELSE {name} END AS {name}"


def _is_mark(slot: Slot, value: str) -> str:
    """By way of a list: duckdb 2.0 takes a column whose Parquet statistics name no NaN, as none do, to hold none."""
    return f"{value} = 0" if slot.kind is SlotKind.ID else f"isnan([{value}][1])"


def _sql_type(type_: pa.DataType) -> str:
    """duckdb's type of a column: for an empty table of it, and to cast a partition's value."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return f"{_sql_type(type_.value_type)}[]"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz is None else "TIMESTAMPTZ"
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    return _SQL_TYPES.get(type_, "VARCHAR")


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


_SQL_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.binary(): "BLOB",
}


def _scan(polars: Any, snapshot: Snapshot, files: list[DataFile]) -> Any:
    """One partition's files, with the table's columns in its order."""
    fields = _schema(snapshot)
    keys = {key.name for key in snapshot.schema.partition_keys}
    types = dict(polars.from_arrow(fields.empty_table()).schema)
    stored = {name: type_ for name, type_ in types.items() if name not in keys}
    rows = polars.scan_parquet(
        [_url(file) for file in files],
        schema=_stored_types(polars, snapshot, stored),
        missing_columns="insert",
        extra_columns="ignore",
        hive_partitioning=False,
        glob=False,
    )
    marks = [_without_mark(polars, slot).cast(stored[slot.name]) for slot in snapshot.schema.slots]
    values = [polars.lit(value, polars.String).cast(types[key]).alias(key) for key, value in files[0].partition.items()]
    return rows.with_columns(*marks, *values).select(fields.names)


def _stored_types(polars: Any, snapshot: Snapshot, types: Mapping[str, Any]) -> dict[str, Any]:
    """A fixed width is stored as a list."""
    widths = {slot.name for slot in snapshot.schema.slots if slot.width is not None}
    return {name: polars.List(type_.inner) if name in widths else type_ for name, type_ in types.items()}


def _without_mark(polars: Any, slot: Slot) -> Any:
    column = polars.col(slot.name)
    if not slot.shape:
        return polars.when(_polars_mark(slot, column)).then(None).otherwise(column).alias(slot.name)
    marks = column.list.eval(_polars_mark(slot, polars.element())).list.all()
    missing = (column.list.len() == (slot.width or 1)) & marks
    return polars.when(missing).then(None).otherwise(column).alias(slot.name)


def _polars_mark(slot: Slot, column: Any) -> Any:
    return column == 0 if slot.kind is SlotKind.ID else column.is_nan()
