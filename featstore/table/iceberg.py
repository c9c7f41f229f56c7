"""Iceberg tables through pyiceberg, which reads a table's metadata; the data files are read as
those of all tables are.

Columns are found in data files by field id, see `FieldId`. Columns by whose values files are
partitioned are partition keys; other partition transforms only help to leave out files.
https://iceberg.apache.org/spec/
"""

import contextlib
import errno
import re
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa

from featstore.base.errors import (
    ConfigError,
    DataFileError,
    FeatstoreError,
    InputError,
    StoreError,
    TableNotFoundError,
    import_extra,
    nearest,
)
from featstore.base.libraries import LazyModule
from featstore.base.redaction import redact, secrets_in
from featstore.base.schema import BY_ID, FIELD_ID, ROLE, SLOT, FieldId, Role, SlotSchema
from featstore.files.retry import Failures, current_policy, thread_pool
from featstore.files.storage import absolute, open_read
from featstore.files.store_errors import as_store_errors, client_words, is_lasting
from featstore.native.column_types import plain_type
from featstore.selection.predicate import Range
from featstore.table.delta import Commit
from featstore.table.iceberg_deletes import Deletes, unreadable
from featstore.table.metadata import KEY
from featstore.table.parquet_dir import each_footer
from featstore.table.snapshot import AFTER, VERSION, FileList, Snapshot, read_query

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

# Without it a program that reads no Iceberg table needs no pyiceberg.
_arrow: Any = LazyModule("pyiceberg.io.pyarrow")
_catalogs: Any = LazyModule("pyiceberg.catalog")
_config: Any = LazyModule("pyiceberg.utils.config")
_conversions: Any = LazyModule("pyiceberg.conversions")
_exceptions: Any = LazyModule("pyiceberg.exceptions")
_manifests: Any = LazyModule("pyiceberg.manifest")
_serializers: Any = LazyModule("pyiceberg.serializers")
_snapshots: Any = LazyModule("pyiceberg.table.snapshots")
_tables: Any = LazyModule("pyiceberg.table")

T = TypeVar("T")

_URLS = re.compile(
    r"(iceberg://(?P<catalog>[^/?@]+)/(?P<table>[^/?]+\.[^/?]+)"
    r"|iceberg\+(?P<file>.+?\.metadata\.json))(\?(?P<query>.*))?",
    re.DOTALL,
)
_EXPECTED = (
    "expected iceberg://CATALOG/NAMESPACE.TABLE, or iceberg+URL of a file that ends in "
    ".metadata.json, such as iceberg+s3://bucket/db/t/metadata/N.metadata.json"
)
_WHAT = "a table of Iceberg"
_EMPTY = -1  # the snapshot of a table without any, as metadata files of format 1 have it
# Manifests that are read at once: each is one request to the store, then Python.
_NUM_THREADS = 8
# Operations after which a range of snapshots still is the rows of its appends.
_ROWS_STAY = ("append", "replace")
# Of a table that shows one of featstore: a property, and the comment of a slot (`Slot.comment`).
_MIRRORED, _SLOT_COMMENT = f"{KEY}.version", re.compile(r"slot (\d+), ")
# The types whose bounds `where` compares.
_BOUNDED = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_date32),
    pa.types.is_timestamp,
)
# The types of partition keys, whose values have a text that Arrow reads back.
_KEYS = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal),
    *(pa.types.is_string, pa.types.is_date, pa.types.is_timestamp),
)


@dataclass(frozen=True, kw_only=True)
class _Address:
    """What an Iceberg URL says. Those that differ in `named` only are equal.

    Attributes:
        catalog: The catalog's name in pyiceberg's configuration; None for a metadata file.
        table: The table's name in the catalog, or the URL of the metadata file.
        version: A snapshot's id, or the name of a tag or branch; by default the current snapshot.
        after: Likewise; only files that were appended after it.
        named: All of that, and values of partition keys, as `read_query` gives them: only files of
            these partitions.
    """

    catalog: str | None
    table: str = field(repr=False)
    version: str | None = None
    after: str | None = None
    named: Mapping[str, str] = field(default_factory=dict, compare=False)


