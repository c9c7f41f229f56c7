"""Delta tables through delta-rs: open a snapshot, read the history, commit data files that are
already written.
"""

import errno
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.exceptions import TableNotFoundError as NoDeltaTableError
from deltalake.transaction import AddAction, create_table_with_add_actions

from featstore.errors import (
    CommitConflictError,
    DataFileError,
    FeatstoreError,
    StoreError,
    TableNotFoundError,
)
from featstore.files.credentials import require_credentials, s3_endpoint
from featstore.files.redirects import kept_home
from featstore.files.storage import canonical, local_path, scheme
from featstore.files.store_errors import as_store_errors, client_words, store_error
from featstore.redaction import redact
from featstore.schema import SlotSchema
from featstore.table.delta_files import files_of
from featstore.table.evolution import merge_schemas
from featstore.table.layout import LOG_DIR, is_delta_scheme, partition_path
from featstore.table.metadata import KEY, CommitMetadata
from featstore.table.snapshot import DataFile, Snapshot, files_digest, in_partitions, replaced
from featstore.table.store import check_store

GROUPS = f"{KEY}.groups"
"""The table property that names slot groups with their versions, as JSON."""

_UNREADABLE = {"deletionVectors": "deletion vectors", "columnMapping": "column mapping"}
_MAX_COMMIT_ATTEMPTS = 20
_NUM_RECENT_COMMITS = 20


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One version of a table. `metadata` is None for a commit that featstore did not make."""

    version: int
    timestamp_ms: int
    operation: str
    metadata: CommitMetadata | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a run wants to publish: `files`, which replace all files of `partitions`.

    `base` is the table as the run found it, None where there was none; `schema` is that of the new
    files with the partition keys. A table without partition keys has the one partition `{}`.
    `group_versions`, if not None, must be those that the table names: for a change that is made of
    them.
    """

    base: Snapshot | None
    schema: SlotSchema
    partitions: tuple[Mapping[str, str], ...]
    files: tuple[DataFile, ...]
    metadata: CommitMetadata
    group_versions: Mapping[str, int] | None = None


Publish = Callable[[str, DeltaTable | None, Change], None]
P = ParamSpec("P")
R = TypeVar("R")


def _in_our_words(act: Callable[Concatenate[str, P], R]) -> Callable[Concatenate[str, P], R]:
    """A function of a table's URL, with errors of delta-rs as featstore's."""

    @functools.wraps(act)
    def told(url: str, /, *args: P.args, **options: P.kwargs) -> R:
        with as_store_errors(url):
            return act(url, *args, **options)

    return told


@_in_our_words
def is_delta(url: str) -> bool:
    """Whether a Delta log lies under the URL."""
    path = local_path(url)
    if path is not None:
        return (path / LOG_DIR).is_dir()
    if not is_delta_scheme(url):
        return False
    _require_unforked(url)
    return bool(DeltaTable.is_deltatable(canonical(url), _storage_options(url)))


@_in_our_words
def open_delta(url: str, version: int | None = None) -> Snapshot:
    """The table's snapshot, at `version` or the newest. TableNotFoundError where there is no table
    or no such version.
    """
    newest = _load_existing(url)
    if version is None or version == newest.version():
        return _snapshot(url, newest, _commits(newest, _NUM_RECENT_COMMITS))
    return _snapshot(
        url,
        _at_version(url, version, newest),
        (c for c in _commits(newest) if c.version <= version),
    )


@_in_our_words
def open_head(url: str) -> Snapshot:
    """The newest snapshot without its data files, for who streams them. TableNotFoundError where
    there is no table.
    """
    return _snapshot(
        url, table := _load_existing(url), _commits(table, _NUM_RECENT_COMMITS), with_files=False
    )


@_in_our_words
def stream_files(url: str, version: int) -> Iterator[DataFile]:
    """The data files of a version by path, each made when asked for, without `crc32`: no commit is
    read.

    TableNotFoundError where there is no such version.
    """
    newest = _load_existing(url)
    table = newest if version == newest.version() else _at_version(url, version, newest)
    return _data_files(url, table, {})


@_in_our_words
def open_delta_or_none(url: str) -> Snapshot | None:
    """The newest snapshot, or None where there is no table yet."""
    table = _load(url)
    return None if table is None else _snapshot(url, table, _commits(table, _NUM_RECENT_COMMITS))


@_in_our_words
def history(url: str) -> list[Commit]:
    """The commits that the table's log still holds, newest first. TableNotFoundError where there is
    no table.
    """
    return _all_commits(url) or list(_commits(_load_existing(url)))


