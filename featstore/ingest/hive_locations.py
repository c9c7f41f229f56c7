"""A snapshot as Hive sees it: columns, partitions and their locations, and the query of a view that
shows missing values as null. Needs no metastore.

Hive reads every file in a directory, but the table's own directories may also hold orphans of
failed and speculative attempts. So each state of a partition gets a directory of its own, with a
link to each committed file. Its name is a digest of its content, and it never changes once it is
complete.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from featstore.base.errors import ChangedTableError, InputError
from featstore.base.redaction import redact
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.files.listings import list_own
from featstore.files.retry import thread_pool
from featstore.files.storage import delete, join, link, spark_url
from featstore.files.walking import is_hidden
from featstore.ingest.join_query import quote
from featstore.table.layout import partition_path
from featstore.table.snapshot import DataFile, Snapshot, by_partition, files_digest

HIVE_DIR = "_hive"
_DIGEST_CHARS = 32  # 128 bits of the SHA-256
_NUM_LINK_THREADS = 16  # each link waits for the file system, so more threads than cores help
_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}
# False for NaN in both: Spark orders NaN above infinity, Hive does not order it at all.
_IS_NUMBER = "{} <= CAST('Infinity' AS DOUBLE)"
_NESTED = re.compile(r"(?P<kind>array|struct)<(?P<inner>.*)>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a Hive table: its name, Hive type and comment."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True, kw_only=True)
class Location:
    """A directory with exactly the committed files of one partition; `url` is below the table's."""

    partition: Mapping[str, str]
    url: str = field(repr=False)
    files: tuple[DataFile, ...]


def columns(schema: SlotSchema) -> tuple[Column, ...]:
    """Returns the columns of the data files in order, without partition keys.

    Raises:
        InputError: Hive has no type for a column.
    """
    slots = {slot.name: slot.comment for slot in schema.slots}
    return tuple(
        Column(
            name=field.name,
            type=hive_type(field.type, field.name),
            comment=slots.get(field.name, ""),
        )
        for field in schema.to_arrow()
    )


def partition_columns(schema: SlotSchema) -> tuple[Column, ...]:
    """Returns the partition keys, which Hive lists after all other columns."""
    return tuple(
        Column(name=key.name, type=hive_type(key.type, key.name), comment="")
        for key in schema.partition_keys
    )


def hive_type(type_: pa.DataType, name: str) -> str:
    """Returns the Hive type that reads a Parquet column of an Arrow type.

    Args:
        name: The column's name, for the error.

    Raises:
        InputError: Hive has no such type.
    """
    if type_ in _TYPES:
        return _TYPES[type_]
    if pa.types.is_timestamp(type_):
        return "timestamp"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_map(type_):
        return f"map<{hive_type(type_.key_type, name)},{hive_type(type_.item_type, name)}>"
    if (
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    ):
        return f"array<{hive_type(type_.value_type, name)}>"
    if pa.types.is_struct(type_):
        return (
            f"struct<{','.join(f'{field.name}:{hive_type(field.type, name)}' for field in type_)}>"
        )
    raise InputError(
        f"column {name!r} is {type_}, for which Hive has no type; leave it out of what the spec "
        f"keeps"
    )


def in_order(type_: str) -> str:
    """Returns a Hive type with the members of structs in the order of their names, where Hive's
    reader of Parquet finds them by name. Below maps and lists of lists it takes them by place.
    """
    found = _NESTED.fullmatch(type_)
    if found is None or type_.startswith("array<array<"):
        return type_
    if found["kind"] == "array":
        return f"array<{in_order(found['inner'])}>"
    named = (member.partition(":") for member in _members(found["inner"]))
    return f"struct<{','.join(sorted(f'{name}:{in_order(of)}' for name, _, of in named))}>"


def _members(text: str) -> Iterator[str]:
    """Yields what commas divide that lie in no brackets."""
    first = depth = 0
    for at, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            yield text[first:at]
            first = at + 1
    yield text[first:]


def locations(snapshot: Snapshot) -> tuple[Location, ...]:
    """Returns the Hive locations of a snapshot's partitions, in path order. Pure.

    Raises:
        InputError: A partition key is null, or two files of one partition have the same name.
    """
    return tuple(_location(snapshot, files) for files in by_partition(snapshot.data_files).values())