def is_iceberg(url: str) -> bool:
    """Whether a URL names an Iceberg table."""
    return url.startswith(("iceberg://", "iceberg+"))


def is_metadata_file(url: str) -> bool:
    """Whether a URL names an Iceberg table by a metadata file, which never changes."""
    return is_iceberg(url) and parse_address(url).catalog is None


def open_iceberg(
    url: str, version: int | str | None = None, schema_id: int | None = None
) -> Snapshot:
    """Opens a snapshot of an Iceberg table.

    Columns and their names are those of the table's current schema if the current snapshot or a
    branch is opened, and otherwise those that they were at the snapshot.

    Args:
        url: `iceberg://CATALOG/NAMESPACE.TABLE`, of a catalog of pyiceberg's configuration, or
            `iceberg+URL` of a metadata file. `?version=` chooses a snapshot in place of the newest,
            `&after=` those files alone that were appended since another one, and other names the
            partitions with these values.
        version: A snapshot's id, or the name of a tag or branch, in place of that of the URL.
        schema_id: The schema whose columns and names are taken, as of `Snapshot`: which one is
            current changes, and a reader that goes on keeps its own.

    Raises:
        InputError: The URL is malformed, or a range of snapshots has others than appends.
        ConfigError: pyiceberg's configuration has no such catalog.
        TableNotFoundError: There is no table, or not in this version or with this schema.
        DataFileError: The table has what featstore or pyiceberg does not read, such as equality
            deletes.
        MissingDependencyError: pyiceberg is not installed.
        StoreError: The catalog or the store cannot be reached or refuses.
    """
    address = parse_address(url)
    if version is not None:
        address = replace(address, version=str(version))
    return open_address(url, address, schema_id)[0]


def open_address(
    url: str, address: _Address, schema_id: int | None = None
) -> tuple[Snapshot, bool]:
    """As `open_iceberg`, and whether the address may name other files later: those of a branch, and
    not of a range.
    """
    wanted = address.version
    with _as_errors(url):
        table = _load(url, address)
        chosen = _snapshot_of(url, table, wanted)
        if schema_id is None:
            schema_id = _schema_id_of(table, chosen, wanted)
        may_move = address.catalog is not None and address.after is None
        may_move = may_move and (wanted is None or _is_branch(table, wanted))
        schema = _schema_of(url, table, schema_id)
        return _opened(url, address, table, chosen, schema), may_move


def _opened(
    url: str,
    address: _Address,
    table: "Table",
    chosen: "IcebergSnapshot | None",
    schema: "Schema",
) -> Snapshot:
    """A snapshot, by its manifests."""
    entries, deletes = list["ManifestEntry"](), Deletes()
    if chosen is not None:
        entries, deletes = _manifests_of(url, table, chosen, address.after)
    root = f"{table.metadata.location.rstrip('/')}/"
    # The last one of a path counts.
    by_path = {entry.data_file.file_path.removeprefix(root): entry for entry in entries}
    entries = [*by_path.values()]
    stored = [entry.data_file for entry in entries]
    _check_files(url, stored)
    fields = _columns(url, table, schema)
    used = {file.spec_id for file in stored} or {table.spec().spec_id}
    values = {spec_id: _values(table, spec_id) for spec_id in used}
    keys = _keys(values.values(), {number: each for each, number in fields})
    paths, urls = [*by_path], urls_of(file.file_path for file in stored)
    files = FileList.of_columns(
        paths=paths,
        urls=urls,
        size_bytes=[file.file_size_in_bytes for file in stored],
        num_rows=[file.record_count for file in stored],
        masks=(deletes.mask_of(entry) for entry in entries) if deletes else None,
        partitions=(_partition(file, keys, values) for file in stored) if keys else None,
    ).of_values(url, address.named, keys.values())
    columns = [(column, number) for column, number in fields if number not in keys]
    by_number = {number: column for column, number in columns}
    _require_stored(values, by_number, stored)
    ranges = _ranges(table, schema, columns, (by_path[path].data_file for path in files.paths))
    return Snapshot(
        url=url,
        version=_EMPTY if chosen is None else chosen.snapshot_id,
        schema=SlotSchema.from_arrow(
            pa.schema([each for each, _ in fields]), [key.name for key in keys.values()]
        ),
        data_files=replace(files, ranges=ranges),
        schema_id=schema.schema_id,
    )


