"""Iceberg tables that show a table: each snapshot names the data files of one version.

They lie below the table, `_iceberg/CATALOG/NAMESPACE.TABLE`, which is also how they are known.
Manifests have no bounds of columns, so no value of a deleted row stays in them.
https://iceberg.apache.org/spec/
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.column_ids import stored_schema
from featstore.base.errors import CommitConflictError, FeatstoreError, InputError
from featstore.base.libraries import LazyModule
from featstore.base.redaction import redact
from featstore.files.listings import list_own
from featstore.files.storage import absolute, canonical, delete, join, local_path
from featstore.table.delta import open_delta
from featstore.table.groups import with_groups
from featstore.table.iceberg import in_catalog, parse_address, read_entries
from featstore.table.layout import ICEBERG_DIR, mirror_of, mirror_path
from featstore.table.metadata import KEY
from featstore.table.parquet_dir import without_ids
from featstore.table.snapshot import DataFile, Snapshot, require_plain_files

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as Entry
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_arrow: Any = LazyModule("pyiceberg.io.pyarrow")
_exceptions: Any = LazyModule("pyiceberg.exceptions")
_manifests: Any = LazyModule("pyiceberg.manifest")
_partitioning: Any = LazyModule("pyiceberg.partitioning")
_schemas: Any = LazyModule("pyiceberg.schema")
_transforms: Any = LazyModule("pyiceberg.transforms")
_typedef: Any = LazyModule("pyiceberg.typedef")
_update: Any = LazyModule("pyiceberg.table.update")

_VERSION, _DIGEST = f"{KEY}.version", f"{KEY}.digest"
_SNAPSHOT = f"{KEY}.snapshot"  # the id of the snapshot that shows the version
T = TypeVar("T")
_PROPERTIES = {
    "gc.enabled": "false",  # The data files are the table's, and only its vacuum removes them.
    "commit.retry.num-retries": "0",  # A conflict means another version: it is looked at again.
    "commit.manifest-merge.enabled": "true",  # A commit a day or an hour adds as many manifests.
    "write.metadata.delete-after-commit.enabled": "true",
}
# An attempt is repeated only if another registration or another commit came first.
_MAX_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """The result of a registration.

    Attributes:
        name: The URL of the Iceberg table, which now shows `version` of the table.
        num_added: Data files that it did not show before.
        num_removed: Data files that it does not show any more.
        created: Whether it is new.
        hidden: Slot groups whose columns it does not show.
    """

    name: str
    table_url: str = field(repr=False)
    version: int
    num_added: int = 0
    num_removed: int = 0
    created: bool = False
    hidden: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = f"version {self.version} of {redact(self.table_url)}"
        without = f"; without slot groups {', '.join(self.hidden)} until `featstore table compact`"
        end = without if self.hidden else ""
        if not (self.created or self.num_added or self.num_removed):
            return f"nothing to do: {self.name} shows what {shown} holds{end}"
        return (
            f"{self.name} {'made; it' if self.created else 'now'} shows {shown}: "
            f"{self.num_added:,} files added, {self.num_removed:,} removed{end}"
        )


def register(table_url: str, name: str) -> Mirrored:
    """Creates or updates an Iceberg table so that it shows the newest version of a table, without
    the columns that slot groups add.

    One snapshot takes the place of another, so readers see whole versions. A registration that
    failed is made up for by the next one, and of two concurrent ones the last shows the newest
    version.

    Args:
        table_url: The table.
        name: `iceberg://CATALOG/NAMESPACE.TABLE`, of a catalog of pyiceberg's configuration.

    Raises:
        TableNotFoundError: There is no Delta table at `table_url`.
        InputError: The catalog has no such namespace, or has another table of that name; a data
            file has no ids on its columns, or a reader of the files alone would not find the rows
            or their values, which a slot group replaces.
        ConfigError: pyiceberg's configuration has no such catalog.
        MissingDependencyError: pyiceberg is not installed.
        StoreError: The catalog or a store cannot be reached or refuses.
    """
    mirror = _mirror(table_url, name)
    return mirror.ask(mirror.update)


def check_registration(table_url: str, name: str) -> None:
    """Checks that an Iceberg table can show a table, which need not exist yet.

    Args:
        table_url: The table.
        name: The URL of the Iceberg table.

    Raises:
        InputError: `name` is not of that form, the catalog has no such namespace, or has another
            table of that name.
        ConfigError, MissingDependencyError, StoreError: As of `register`.
    """
    mirror = _mirror(table_url, name)
    mirror.ask(mirror.check)


def _mirror(table_url: str, name: str, *, may_create: bool = True) -> "_Mirror":
    if parse_address(name).catalog is None or "?" in name:
        raise InputError(
            f"{redact(name)}: expected iceberg://CATALOG/NAMESPACE.TABLE, the name of a table, "
            "found a metadata file or a version"
        )
    table_url = _resolved(table_url)
    if local_path(table_url) is not None and not {"?", "#"}.isdisjoint(table_url):
        raise InputError(
            f"{redact(table_url)}: {redact(name)}: expected a path without '?' and '#', which "
            "readers of Iceberg take for parts of a URL: move the table"
        )
    address = parse_address(name)
    return _Mirror(
        name=name,
        table_url=table_url,
        catalog=str(address.catalog),
        identifier=address.table,
        directory=join(table_url, mirror_path(str(address.catalog), address.table)),
        may_create=may_create,
    )


def update_mirrors(table_url: str) -> None:
    """Updates all Iceberg tables that show a table, also if one fails.

    Raises:
        InputError: As of `register`, or the catalog does not have one of them.
        ConfigError, MissingDependencyError, StoreError: As of `register`.
    """
    failed = list[FeatstoreError]()
    for name in mirrors_of(table_url):
        try:
            mirror = _mirror(table_url, name, may_create=False)
            mirror.ask(mirror.update)
        except FeatstoreError as error:
            failed.append(error)
    if failed:
        first, *others = failed
        for other in others:
            first.add_note(f"Another one failed too: {other}")
        raise first


def mirrors_of(table_url: str) -> list[str]:
    """The URLs of the Iceberg tables that show a table."""
    entries = list_own(join(table_url, ICEBERG_DIR))
    return mirrors_in(f"{ICEBERG_DIR}/{entry.name}" for entry in entries)


def mirrors_in(paths: Iterable[str]) -> list[str]:
    """The same, by the paths of the files below the table."""
    found = {mirror for path in paths if (mirror := mirror_of(path)) is not None}
    return [f"iceberg://{catalog}/{table}" for catalog, table in sorted(found)]


def release(table_url: str, name: str, paths: Collection[str]) -> None:
    """Takes the snapshots that name any of these data files from an Iceberg table, after it was
    updated.

    Args:
        table_url: The table.
        name: The URL of the Iceberg table.
        paths: Paths of data files, below the table, which no retained version references.

    Raises:
        InputError: A tag or branch of the Iceberg table keeps such a snapshot, or as of
            `update_mirrors`.
        ConfigError, MissingDependencyError, StoreError: As of `register`.
    """
    mirror = _mirror(table_url, name, may_create=False)
    mirror.ask(mirror.update)
    gone = {_located(join(mirror.table_url, path)) for path in paths}
    mirror.ask(partial(_expire, name, mirror.identifier, gone))


def _expire(name: str, identifier: str, gone: Collection[str], catalog: "Catalog") -> None:
    table: Table = catalog.load_table(identifier)
    names_one = dict[str, bool]()
    expired = set[int]()
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            path = manifest.manifest_path
            if path not in names_one:
                entries = read_entries(table, [manifest])
                names_one[path] = any(each.data_file.file_path in gone for each in entries)
            if names_one[path]:
                expired.add(snapshot.snapshot_id)
    for ref, of in table.refs().items():
        if of.snapshot_id in expired:
            raise InputError(
                f"{redact(name)}: {of.snapshot_ref_type} {ref!r} keeps snapshot {of.snapshot_id}, "
                "which names data files that a vacuum would remove: drop it, then run it again"
            )
    if expired:
        table.maintenance.expire_snapshots().by_ids(sorted(expired)).commit()


@dataclass(frozen=True, kw_only=True)
class _Mirror:
    """An Iceberg table that shows a table.

    Attributes:
        name: Its URL.
        table_url: The table that it shows.
        catalog: The catalog's name.
        identifier: Its name in the catalog.
        directory: Its directory.
        may_create: Whether it is made if the catalog has none.
    """

    name: str
    table_url: str = field(repr=False)
    catalog: str
    identifier: str
    directory: str
    may_create: bool

    def ask(self, act: "Callable[[Catalog], T]") -> T:
        """What `act` returns of the catalog. It is called again if another commit came first."""
        return in_catalog(self.name, self.catalog, partial(self._until_first, act))

    def _until_first(self, act: "Callable[[Catalog], T]", catalog: "Catalog") -> T:
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(_exceptions.CommitFailedException):
                return act(catalog)
        raise CommitConflictError(
            f"{redact(self.name)}: other writers came first {_MAX_ATTEMPTS} times; run it again"
        )

    def check(self, catalog: "Catalog") -> None:
        """Checks that the catalog has it, or can have it."""
        if self._load(catalog) is None:
            with self._namespace_told():
                catalog.load_namespace_properties(self.identifier.rpartition(".")[0])

    def update(self, catalog: "Catalog") -> Mirrored:
        """Makes it show the newest version, once."""
        # In this order: what it shows is then never newer than the version that is opened.
        table = self._load(catalog)
        return self._show(catalog, table, open_delta(self.table_url))

    def _load(self, catalog: "Catalog") -> "Table | None":
        """The Iceberg table, if there is one."""
        try:
            table: Table = catalog.load_table(self.identifier)
        except _exceptions.NoSuchTableError:
            if self.may_create:
                return None
            raise InputError(
                f"{redact(self.name)}: the catalog has no such table, which shows "
                f"{redact(self.table_url)}: register it again, or if it was dropped, remove "
                f"{redact(self.directory)}"
            ) from None
        if _located(_resolved(table.location())) == _located(self.directory):
            return table
        if list_own(self.directory):
            raise InputError(
                f"{redact(self.name)} lies at {redact(table.location())}: expected it at "
                f"{redact(self.directory)}, which belongs to another table, of which "
                f"{redact(self.table_url)} is a copy or another path: write to that table, or if "
                "this one is a copy, remove that directory here"
            )
        raise InputError(
            f"{redact(self.name)} already exists and does not show {redact(self.table_url)}; "
            "choose another name"
        )

    def _show(self, catalog: "Catalog", table: "Table | None", snapshot: Snapshot) -> Mirrored:
        done = Mirrored(name=self.name, table_url=snapshot.url, version=snapshot.version or 0)
        properties = {_VERSION: str(snapshot.version), _DIGEST: snapshot.digest}
        require_plain_files(snapshot, f"register {self.name}")
        done = replace(done, hidden=self._hidden(table, snapshot))
        if table is not None:
            held = {**properties, _SNAPSHOT: str(table.metadata.current_snapshot_id)}
            if held.items() <= table.properties.items():
                return done
        schema = _schema(snapshot)
        shown = {} if table is None else {each.file_path: each for each in _shown(self.name, table)}
        wanted = {_located(file.url): file for file in snapshot.data_files}
        added = {path: file for path, file in wanted.items() if path not in shown}
        removed = [each for path, each in shown.items() if path not in wanted]
        self._require_ids(list(added.values()))
        done = replace(done, num_added=len(added), num_removed=len(removed), created=table is None)
        table = self._with_columns(catalog, table or self._create(catalog), schema, snapshot)
        with table.transaction() as transaction:
            if added or removed:
                update = transaction.update_snapshot(snapshot_properties=properties)
                with update.overwrite() if removed else update.merge_append() as files:
                    for path, file in added.items():
                        files.append_data_file(_entry(table.spec(), snapshot, path, file))
                    for each in removed:
                        files.delete_data_file(each)
            current = transaction.table_metadata.current_snapshot_id
            transaction.set_properties({**properties, _SNAPSHOT: str(current)})
        return done

    def _hidden(self, table: "Table | None", snapshot: Snapshot) -> tuple[str, ...]:
        """The slot groups whose columns data files lack.

        Raises:
            InputError: One replaces columns that data files have.
        """
        opened = with_groups(snapshot)
        beside = opened.data_files.groups
        read = [group for group in opened.groups if len(beside[group.name].files)]
        if found := [g.name for g in read if g.has(snapshot.schema.column_names)]:
            shown = None if table is None else table.properties.get(_VERSION)
            still = "" if shown is None else f"; it still shows version {shown}"
            raise InputError(
                f"{redact(self.name)} cannot show version {snapshot.version} of "
                f"{redact(self.table_url)}, in which slot groups {', '.join(found)} replace "
                f"columns of the data files: run `featstore table compact` first{still}"
            )
        return tuple(group.name for group in read)

    def _require_ids(self, files: Sequence[DataFile]) -> None:
        if old := without_ids(files):
            raise InputError(
                f"{redact(self.table_url)}: register {self.name}: expected data files whose "
                f"columns have permanent ids, found {len(old):,} of {len(files):,} without, such "
                f"as {old[0].path}: write them again with `featstore table compact --field-ids`"
            )

    def _create(self, catalog: "Catalog") -> "Table":
        """A table without columns: a catalog gives those of a new table ids of its own."""
        before = {entry.name for entry in list_own(self.directory)}
        remove = partial(self._remove_new, catalog, before)
        try:
            with self._namespace_told(), cleaned_up_on_failure(remove):
                table: Table = catalog.create_table(
                    self.identifier,
                    _schemas.Schema(),
                    location=_located(self.directory),
                    properties=_PROPERTIES,
                )
        except _exceptions.TableAlreadyExistsError as error:
            raise _exceptions.CommitFailedException(self.name) from error
        return table

    def _remove_new(self, catalog: "Catalog", before: Collection[str]) -> None:
        """Removes what a creation left behind, unless the catalog has the table."""
        with contextlib.suppress(_exceptions.NoSuchTableError):
            catalog.load_table(self.identifier)
            return
        for entry in list_own(self.directory):
            if entry.name not in before:
                delete(join(self.directory, entry.name))

    @contextlib.contextmanager
    def _namespace_told(self) -> Iterator[None]:
        try:
            yield
        except _exceptions.NoSuchNamespaceError:
            raise InputError(
                f"{redact(self.name)}: the catalog has no namespace "
                f"{self.identifier.rpartition('.')[0]!r}: make it first"
            ) from None

    def _with_columns(
        self, catalog: "Catalog", table: "Table", schema: "Schema", snapshot: Snapshot
    ) -> "Table":
        """The Iceberg table with the columns and partition keys of the snapshot."""
        updates = list[Any]()
        if table.schema().fields != schema.fields:
            number = 1 + max(table.schemas())
            added = _schemas.Schema(*schema.fields, schema_id=number)
            updates += [_update.AddSchemaUpdate(schema=added)]
            updates += [_update.SetCurrentSchemaUpdate(schema_id=-1)]
        keys = [key.name for key in snapshot.schema.partition_keys]
        if [each.name for each in table.spec().fields] != keys:
            fields = [
                _partitioning.PartitionField(
                    source_id=schema.find_field(key).field_id,
                    field_id=table.last_partition_id() + 1 + place,
                    transform=_transforms.IdentityTransform(),
                    name=key,
                )
                for place, key in enumerate(keys)
            ]
            spec = _partitioning.PartitionSpec(*fields, spec_id=1 + max(table.specs()))
            updates += [_update.AddPartitionSpecUpdate(spec=spec)]
            updates += [_update.SetDefaultSpecUpdate(spec_id=-1)]
        if not updates:
            return table
        of = table.metadata
        expected = (
            _update.AssertTableUUID(uuid=of.table_uuid),
            _update.AssertCurrentSchemaId(current_schema_id=of.current_schema_id),
            _update.AssertDefaultSpecId(default_spec_id=of.default_spec_id),
        )
        catalog.commit_table(table, expected, tuple(updates))
        return table.refresh()


def _schema(snapshot: Snapshot) -> "Schema":
    """The columns of a snapshot as Iceberg has them, with their ids."""
    comments = {slot.name: {"doc": slot.comment} for slot in snapshot.schema}
    of_files = snapshot.schema.with_foreign_kept()
    columns = stored_schema(of_files.to_arrow(nullable=True, partition_keys=True))
    described = [c.with_metadata({**c.metadata, **comments.get(c.name, {})}) for c in columns]
    schema: Schema = _arrow.pyarrow_to_schema(pa.schema(described))
    return schema


def _shown(name: str, table: "Table") -> "Iterator[Entry]":
    """The data files that an Iceberg table shows.

    Raises:
        InputError: Another program has deleted rows of them.
    """
    current = table.current_snapshot()
    manifests = [] if current is None else current.manifests(table.io)
    if any(each.content == _manifests.ManifestContent.DELETES for each in manifests):
        raise InputError(
            f"{redact(name)}: expected a table that only featstore writes, found rows that another "
            "program deleted there: drop it, then register it again"
        )
    return (entry.data_file for entry in read_entries(table, manifests))


def _entry(spec: "PartitionSpec", snapshot: Snapshot, path: str, file: DataFile) -> "Entry":
    """A data file as of a manifest, with the values of its partition."""
    keys = snapshot.schema.partition_keys
    found: Entry = _manifests.DataFile.from_args(
        content=_manifests.DataFileContent.DATA,
        file_path=path,
        file_format=_manifests.FileFormat.PARQUET,
        partition=_typedef.Record(*(_value(file.partition[key.name], key.type) for key in keys)),
        record_count=file.num_rows,
        file_size_in_bytes=file.size_bytes,
    )
    found.spec_id = spec.spec_id
    return found


def _value(text: str | None, type_: pa.DataType) -> Any:
    """The value of a partition key as manifests have it: of dates and times, their number."""
    value = pa.scalar(text, pa.string()).cast(type_)
    if pa.types.is_date32(type_):
        value = value.cast(pa.int32())
    elif pa.types.is_timestamp(type_):
        value = value.cast(pa.timestamp("us", type_.tz)).cast(pa.int64())
    return value.as_py()


def _located(url: str) -> str:
    """A URL as Iceberg has it."""
    path = local_path(url)
    return canonical(url).rstrip("/") if path is None else f"file://{absolute(url)}"


def _resolved(url: str) -> str:
    """The URL, or for a local one its path without links."""
    path = local_path(url)
    return url if path is None else str(path.resolve())