def make_locations(wanted: Iterable[Location]) -> int:
    """Links each file into its location; returns the number of files in the locations.

    Idempotent, and safe to run concurrently: files never change, so an existing link is right.
    """
    pairs = [
        (file.url, join(location.url, posixpath.basename(file.path)))
        for location in wanted
        for file in location.files
    ]
    if not pairs:
        return 0
    with thread_pool(min(_NUM_LINK_THREADS, len(pairs))) as threads:
        return len(list(threads.map(lambda pair: link(*pair), pairs)))


def remove_vacuumed(snapshot: Snapshot) -> int:
    """Removes links to data files that have been vacuumed; returns their number.

    A location of a former state thus lasts until the table is vacuumed, with the same grace period
    for readers. A link to a directory is not followed.

    Raises:
        ChangedTableError: A file of the snapshot is not where the table is listed, so others may
            not be seen either. Nothing is removed.
        OSError: The table cannot be listed. Nothing is removed.
    """
    entries = list_own(snapshot.url, ".parquet")
    links = [entry for entry in entries if entry.name.startswith(f"{HIVE_DIR}/")]
    seen = {
        posixpath.basename(entry.name)
        for entry in entries
        if not any(map(is_hidden, entry.name.split("/")))
    }
    unseen = sorted(
        file.path for file in snapshot.data_files if posixpath.basename(file.path) not in seen
    )
    if unseen:
        raise ChangedTableError(
            f"{redact(snapshot.url)}: expected all data files of version {snapshot.version} in a "
            f"listing, found {len(unseen)} of {len(snapshot.data_files)} missing ({unseen[0]}, "
            f"...); what is registered is up to date, and nothing is removed below {HIVE_DIR}/: "
            f"run it again, or restore the files"
        )
    stale = [entry for entry in links if posixpath.basename(entry.name) not in seen]
    for entry in stale:
        delete(entry.url)
    return len(stale)


def hive_root(url: str) -> str:
    """Returns the directory of all locations of a table, in the form that a metastore stores."""
    return join(spark_url(url), HIVE_DIR)


def _location(snapshot: Snapshot, files: list[DataFile]) -> Location:
    partition = {key: value for key, value in files[0].partition.items() if value is not None}
    if len(partition) < len(files[0].partition):
        where = partition_path(files[0].partition)
        raise InputError(
            f"{redact(snapshot.url)}: partition {where} has a null key, which cannot be "
            f"registered; rewrite it"
        )
    if len({posixpath.basename(file.path) for file in files}) < len(files):
        raise InputError(
            f"{redact(snapshot.url)}: two data files of {partition_path(partition)} have one name; "
            f"compact the partition"
        )
    return Location(
        partition=partition,
        url=join(hive_root(snapshot.url), files_digest(files)[:_DIGEST_CHARS]),
        files=tuple(files),
    )


def view_query(schema: SlotSchema, table: str) -> str:
    """Returns a SELECT of all columns of a registered table, partition keys last. Pure.

    What is null are the marks of missing values, and NaN in any column, as in `Table.duckdb()`.

    Args:
        schema: The schema of the table's snapshot.
        table: The registered table, as `db.table`.
    """
    slots = {slot.name: slot for slot in schema.slots}
    columns = (
        f"{_value(quote(field.name), field.type, slots.get(field.name))} AS {quote(field.name)}"
        for field in schema.to_arrow(partition_keys=True)
    )
    database, _, name = table.partition(".")
    return f"SELECT {', '.join(columns)} FROM {quote(database)}.{quote(name)}"


def _value(column: str, type_: pa.DataType, slot: Slot | None) -> str:
    if slot is None:
        is_float = pa.types.is_floating(type_)
        return f"CASE WHEN {_IS_NUMBER.format(column)} THEN {column} END" if is_float else column
    if not slot.has_marks:
        return column
    if not slot.shape:
        return f"CASE WHEN {_is_mark(slot, column)} THEN NULL ELSE {column} END"
    # A list is missing if all of its elements are marks: if the least and the greatest are. The
    # first branch keeps Spark from looking at elements that are not there, which it refuses.
    num_marks = slot.width or 1
    ends = [f"sort_array({column})[{at}]" for at in sorted({0, num_marks - 1})]
    are_marks = " AND ".join(_is_mark(slot, end) for end in ends)
    return (
        f"CASE WHEN size({column}) <> {num_marks} THEN {column} WHEN {are_marks} THEN NULL "
        f"ELSE {column} END"
    )


def _is_mark(slot: Slot, value: str) -> str:
    return f"{value} = 0" if slot.kind is SlotKind.ID else f"NOT ({_IS_NUMBER.format(value)})"