def history_of_iceberg(url: str) -> list[Commit]:
    """The snapshots that lead to the current one, as far as the table still knows them, newest
    first. Raises what `open_iceberg` raises.
    """
    with _as_errors(url):
        table = _load(url, parse_address(url))
        return [
            Commit(
                version=each.snapshot_id,
                timestamp_ms=each.timestamp_ms,
                operation=_operation(each),
                metadata=None,
            )
            for each in _snapshots.ancestors_of(table.current_snapshot(), table.metadata)
        ]


def parse_address(url: str) -> _Address:
    """What an Iceberg URL says. InputError if it is none, or says something twice."""
    found = _URLS.fullmatch(url)
    if found is None:
        raise InputError(f"{redact(url)}: not the URL of an Iceberg table: {_EXPECTED}")
    options = read_query(url, found["query"] or "")
    return _Address(
        catalog=found["catalog"],
        table=found["table"] or found["file"],
        version=options.get(VERSION),
        after=options.get(AFTER),
        named=options,
    )


@contextlib.contextmanager
def _as_errors(url: str, secrets: Collection[str] = ()) -> Iterator[None]:
    """Translates what pyiceberg raises in the block; no message shows `secrets`."""
    import_extra("pyiceberg", _WHAT)
    with as_store_errors(url, secrets):
        try:
            yield
        except (_exceptions.NoSuchTableError, _exceptions.NoSuchNamespaceError):
            raise TableNotFoundError(
                f"no table at {redact(url)}: the catalog has none of this name"
            ) from None
        except FileNotFoundError as error:
            if isinstance(error, FeatstoreError):
                raise
            raise TableNotFoundError(
                f"{redact(url)}: a file of the table's metadata is missing "
                f"({client_words(url, error, secrets)}): was its snapshot expired?"
            ) from None
        except (_exceptions.NotInstalledError, ModuleNotFoundError) as error:
            raise ConfigError(
                f"{redact(url)}: the catalog needs another package "
                f"({client_words(url, error, secrets)}): install it, or pyiceberg's extra of the "
                "catalog's type"
            ) from None
        except (_exceptions.ValidationError, ValueError, NotImplementedError) as error:
            if isinstance(error, FeatstoreError):
                raise
            raise DataFileError(
                f"{redact(url)}: pyiceberg cannot read its metadata "
                f"({client_words(url, error, secrets)})"
            ) from None


def _load(url: str, address: _Address) -> "Table":
    """The table's metadata."""
    loaded: Table
    if address.catalog is None:
        files = _OwnFiles()
        # Not `StaticTable.from_metadata`: it takes clients that the table's properties name.
        loaded = _tables.StaticTable(
            identifier=("metadata", address.table),
            metadata=_serializers.FromInputFile.table_metadata(files.new_input(address.table)),
            metadata_location=address.table,
            io=files,
            catalog=None,
        )
        return loaded
    loaded = in_catalog(url, address.catalog, lambda catalog: catalog.load_table(address.table))
    return loaded


