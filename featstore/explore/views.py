"""A snapshot as a lazy view of another engine, which reads the data files itself: duckdb and
polars.

The columns are those of `Table.to_arrow`: slots, labels, weight, kept columns, partition keys.
Marks of missing values appear as null, and so do NaN in any column, and a double in a list that
float32 cannot hold. Hence a condition selects the same rows as `where` does, except that these
engines round a literal that is compared with a float32 column. They match columns by name: a slot
that was renamed is null in files written before, where `to_arrow` finds it by its number. Files of
slot groups are joined with the base files by row position.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from featstore.base.errors import missing_extra
from featstore.base.schema import Slot, SlotKind
from featstore.files.storage import absolute, canonical, filesystem, local_path, scheme
from featstore.reading.tables import arrow_schema
from featstore.table.layout import partition_path
from featstore.table.parquet_dir import each_footer
from featstore.table.snapshot import DataFile, Snapshot, TableFile, require_plain_files


def duckdb_view(snapshot: Snapshot, connection: Any = None) -> Any:
    """A `DuckDBPyRelation` over the snapshot, on the given connection or a new one.

    For a remote table the store's fsspec filesystem, with its credentials, is registered with the
    connection. InputError if `require_plain_files` raises it.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise missing_extra("Table.duckdb()", error) from error
    require_plain_files(snapshot, "Table.duckdb()")
    connection = duckdb.connect() if connection is None else connection
    if local_path(snapshot.url) is None and not connection.filesystem_is_registered(
        scheme(canonical(snapshot.url))
    ):
        connection.register_filesystem(filesystem(snapshot.url))
    return connection.sql(_select(snapshot))


def polars_view(snapshot: Snapshot) -> Any:
    """A `polars.LazyFrame` over the snapshot. Remote files are read by polars' own client.
    InputError if `require_plain_files` raises it.
    """
    try:
        import polars
    except ModuleNotFoundError as error:
        raise missing_extra("Table.polars()", error) from error
    require_plain_files(snapshot, "Table.polars()")
    parts = [_lazy(polars, snapshot, part) for part in _parts(snapshot)]
    return (
        polars.concat(parts)
        if parts
        else polars.LazyFrame(polars.from_arrow(_schema(snapshot).empty_table()))
    )


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Files that are read one after the other, and the columns to read; None reads all columns."""

    urls: tuple[str, ...] = field(repr=False)
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Rows of one partition: sources with the same number of rows, joined by position."""

    partition: Mapping[str, str | None]
    sources: tuple[_Source, ...]


def _parts(snapshot: Snapshot) -> list[_Part]:
    """The data files, gathered by partition and by the columns that slot groups' files override."""
    owned = _owned_columns(snapshot)
    grouped: dict[object, list[DataFile]] = {}
    for file in snapshot.data_files:
        grouped.setdefault((partition_path(file.partition), owned.get(file.path)), []).append(file)
    parts = []
    for files in grouped.values():
        # A file without groups is one source, of which all columns are read.
        columns = owned.get(files[0].path, (None,))
        sources = zip(zip(*(file.parts for file in files), strict=True), columns, strict=True)
        parts.append(
            _Part(
                partition=files[0].partition,
                sources=tuple(
                    _Source(urls=tuple(map(_url, of_source)), names=names)
                    for of_source, names in sources
                    if names != ()
                ),
            )
        )
    return parts


def _owned_columns(snapshot: Snapshot) -> dict[str, tuple[tuple[str, ...], ...]]:
    """For each data file with slot groups, by path: the columns to read of itself and of each
    group's file.

    If several files have a column, the last one wins. Columns are taken from each file's footer,
    since the files of a group may differ.
    """
    with_groups = [file for file in snapshot.data_files if file.groups]
    parts = [part for file in with_groups for part in file.parts]
    schemas = each_footer([part.url for part in parts], lambda footer: footer.schema)
    owned = {}
    for file in with_groups:
        unclaimed, claimed = set(_schema(snapshot).names), list[tuple[str, ...]]()
        for schema in reversed([next(schemas) for _ in file.parts]):
            claimed.append(tuple(name for name in schema.names if name in unclaimed))
            unclaimed -= set(claimed[-1])
        owned[file.path] = tuple(reversed(claimed))
    return owned