def makers(commits: Iterable[Commit]) -> Iterator[Commit]:
    """Commits that say what made data files: these, and for a compaction also those whose rows it
    wrote anew, as of it.
    """
    for found in commits:
        yield found
        yield from (
            replace(found, metadata=origin)
            for origin in (found.metadata.origins if found.metadata else ())
        )


@_in_our_words
def commit_of_run(url: str, run_id: str) -> Commit | None:
    """The commit that a run made, or None."""
    return next(
        (c for c in _all_commits(url) if c.metadata is not None and c.metadata.run_id == run_id),
        None,
    )


def commit_of_input(
    snapshot: Snapshot,
    partitions: Iterable[Mapping[str, str]],
    *,
    spec_hash: str,
    input_digest: str,
) -> Commit | None:
    """The commit that made these partitions what they are in `snapshot`, if it had this spec and
    input; else None.

    A later replacement of the partitions, by anyone, is noticed: their files are then others than
    those of the commit.
    """
    wanted = (spec_hash, input_digest, files_digest(snapshot.in_partitions(partitions)))
    found = ((c, c.metadata) for c in makers(history(snapshot.url)) if c.metadata is not None)
    return next(
        (c for c, m in found if (m.spec_hash, m.input_digest, m.data_digest) == wanted), None
    )


def commit(url: str, change: Change, publish: Publish | None = None) -> int:
    """Publishes the change as one new version, and returns that version.

    CommitConflictError if the partitions are no longer as the run found them: then the change is
    not published and never will be; UnsafeStoreError, before the first commit, where the table's
    store would let two writers commit one version. Other writers' commits to other partitions are
    no conflict: the change is applied to the newest version. If publishing fails but the commit is
    found in the table, the reply was lost, not the commit. After any other error the commit may
    still land.
    """
    publish = publish or publish_once
    check_store(url)
    for attempt in itertools.count(1):
        table = _load(url)
        _check_base(url, table, change)
        try:
            publish(url, table, change)
        except FeatstoreError:  # ours, raised before anything is sent
            raise
        except (
            Exception
        ) as error:  # delta-rs raises bare Exceptions too, and a lost reply can come as any of them
            landed = _landed(url, change)
            if landed is not None:
                return landed
            if attempt == _MAX_COMMIT_ATTEMPTS or not _is_refusal(error, table, _load(url)):
                if _is_of_client(error):
                    raise store_error(url, error) from None
                raise
        else:
            break
    landed = _landed(url, change)
    if landed is None:
        raise DataFileError(
            f"{redact(url)}: run {change.metadata.run_id} was committed, but its commit is not in "
            f"the log"
        )
    return landed


def publish_once(url: str, table: DeltaTable | None, change: Change) -> None:
    """One attempt to commit the change on top of `table` (None: as a new table). Raises what
    delta-rs raises.

    Each partition is a transaction id (its keys sorted, so that it has one id), so that of two
    concurrent writers of one partition, also of an empty one, the second fails. delta-rs, when
    another creates the table first, would by itself try again as the next version, add to the
    other's files, and see no conflict: a new table is tried once.
    """
    crc32s = {file.path: file.crc32 for file in change.files if file.crc32 is not None}
    properties = _properties(
        replace(change.metadata, crc32s=crc32s), change.partitions, _version(table) + 1
    )
    keys = [key.name for key in change.schema.partition_keys]
    actions = [_add_action(file) for file in change.files]
    if table is None:
        _require_unforked(url)
        schema = _delta_schema(change.schema)
        create_table_with_add_actions(
            _delta_url(url),
            schema,
            actions,
            partition_by=keys,
            storage_options=_storage_options(url),
            commit_properties=properties,
        )
        return
    found = _slot_schema(table)
    merged = merge_schemas(found, as_stored(change.schema), redact(url))
    schema = table.schema() if merged == found else _delta_schema(merged)
    filters = replaced(change.partitions, _partitions(url, table))
    table.create_write_transaction(
        actions, "overwrite", schema, keys, filters, commit_properties=properties
    )


def publish_groups(choose: Callable[[dict[str, int]], dict[str, int]]) -> Publish:
    """A `publish` that leaves all files and names other versions of slot groups: `choose` makes
    them of those named now.

    The change's partitions are transactions as in `publish_once`, so that of a run that replaces
    one of them and this commit the second fails; so does every commit that another one of table
    properties or schema comes before.
    """

    def publish(url: str, table: DeltaTable | None, change: Change) -> None:
        if table is None:
            raise TableNotFoundError(
                f"no table at {redact(url)}: expected one whose slot groups to name"
            )
        named = choose(_group_versions(url, table))
        properties = _properties(
            replace(change.metadata, groups=named), change.partitions, _version(table) + 1
        )
        text = json.dumps(named, sort_keys=True)
        table.alter.set_table_properties(
            {GROUPS: text}, raise_if_not_exists=False, commit_properties=properties
        )

    return publish