def in_catalog(url: str, name: str, act: Callable[["Catalog"], T]) -> T:
    """What `act` returns of a catalog, which is open for as long. It is called again while the
    catalog or a store is in trouble, so that it must be able to.

    Args:
        url: The table, for errors.
        name: The catalog's name in pyiceberg's configuration.
        act: Called with the catalog.

    Raises:
        ConfigError: The configuration has no such catalog, or it is wrong.
        MissingDependencyError: pyiceberg is not installed.
        StoreError: The catalog cannot be reached or refuses.
    """
    import_extra("pyiceberg", _WHAT)
    # Read anew: pyiceberg reads it once, when it is imported.
    config = _config.Config()
    if (found := config.get_catalog_config(name)) is None:
        known = config.get_known_catalogs()
        raise ConfigError(
            f"{redact(url)}: pyiceberg's configuration has no catalog {name!r}"
            f"{nearest(name, known)}: expected it in .pyiceberg.yaml, or in variables "
            f"PYICEBERG_CATALOG__{name.upper()}__URI and the like"
        )
    secrets = secrets_in({key: each for key, each in found.items() if isinstance(each, str)})
    failures = Failures()
    while True:
        try:
            with _as_errors(url, secrets), _catalog(url, name, found, secrets) as catalog:
                return act(catalog)
        except StoreError as error:
            _pause(url, failures, error)


def _catalog(
    url: str, name: str, properties: Mapping[str, Any], secrets: Collection[str]
) -> "Catalog":
    try:
        found: Catalog = _catalogs.load_catalog(name, **properties)
    except ValueError as error:
        raise ConfigError(
            f"{redact(url)}: pyiceberg's configuration of catalog {name!r} is wrong "
            f"({client_words(url, error, secrets)})"
        ) from None
    return found


def _pause(url: str, failures: Failures, error: StoreError) -> None:
    """Waits after a failure of a catalog, whose clients do not retry. Raises it if it is final."""
    met = error.__context__  # what the client raised
    is_final = error.errno != errno.EIO or (isinstance(met, Exception) and is_lasting(url, met))
    asked_s = error.retry_after_s
    pause_s = None if is_final else failures.add(current_policy(), asked_s=asked_s)
    if pause_s is None:
        raise error
    time.sleep(pause_s)


class _OwnFiles:
    """What pyiceberg reads metadata with where no catalog says how: featstore's own clients."""

    def new_input(self, location: str) -> "_OwnFile":
        return _OwnFile(location)


@dataclass(frozen=True)
class _OwnFile:
    location: str

    def open(self, seekable: bool = True) -> BinaryIO:
        return open_read(self.location)


def _snapshot_of(url: str, table: "Table", wanted: str | None) -> "IcebergSnapshot | None":
    """The snapshot of an id or of a name; None for that of a table without any."""
    if wanted is None:
        return table.current_snapshot()
    if wanted == str(_EMPTY):
        return None
    found = table.snapshot_by_name(wanted)
    if found is None and wanted.isdecimal():
        found = table.snapshot_by_id(int(wanted))
    if found is None:
        known = [*table.refs(), *(str(each.snapshot_id) for each in table.snapshots())]
        raise TableNotFoundError(
            f"{redact(url)}: no snapshot, tag or branch {wanted!r}{nearest(wanted, known)}"
        )
    return found


def _is_branch(table: "Table", name: str) -> bool:
    found = table.refs().get(name)
    return found is not None and str(found.snapshot_ref_type) == "branch"


def _schema_id_of(table: "Table", chosen: "IcebergSnapshot | None", wanted: str | None) -> int:
    """The current schema for the current snapshot and those of branches, otherwise the snapshot's
    own.
    """
    if (
        chosen is None
        or chosen.schema_id is None
        or chosen == table.current_snapshot()
        or (wanted is not None and _is_branch(table, wanted))
    ):
        return int(table.metadata.current_schema_id)
    return int(chosen.schema_id)


def _schema_of(url: str, table: "Table", schema_id: int) -> "Schema":
    found = table.schemas().get(schema_id)
    if found is None:
        raise TableNotFoundError(
            f"{redact(url)}: no schema {schema_id}, found {', '.join(map(str, table.schemas()))}: "
            "was it expired? Open the newest version"
        )
    return found


def _operation(snapshot: "IcebergSnapshot") -> str:
    return "unknown" if snapshot.summary is None else str(snapshot.summary.operation.value)