def _schema(snapshot: Snapshot) -> pa.Schema:
    return arrow_schema(snapshot.schema)


def _url(file: TableFile) -> str:
    return absolute(canonical(file.url))


def _select(snapshot: Snapshot) -> str:
    """One query over all partitions, of which duckdb prunes those that a condition on the partition
    keys excludes.
    """
    # An empty first branch fixes names, types and order of the columns, whatever files lack.
    empty = "SELECT " + ", ".join(
        f"NULL::{_sql_type(field.type)} AS {_name(field.name)}" for field in _schema(snapshot)
    )
    parts = [_select_part(snapshot, part) for part in _parts(snapshot)]
    rows = "\nUNION ALL BY NAME\n".join([f"{empty} WHERE false", *parts])
    slots = snapshot.schema.seen
    shown = (
        _shown(slots[field.name], field)
        if field.name in slots
        else _without_nan(_name(field.name), field.type)
        for field in _schema(snapshot)
    )
    return f"SELECT {', '.join(shown)} FROM ({rows})"


def _select_part(snapshot: Snapshot, part: _Part) -> str:
    """The part's sources in a positional join. duckdb streams it and pushes no filter below it,
    which would change the row positions.
    """
    keys = {key.name: _sql_type(key.type) for key in snapshot.schema.partition_keys}
    values = [
        f"{_text(value)}::{keys[key]} AS {_name(key)}" for key, value in part.partition.items()
    ]
    sources = " POSITIONAL JOIN ".join(f"({_select_source(source)})" for source in part.sources)
    return f"SELECT {', '.join(['*', *values])} FROM {sources}"


def _select_source(source: _Source) -> str:
    names = "*" if source.names is None else ", ".join(map(_name, source.names))
    urls = ", ".join(map(_text, source.urls))
    return (
        f"SELECT {names} FROM read_parquet([{urls}], union_by_name=true, hive_partitioning=false)"
    )


def _shown(slot: Slot, field: pa.Field) -> str:
    """The slot's values with null for missing ones. A list is missing if it holds only marks: one
    of them, or as many as the fixed width.
    """
    name = _name(slot.name)
    value = name if slot.kind is SlotKind.ID else f"TRY_CAST({name} AS {_sql_type(field.type)})"
    if not slot.shape:
        return f"CASE WHEN {_is_mark(slot, name)} THEN NULL ELSE {value} END AS {name}"
    marks = f"len(list_filter({name}, lambda x: {_is_mark(slot, 'x')}))"
    return (
        f"CASE WHEN len({name}) = {slot.width or 1} AND {marks} = len({name}) THEN NULL ELSE "
        f"{value} END AS {name}"
    )


def _is_mark(slot: Slot, value: str) -> str:
    return f"{value} = 0" if slot.kind is SlotKind.ID else _is_nan(value)


def _is_nan(value: str) -> str:
    # duckdb 2.0 assumes that a column holds no NaN unless its Parquet statistics say so, which none
    # do, and folds `isnan` to false. A list in between hides the column from that optimization.
    return f"isnan([{value}][1])"


def _without_nan(name: str, type_: pa.DataType) -> str:
    return (
        f"CASE WHEN {_is_nan(name)} THEN NULL ELSE {name} END AS {name}"
        if pa.types.is_floating(type_)
        else name
    )


def _sql_type(type_: pa.DataType) -> str:
    """The duckdb type of a column."""
    if (
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    ):
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