def as_stored(schema: SlotSchema) -> SlotSchema:
    """The schema as a Delta table gives it back: types that Delta does not have become their
    nearest.
    """
    stored = pa.schema(_delta_schema(schema).to_arrow())
    return SlotSchema.from_arrow(stored, [key.name for key in schema.partition_keys])


def _properties(
    metadata: CommitMetadata, partitions: Iterable[Mapping[str, str]], version: int
) -> CommitProperties:
    ids = [f"{KEY}/{partition_path(dict(sorted(partition.items())))}" for partition in partitions]
    return CommitProperties(
        custom_metadata={KEY: metadata.to_mapping()},
        app_transactions=[Transaction(name, version) for name in ids],
        max_commit_retries=0 if version == 0 else None,
    )


def _landed(url: str, change: Change) -> int | None:
    """The version that the change became, or None. Its files' names tell it from another commit
    under the same run id.
    """
    known = (c for c in _all_commits(url) if c.metadata is not None)
    wanted = (change.metadata.run_id, change.metadata.data_digest)
    return next(
        (
            c.version
            for c in known
            if c.metadata and (c.metadata.run_id, c.metadata.data_digest) == wanted
        ),
        None,
    )


def _is_of_client(error: Exception) -> bool:
    """Whether delta-rs raised it, rather than a fault of ours."""
    return isinstance(error, OSError | DeltaError) or type(error) is Exception


def _is_refusal(error: Exception, table: DeltaTable | None, newest: DeltaTable | None) -> bool:
    """Whether an attempt failed because another writer was first, so that nothing of it was or will
    be published.

    A new table can only become version 0: once that is another's, the attempt is over, whatever
    delta-rs says of it.
    """
    return _version(newest) > _version(table) and (
        table is None or isinstance(error, CommitFailedError)
    )


# The first process here that used delta-rs. Its threads do not live on in a forked child, where
# delta-rs panics: a `PanicException` is no Exception, and its trace has many lines.
_client_process: list[int] = []


def _require_unforked(url: str) -> None:
    if not _client_process:
        _client_process.append(os.getpid())
    if _client_process[0] != os.getpid():
        error = StoreError(
            f"{redact(url)} cannot be opened in this process: it was forked from one that had "
            "already opened a Delta table, and delta-rs does not survive a fork; start worker "
            "processes by 'spawn' or 'forkserver' (DataLoader: multiprocessing_context='spawn'), "
            "or open tables in the parent only after the fork"
        )
        error.errno = errno.EINVAL
        raise error


@_in_our_words
def _load(url: str) -> DeltaTable | None:
    if not is_delta(url):
        return None
    _require_unforked(url)
    try:
        return DeltaTable(_delta_url(url), storage_options=_storage_options(url))
    except NoDeltaTableError:
        return None


def _load_existing(url: str) -> DeltaTable:
    table = _load(url)
    if table is None:
        raise TableNotFoundError(
            f"no table at {redact(url)}: expected a Delta table ({LOG_DIR}/ is missing)"
        )
    return table


def _at_version(url: str, version: int, newest: DeltaTable) -> DeltaTable:
    known = sorted(c.version for c in _commits(newest))
    if version not in known:
        raise TableNotFoundError(
            f"no version {version} of {redact(url)}; it has versions {known[0]} to {known[-1]}"
        )
    try:
        return DeltaTable(_delta_url(url), version=version, storage_options=_storage_options(url))
    except DeltaError as error:
        where = f"version {version} of {redact(url)}"
        why = client_words(url, error)
        raise TableNotFoundError(
            f"{where} cannot be opened any more: the log before it is gone ({why})"
        ) from None


def _delta_url(url: str) -> str:
    path = local_path(url)
    return canonical(url) if path is None else str(path.absolute())


def _storage_options(url: str) -> dict[str, str] | None:
    """What delta-rs is told of a remote store: to send credentials nowhere else, and, on S3, to
    commit a version by a write that the store refuses where the name is taken, whatever delta-rs
    prefers.

    With an endpoint delta-rs takes credentials from where obstore takes them; without one it asks
    the AWS SDK, which looks into profiles too, and asks the metadata service for a region.
    The environment's own choice of a lock (`AWS_S3_LOCKING_PROVIDER`) is left to it, and it needs
    the SDK. AccessError where there are no credentials.
    """
    store = scheme(canonical(url))
    require_credentials(url, store, os.environ)
    options = kept_home(store, os.environ)
    if store == "s3" and "AWS_S3_LOCKING_PROVIDER" not in os.environ:
        options |= {"aws_conditional_put": "etag", "aws_endpoint_url": s3_endpoint(os.environ)}
    return options or None