def _manifests_of(
    url: str, table: "Table", chosen: "IcebergSnapshot", after: str | None
) -> "tuple[list[ManifestEntry], Deletes]":
    """The live data files of a snapshot, or those that were appended since another one, and the
    records of their deleted rows.
    """
    deletes, of_data = Deletes(), []
    for manifest in chosen.manifests(table.io):
        if manifest.content == _manifests.ManifestContent.DATA:
            of_data.append(manifest)
        else:
            deletes.add(url, table.io, manifest)
    if after is None:
        return list(read_entries(table, of_data)), deletes
    appended = _appended(url, table, chosen, after)
    # Files that were rewritten since are in manifests of their own snapshots only.
    found = {each: None for one in appended.values() for each in one.manifests(table.io)}
    entries = read_entries(table, [each for each in found if each.added_snapshot_id in appended])
    is_added = _manifests.ManifestEntryStatus.ADDED
    return [e for e in entries if e.status == is_added and e.snapshot_id in appended], deletes


def read_entries(table: "Table", manifests: Iterable[Any]) -> "Iterator[ManifestEntry]":
    """The entries of manifests that are not deleted ones."""
    with thread_pool(_NUM_THREADS) as threads:
        for entries in threads.map(lambda each: each.fetch_manifest_entry(table.io), manifests):
            yield from entries


def _appended(
    url: str, table: "Table", chosen: "IcebergSnapshot", after: str
) -> "dict[int, IcebergSnapshot]":
    """The appending snapshots between two, by id.

    Raises:
        InputError: The first is none that the other one came from, or others than appends lie
            between.
    """
    first = _snapshot_of(url, table, after)
    first_id = _EMPTY if first is None else first.snapshot_id
    found = dict[int, "IcebergSnapshot"]()
    for each in _snapshots.ancestors_of(chosen, table.metadata):
        if each.snapshot_id == first_id:
            return found
        operation = _operation(each)
        if operation not in _ROWS_STAY:
            raise InputError(
                f"{redact(url)}: expected only appends after snapshot {first_id}, found "
                f"snapshot {each.snapshot_id} ({operation}), which also takes rows away: begin "
                f"after it, or take whole snapshots"
            )
        if operation == "append":
            found[each.snapshot_id] = each
        if each.parent_snapshot_id is None and first is None:
            return found
    raise InputError(
        f"{redact(url)}: expected a snapshot that {chosen.snapshot_id} came from, found "
        f"{first_id}: is it of another branch?"
    )


def _check_files(url: str, files: Iterable[Any]) -> None:
    """DataFileError if a data file is one that featstore does not read."""
    parquet = _manifests.FileFormat.PARQUET
    for file in files:
        if file.file_format != parquet:
            raise unreadable(url, f"data files of {file.file_format.value.title()}", file.file_path)
        if file.key_metadata is not None:
            raise unreadable(url, "encrypted data files", file.file_path)


def _columns(url: str, table: "Table", schema: "Schema") -> list[tuple[pa.Field, int]]:
    """The columns as Arrow fields, each with its id."""
    mapping = table.name_mapping()
    names = {each.field_id: _names(each) for each in mapping or ()}
    found = []
    for column, described in zip(_arrow.schema_to_pyarrow(schema), schema.fields, strict=True):
        number = described.field_id
        type_ = plain_type(column.type)
        by_id = FieldId(
            number=number,
            names=names.get(number, ()),
            default=_default(url, described, type_),
        )
        metadata: dict[str | bytes, str] = {FIELD_ID: str(number), BY_ID: str(by_id)}
        slot = _SLOT_COMMENT.match(described.doc or "")
        if slot and _MIRRORED in table.properties:  # It has the missing marks of that table.
            metadata |= {ROLE: str(Role.SLOT), SLOT: slot[1]}
        found.append((pa.field(column.name, type_, metadata=metadata), number))
    return found


def _names(mapped: Any) -> tuple[str, ...]:
    """The names of a column in files without ids; none if members of it have several, since members
    are read by name.
    """
    inner = list(mapped.fields)
    while inner:
        each = inner.pop()
        if len(each.names) != 1:
            return ()
        inner += each.fields
    return tuple(mapped.names)