def _lazy(polars: Any, snapshot: Snapshot, part: _Part) -> Any:
    """One part's rows as a LazyFrame, with the columns of the table in its order."""
    fields = _schema(snapshot)
    types = dict(polars.from_arrow(fields.empty_table()).schema)
    stored = {name: type_ for name, type_ in types.items() if name not in part.partition}
    owned = {name for source in part.sources for name in source.names or stored}
    rows = [_scan(polars, snapshot, source, stored) for source in part.sources]
    literals = [
        polars.lit(value, polars.String).cast(types[key]).alias(key)
        for key, value in part.partition.items()
    ]
    values = [
        literal.fill_nan(None) if types[key].is_float() else literal
        for key, literal in zip(part.partition, literals, strict=True)
    ]
    absent = [
        polars.lit(None, type_).alias(name) for name, type_ in stored.items() if name not in owned
    ]
    joined = rows[0] if len(rows) == 1 else polars.concat(rows, how="horizontal")
    return joined.with_columns(*values, *absent).select(fields.names)


def _scan(polars: Any, snapshot: Snapshot, source: _Source, types: Mapping[str, Any]) -> Any:
    """The source's columns, with null for missing values."""
    read = {name: types[name] for name in source.names or types}
    stored = _stored_types(polars, snapshot, read)
    rows = polars.scan_parquet(
        list(source.urls),
        schema=stored,
        missing_columns="insert",
        extra_columns="ignore",
        hive_partitioning=False,
        glob=False,
        cast_options=polars.ScanCastOptions(integer_cast="upcast", float_cast="upcast"),
    )
    # Files are read in their stored types; casts to the table's types follow the marks, so that a
    # float64 beyond float32 becomes null rather than infinity.
    slots = [slot for slot in snapshot.schema.slots if slot.name in read]
    floats = [
        field.name
        for field in snapshot.schema.others
        if field.name in read and pa.types.is_floating(field.type)
    ]
    arrays = [name for name, type_ in stored.items() if isinstance(type_, polars.Array)]
    return rows.with_columns(polars.col(name).arr.to_list() for name in arrays).with_columns(
        *(_without_mark(polars, slot).cast(read[slot.name]) for slot in slots),
        *(polars.col(name).fill_nan(None) for name in floats),
    )


def _stored_types(polars: Any, snapshot: Snapshot, types: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the columns in the files. featstore stores a fixed-width slot as a list."""
    stored = dict(types)
    for slot in snapshot.schema.slots:
        if slot.name in types:
            value = types[slot.name].inner if slot.shape else types[slot.name]
            value = polars.Float64 if _may_be_float64(slot) else value
            declared = snapshot.schema.foreign.get(slot.name, slot.to_field()).type
            if pa.types.is_boolean(declared.value_type if slot.shape else declared):
                value = polars.Boolean
            stored[slot.name] = polars.List(value) if slot.shape else value
            if slot.name in snapshot.schema.foreign and pa.types.is_fixed_size_list(declared):
                stored[slot.name] = polars.Array(value, slot.width)
    return stored


def _may_be_float64(slot: Slot) -> bool:
    """Whether files may hold float64 where lists of float32 are shown: those that featstore did not
    write.
    """
    return bool(slot.shape) and slot.kind is SlotKind.FLOAT and not slot.is_declared


def _without_mark(polars: Any, slot: Slot) -> Any:
    """The slot's values with null for missing ones, and where float32 cannot hold a float64."""
    value = column = polars.col(slot.name)
    one = polars.element() if slot.shape else column
    is_missing = one == 0 if slot.kind is SlotKind.ID else one.is_nan()
    if _may_be_float64(slot):
        floats = one.cast(polars.Float32)
        is_beyond = floats.is_infinite() & one.is_finite()
        value = column.list.eval(polars.when(is_beyond).then(None).otherwise(floats))
    if not slot.has_marks:
        return value.alias(slot.name)
    if slot.shape:
        marks = column.list.eval(is_missing.fill_null(False)).list.all()
        is_missing = (column.list.len() == (slot.width or 1)) & marks
    return polars.when(is_missing).then(None).otherwise(value).alias(slot.name)