def _version(table: DeltaTable | None) -> int:
    return -1 if table is None else int(table.version())


def _snapshot(
    url: str, table: DeltaTable, commits: Iterable[Commit], *, with_files: bool = True
) -> Snapshot:
    """The table as it is loaded, without its list of files if told so. `commits` are its own,
    newest first.
    """
    _check_readable(url, table)
    made = [commit.metadata for commit in commits if commit.metadata is not None]
    crc32s = {path: crc32 for metadata in made for path, crc32 in metadata.crc32s.items()}
    return Snapshot(
        url=url,
        version=int(table.version()),
        schema=_slot_schema(table),
        data_files=tuple(_data_files(url, table, crc32s)) if with_files else (),
        spec_hash=next((metadata.spec_hash for metadata in made if metadata.groups is None), None),
        group_versions=_group_versions(url, table),
    )


def _group_versions(url: str, table: DeltaTable) -> dict[str, int]:
    """The slot groups that this version of the table names, by name."""
    try:
        return {
            str(name): int(version)
            for name, version in json.loads(
                table.metadata().configuration.get(GROUPS, "{}")
            ).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise DataFileError(
            f"{redact(url)}: the table property {GROUPS!r} is no mapping of groups to versions "
            f"({error})"
        ) from None


def _check_readable(url: str, table: DeltaTable) -> None:
    features = set(table.protocol().reader_features or ())
    for feature in sorted(features & _UNREADABLE.keys()):
        raise DataFileError(
            f"{redact(url)} is a Delta table with {_UNREADABLE[feature]}, which featstore does not "
            f"read"
        )


def _slot_schema(table: DeltaTable) -> SlotSchema:
    return SlotSchema.from_arrow(
        pa.schema(table.schema().to_arrow()), table.metadata().partition_columns
    )


@_in_our_words
def _data_files(url: str, table: DeltaTable, crc32s: Mapping[str, int]) -> Iterator[DataFile]:
    """In order of their paths; asked for the first, it needs the table no more."""
    actions = pa.table(table.get_add_actions(flatten=True))
    return files_of(url, actions, table.metadata().partition_columns, crc32s)


def _partitions(url: str, table: DeltaTable) -> list[Mapping[str, str | None]]:
    return [file.partition for file in _data_files(url, table, {})]


def _commits(table: DeltaTable, limit: int | None = None) -> Iterator[Commit]:
    """Newest first. `table` must be the newest version: delta-rs numbers commits from the loaded
    one, and reads the newest.
    """
    for entry in table.history(limit):
        found = entry.get(KEY)
        where = f"version {entry['version']}"
        yield Commit(
            version=entry["version"],
            timestamp_ms=entry["timestamp"],
            operation=entry["operation"],
            metadata=None if found is None else CommitMetadata.from_mapping(found, where),
        )


def _all_commits(url: str) -> list[Commit]:
    """Newest first, none where there is no table; read again if another commit came between, as all
    would be off by one.
    """
    table = _load(url)
    while table is not None:
        version, found = table.version(), list(_commits(table))
        table.update_incremental()
        if table.version() == version:
            return found
    return []


def _check_base(url: str, table: DeltaTable | None, change: Change) -> None:
    if change.group_versions is not None and (
        table is None or _group_versions(url, table) != change.group_versions
    ):
        raise CommitConflictError(
            f"{redact(url)}: a slot group was committed while this run was at work (now version "
            f"{_version(table)}); "
            f"nothing of this run is visible: run it again"
        )
    if table is not None:
        _check_readable(url, table)
    now = () if table is None else in_partitions(_data_files(url, table, {}), change.partitions)
    base = () if change.base is None else change.base.in_partitions(change.partitions)
    if {file.path for file in now} != {file.path for file in base}:
        names = ", ".join(
            partition_path(partition) or "the table" for partition in change.partitions
        )
        raise CommitConflictError(
            f"{redact(url)}: another writer committed {names} while this run was at work (now "
            f"version {_version(table)}); "
            f"nothing of this run is visible: run it again"
        )


def _add_action(file: DataFile) -> AddAction:
    stats = json.dumps({"numRecords": file.num_rows})
    return AddAction(
        file.path, file.size_bytes, dict(file.partition), int(time.time() * 1000), True, stats
    )


def _delta_schema(schema: SlotSchema) -> Schema:
    return Schema.from_arrow(schema.to_arrow(nullable=True, partition_keys=True))