def _default(url: str, described: Any, type_: pa.DataType) -> str | None:
    """The text of a column's initial default, which Arrow casts to its type.

    Raises:
        DataFileError: It is of another type, or of a member of a struct.
    """
    value = described.initial_default
    member = _member_with_default(described.field_type)
    if member is None and (value is None or _is_key(type_)):
        return None if value is None else _text(value, type_)
    found = f"of type {type_}" if member is None else f"of the member {member!r} of a struct"
    raise DataFileError(
        f"{redact(url)}: column {described.name!r}: an initial default {found} is not read: leave "
        "it out of the table, or write the files without it again"
    )


def _member_with_default(type_: Any) -> str | None:
    """The name of a member within a type of Iceberg, at any depth, that has an initial default."""
    inner = (getattr(type_, f"{name}_field", None) for name in ("element", "key", "value"))
    for member in getattr(type_, "fields", None) or filter(None, inner):
        if member.initial_default is not None:
            return str(member.name)
        if (found := _member_with_default(member.field_type)) is not None:
            return found
    return None


def _is_key(type_: pa.DataType) -> bool:
    return any(is_kind(type_) for is_kind in _KEYS)


def _text(value: Any, type_: pa.DataType) -> str:
    """The text of a value, as of a manifest or of metadata, that Arrow casts to the type."""
    if isinstance(value, bool):
        return str(int(value))  # read as a boolean, and as an id
    if isinstance(value, int) and (pa.types.is_date(type_) or pa.types.is_timestamp(type_)):
        number = pa.array([value], pa.int32() if pa.types.is_date(type_) else pa.int64())
        return str(number.view(type_).cast(pa.string())[0])
    return str(value)


def _keys(
    values: Iterable[list[tuple[int, int]]], columns: Mapping[int, pa.Field]
) -> dict[int, pa.Field]:
    """The partition keys by field id: columns by whose values all files are partitioned, whatever
    other transforms there are. A file that is not would have no value of the key.

    Args:
        values: What the files' partition specs divide by, as of `_values`.
        columns: The columns by field id.
    """
    shared = set.intersection(*({number for _, number in of_spec} for of_spec in values))
    return {
        number: column
        for number, column in columns.items()
        if number in shared and _is_key(column.type)
    }


def _values(table: "Table", spec_id: int) -> list[tuple[int, int]]:
    """The columns by whose values a partition spec divides: places in a file's partition, and ids
    of columns.
    """
    fields = enumerate(table.specs()[spec_id].fields)
    return [(at, each.source_id) for at, each in fields if str(each.transform) == "identity"]


def urls_of(paths: Iterable[str]) -> list[str]:
    """`absolute` of paths, in a tenth of the time where they share directories."""
    directories, urls = dict[str, str](), list[str]()
    for path in paths:
        directory = path[: path.rfind("/") + 1]
        if directory not in directories:
            directories[directory] = f"{absolute(directory).removesuffix('/')}/"
        urls.append(directories[directory] + path[len(directory) :])
    return urls


def _partition(
    file: Any, keys: Mapping[int, pa.Field], values: Mapping[int, list[tuple[int, int]]]
) -> dict[str, str | None]:
    """The values of the partition keys of a file; `values` are `_values` of each spec."""
    found = {keys[n]: file.partition[at] for at, n in values[file.spec_id] if n in keys}
    return {
        key.name: None if value is None else _text(value, key.type) for key, value in found.items()
    }


def _require_stored(
    values: Mapping[int, list[tuple[int, int]]],
    columns: Mapping[int, pa.Field],
    files: Iterable[Any],
) -> None:
    """Checks that files hold the columns of which their partitions have a value, as migrated files
    do not. Footers are read of those whose metrics do not tell.

    Args:
        values: `_values` of each partition spec.
        columns: The columns that are read from files, by id.
        files: Data files, as of manifests.

    Raises:
        DataFileError: A file does not hold one.
    """
    unsure = list[tuple[str, list[int]]]()
    values = {spec: [of for of in found if of[1] in columns] for spec, found in values.items()}
    for file in files:
        if not (of_spec := values[file.spec_id]):
            continue
        counted = file.value_counts or {}
        numbers = [
            number
            for at, number in of_spec
            if number not in counted and file.partition[at] is not None
        ]
        if numbers:
            unsure.append((file.file_path, numbers))
    urls = [absolute(path) for path, _ in unsure]
    for (path, numbers), schema in zip(
        unsure, each_footer(urls, lambda footer: footer.file_schema), strict=True
    ):
        for number in numbers:
            names = FieldId.parse(columns[number].metadata[BY_ID].decode()).names
            by_name = not schema.by_id and not schema.by_name.keys().isdisjoint(names)
            if number not in schema.by_id and not by_name:
                raise DataFileError(
                    f"{redact(path)}: expected column {columns[number].name!r} in the file, found "
                    "its value in the partition only, while other files are not partitioned by "
                    "it: rewrite the data files"
                )


def _ranges(
    table: "Table", schema: "Schema", columns: list[tuple[pa.Field, int]], files: Iterable[Any]
) -> dict[str, Range]:
    """The bounds in files of those columns of a schema by which the table is partitioned or sorted:
    those of others seldom exclude a file, and take memory.
    """
    orders = [each.fields for each in (*table.specs().values(), *table.sort_orders().values())]
    chosen = {each.source_id for fields_of in orders for each in fields_of}
    fields = pa.schema([column for column, _ in columns])
    seen = SlotSchema.from_arrow(fields).seen.to_arrow(nullable=True)
    bounded = [
        (column, number)
        for column, number in columns
        if number in chosen and SLOT not in column.metadata
    ]
    listed = [*files] if bounded else []
    return {
        column.name: range_
        for column, number in bounded
        if (range_ := _range(schema, column, number, seen.field(column.name).type, listed))
        is not None
    }


def _range(
    schema: "Schema", column: pa.Field, number: int, type_: pa.DataType, files: Sequence[Any]
) -> Range | None:
    """The bounds of a column in files, in the type in which predicates see it; None for a type in
    which they cannot be used.
    """
    if not any(is_kind(column.type) for is_kind in _BOUNDED):
        return None
    sides = ("lower_bounds", "upper_bounds")
    ends = (_bounds(files, side, column, schema.find_type(number), number) for side in sides)
    low, high = (each.cast(type_, safe=False) for each in ends)
    num_nulls = [(file.null_value_counts or {}).get(number) for file in files]
    num_values = [(file.value_counts or {}).get(number) for file in files]
    is_float = pa.types.is_floating(column.type)  # NaN is null, and within no bounds
    return Range(
        low=low,
        high=high,
        may_be_null=np.array([is_float or num != 0 for num in num_nulls], bool),
        may_be_value=np.array(
            [num is None or num != of for num, of in zip(num_nulls, num_values, strict=True)], bool
        ),
    )


def _bounds(
    files: Sequence[Any], side: str, column: pa.Field, stored: Any, number: int
) -> pa.Array:
    """Bounds as of manifests, in the type of their column, which may have been widened since;
    `stored` is its type in the table's schema.

    Raises:
        DataFileError: One is of another length, or no text.
    """
    type_, numbers = column.type, list[Any]()
    for file in files:
        found: bytes | None = (getattr(file, side) or {}).get(number)
        if found is None:
            numbers.append(None)
            continue
        try:
            numbers.append(_conversions.from_bytes(stored, found))
        except (struct.error, ValueError):
            raise DataFileError(
                f"{redact(file.file_path)}: column {column.name!r}: expected {side} of type "
                f"{type_} in the manifest, found {len(found)} bytes that are none: write the "
                "table's manifests again"
            ) from None
    if not pa.types.is_date(type_) and not pa.types.is_timestamp(type_):
        return pa.array(numbers, type_)
    return pa.array(numbers, pa.int32() if pa.types.is_date(type_) else pa.int64()).view(type_)
