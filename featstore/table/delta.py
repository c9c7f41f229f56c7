"""Delta tables through delta-rs: opening a snapshot, reading the history, committing data files
that are already written.
"""

import contextlib
import errno
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from featstore.base.errors import (
    CommitConflictError,
    DataFileError,
    FeatstoreError,
    StoreError,
    TableNotFoundError,
)
from featstore.base.processes import first_user
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.files.credentials import own_hosts_only, require_credentials, s3_endpoint
from featstore.files.looks import is_directory_at
from featstore.files.retry import current_policy
from featstore.files.storage import absolute, canonical, check_store, local_path, scheme
from featstore.files.store_errors import as_store_errors, client_words, store_error
from featstore.table.delta_vectors import masks_at
from featstore.table.evolution import check_foreign, merge_schemas
from featstore.table.layout import (
    LOG_DIR,
    is_delta_scheme,
    overwrite_filters,
    partition_path,
    require_delta_scheme,
)
from featstore.table.log_files import (
    NO_MASKS,
    LogFiles,
    VersionTakenError,
    commit_infos,
    files_of,
    is_mirrored,
    list_log,
    log_mirror,
)
from featstore.table.metadata import KEY, CommitMetadata
from featstore.table.snapshot import DataFile, FileList, Snapshot, files_digest
from featstore.table.table_rules import (
    check_kept,
    check_readable,
    mapped,
    may_have_vectors,
    rules_of,
)

# The table property with the versions of slot groups by name, as JSON.
GROUPS = f"{KEY}.groups"

# An attempt is repeated only if another writer's commit came first. More attempts than this mean
# that many writers commit at once without pause.
_MAX_COMMIT_ATTEMPTS = 20
# Where its own look fails, delta-rs opens an earlier version than the log lists: it is tried again.
_NUM_OPENINGS = 3
# Commits in effect that are read when the newest version is opened, for the spec hash and the
# CRC-32s of files. Each is a request to the store, and eight are read at once. The CRC-32s of files
# of older commits are then unknown.
_NUM_RECENT_COMMITS = 24


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One version of a table.

    Attributes:
        version: The Delta version.
        timestamp_ms: The time of the commit by the clock of the host that made it, since the epoch.
        operation: The name of the operation in the log.
        metadata: The metadata that featstore stored; None for a commit of another writer.
        restored: The version that a RESTORE went back to, -1 if it does not say; None for others.
    """

    version: int
    timestamp_ms: int
    operation: str
    metadata: CommitMetadata | None
    restored: int | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change to publish: `files`, which replace all files of `partitions`.

    Attributes:
        base: The snapshot from which the run started; None if there was no table.
        schema: The schema of the new files, with the partition keys.
        partitions: The partitions to replace. A table without partition keys has one, `{}`.
        files: The new data files, already written.
        metadata: The metadata of the commit.
        unchanged: Further partitions whose files the metadata describe: that another writer has
            changed one is a conflict, too.
        group_versions: If not None, the commit conflicts unless the table references exactly these
            versions of slot groups. For a change computed from them.
    """

    base: Snapshot | None
    schema: SlotSchema
    partitions: tuple[Mapping[str, str], ...]
    files: tuple[DataFile, ...]
    metadata: CommitMetadata
    unchanged: tuple[Mapping[str, str], ...] = ()
    group_versions: Mapping[str, int] | None = None

    @property
    def bound(self) -> tuple[Mapping[str, str], ...]:
        """The partitions whose files must be those of the base."""
        return (*self.partitions, *self.unchanged)


Publish = Callable[[str, DeltaTable | None, Change], None]
P = ParamSpec("P")
R = TypeVar("R")


def _raises_store_errors(act: Callable[Concatenate[str, P], R]) -> Callable[Concatenate[str, P], R]:
    """Decorates a function of a table's URL: errors of delta-rs become featstore's."""

    @functools.wraps(act)
    def wrapped(url: str, /, *args: P.args, **options: P.kwargs) -> R:
        with as_store_errors(url):
            return act(url, *args, **options)

    return wrapped


@_raises_store_errors
def is_delta(url: str) -> bool:
    """Whether there is a Delta log under the URL."""
    # Locally without delta-rs, so that plain Parquet can be opened in a forked child.
    path = local_path(url)
    if path is not None:
        return is_directory_at(path / LOG_DIR)
    if not is_delta_scheme(url):
        return False
    _require_unforked(url)
    return bool(DeltaTable.is_deltatable(_escaped(_table_uri(url)), _storage_options(url)))


@_raises_store_errors
def open_delta(url: str, version: int | None = None, *, with_files: bool = True) -> Snapshot:
    """Opens a snapshot without its slot groups.

    Args:
        url: The table.
        version: The version; by default the newest.
        with_files: Whether to list its data files, as `files_at` does.

    Raises:
        TableNotFoundError: There is no table, or not in this version.
        DataFileError: The table has Delta features that featstore does not read.
    """
    newest = _load_existing(url)
    if version is None or version == newest.version:
        return _snapshot(url, newest.table, _recent(newest), with_files=with_files)
    commits = in_effect(newest.commits(through=version))
    return _snapshot(url, _at_version(version, newest), commits, with_files=with_files)


@_raises_store_errors
def files_at(url: str, version: int) -> FileList:
    """The data files of a version. They have no `crc32`, since no commit is read.

    Raises:
        TableNotFoundError: There is no such version.
    """
    newest = _load_existing(url)
    table = newest.table if version == newest.version else _at_version(version, newest)
    return _data_files(url, table, {})


@_raises_store_errors
def open_delta_or_none(url: str) -> Snapshot | None:
    """The newest snapshot, or None if there is no table."""
    newest = _load(url)
    if newest is None:
        return None
    return _snapshot(url, newest.table, _recent(newest))


def _recent(newest: "_Newest") -> Iterator[Commit]:
    return itertools.islice(in_effect(newest.commits()), _NUM_RECENT_COMMITS)


@_raises_store_errors
def history(url: str) -> list[Commit]:
    """The commits that the table's log still holds, newest first.

    Raises:
        TableNotFoundError: There is no table.
    """
    return list(_load_existing(url).commits())


def with_origins(commits: Iterable[Commit]) -> Iterator[tuple[Commit, CommitMetadata]]:
    """Yields each of featstore's commits with its metadata, and after a compaction one for each of
    its origins, with the compaction's version.
    """
    for commit in commits:
        if commit.metadata is not None:
            yield commit, commit.metadata
            for origin in commit.metadata.origins:
                yield replace(commit, metadata=origin), origin


def in_effect(commits: Iterable[Commit]) -> Iterator[Commit]:
    """Those of a table's commits, newest first, that made what it holds: without those that going
    back to an earlier version undid, and those that went back.
    """
    newest: int | None = None
    for commit in commits:
        if newest is None or commit.version <= newest:
            if commit.restored is None:
                yield commit
            else:
                newest = commit.restored


def _restored(info: Mapping[str, Any]) -> int | None:
    if info["operation"] != "RESTORE":
        return None
    version = str((info.get("operationParameters") or {}).get("version"))
    return int(version) if version.isdecimal() else -1


@_raises_store_errors
def commit_of_run(url: str, run_id: str) -> Commit | None:
    """The commit in effect that a run made, or None if it made none. One that going back undid does
    not count: the run may be made again.
    """
    commits = in_effect(_all_commits(url))
    return next(
        (c for c in commits if c.metadata is not None and c.metadata.run_id == run_id), None
    )


def commits_of_input(
    snapshot: Snapshot, partitions: Iterable[Mapping[str, str]], input_digest: str
) -> Iterator[tuple[Commit, CommitMetadata]]:
    """Yields the commits that wrote the current files of these partitions from this input, newest
    first. None if any writer has replaced the partitions since: their files are then not those of
    the commit.

    Args:
        snapshot: The table.
        partitions: The partitions.
        input_digest: The digest of the raw input.
    """
    wanted = (input_digest, files_digest(snapshot.in_partitions(partitions)))
    for commit, made in with_origins(history(snapshot.url)):
        if (made.input_digest, made.data_digest) == wanted:
            yield commit, made


def commit(url: str, change: Change, publish: Publish | None = None) -> int:
    """Publishes a change as one new version.

    Commits of other writers to other partitions are no conflict: the change is applied to the
    newest version. If publishing fails but the commit is in the log, only the reply was lost, and
    the commit has succeeded.

    Args:
        url: The table. It is created if it does not exist.
        change: The change.
        publish: Makes one attempt; by default `publish_once`.

    Returns:
        The new version.

    Raises:
        CommitConflictError: The partitions changed since `change.base`, or the table went back to
            an earlier version. The change was not published.
        UnsafeStoreError: The store would let two writers commit the same version. Raised before any
            commit.
        StoreError: The store failed. The commit may still land.
    """
    publish = publish or publish_once
    check_store(url)
    for attempt in itertools.count(1):
        # Each attempt checks against the newest version. What another writer commits between this
        # check and the publication is caught by the transactions in the commit.
        newest = _load(url)
        table = _table_of(newest)
        _check_base(url, newest, change)
        try:
            publish(url, table, change)
        # delta-rs raises bare Exceptions too, and a lost reply can come as any of them.
        except Exception as error:
            # Featstore raises others before anything is sent.
            if isinstance(error, FeatstoreError) and not isinstance(error, StoreError):
                raise
            # The error may be a lost reply to a commit that landed.
            landed = _landed(url, change.metadata)
            if landed is not None:
                return landed
            if attempt == _MAX_COMMIT_ATTEMPTS or not _is_refusal(
                error, table, _table_of(_load(url))
            ):
                if _is_of_client(error):
                    raise store_error(url, error) from None
                raise
        else:
            break
    landed = _landed(url, change.metadata)
    if landed is None:
        raise DataFileError(
            f"{redact(url)}: run {change.metadata.run_id} was committed, but its commit is not in "
            f"the log"
        )
    return landed


@_raises_store_errors
def restore(url: str, version: int | None, run_id: str, *, base: int | None) -> int:
    """Makes the files, schema and properties of a version those of a new one, in one commit, unless
    this run has made it.

    Args:
        url: The table.
        version: The version, whose files are known to exist; None for a new version without files.
        run_id: The run.
        base: The version that is known to be the newest one.

    Returns:
        The new version.

    Raises:
        CommitConflictError: Another writer committed meanwhile; nothing is restored.
        StoreError: The store failed. The commit may still land.
    """
    check_store(url)
    newest = _load_existing(url)
    # It replaces no partitions, and describes no files: the commits that wrote the files do.
    metadata = CommitMetadata(
        run_id=run_id,
        spec_hash="",
        spec_version=1,
        input_digest=None,
        data_digest="",
        partitions=(),
        num_files=0,
        num_rows=0,
        size_bytes=0,
    )
    properties = CommitProperties(
        custom_metadata={KEY: metadata.to_mapping()}, max_commit_retries=0
    )
    failed: Exception | None = None
    try:
        if newest.version == base:
            with _writable_table(url, newest.table) as writable:
                if version is None:
                    writable.delete(commit_properties=properties)
                else:
                    # A mirror of a log, which is what delta-rs sees of some stores, has no data
                    # files.
                    writable.restore(
                        version, ignore_missing_files=True, commit_properties=properties
                    )
    except Exception as error:  # noqa: BLE001  As of `commit`: it may be a lost reply.
        failed = error
    if (landed := _landed(url, metadata)) is not None:
        return landed
    if failed is None or isinstance(failed, CommitFailedError):
        raise CommitConflictError(
            f"{redact(url)}: another writer committed meanwhile; nothing is restored: run it again"
        ) from failed
    raise failed


def publish_once(url: str, table: DeltaTable | None, change: Change) -> None:
    """Makes one attempt to commit the change on top of `table`, or as a new table if that is None.
    Raises what delta-rs raises.

    The commit carries a transaction for each partition, so that of two concurrent writers of one
    partition the second fails, even if the partition was empty.
    """
    crc32s = {file.path: file.crc32 for file in change.files if file.crc32 is not None}
    properties = _properties(
        replace(change.metadata, crc32s=crc32s), change.bound, _version(table) + 1
    )
    keys = [key.name for key in change.schema.partition_keys]
    now_ms = int(time.time() * 1000)
    actions = [
        AddAction(
            file.path,
            file.size_bytes,
            dict(file.partition),
            now_ms,
            True,
            json.dumps({"numRecords": file.num_rows}),
        )
        for file in change.files
    ]
    if table is None:
        _require_unforked(url)
        schema = _delta_schema(change.schema)
        with _writable(url) as uri:
            create_table_with_add_actions(
                _escaped(uri),
                schema,
                actions,
                partition_by=keys,
                storage_options=_storage_options(url),
                commit_properties=properties,
            )
        return
    existing = _slot_schema(table)
    stored = as_stored(change.schema)
    own = change.schema.foreign
    if not own or not own.items() <= existing.foreign.items():  # Else types are the table's.
        check_foreign(existing, stored, redact(url))
    merged = merge_schemas(existing, stored, redact(url))
    merged = replace(merged, foreign={**own, **existing.foreign})
    schema = table.schema() if merged == existing else _evolved(table.schema(), existing, merged)
    filters = overwrite_filters(change.partitions, _data_files(url, table, {}).places)
    with _writable_table(url, table) as writable:
        writable.create_write_transaction(
            actions, "overwrite", schema, keys, filters, commit_properties=properties
        )


def publish_groups(choose: Callable[[dict[str, int]], dict[str, int]]) -> Publish:
    """Makes a `publish` function that changes the referenced versions of slot groups, and no files.

    The commit carries transactions as in `publish_once`, so that it conflicts with a concurrent run
    that replaces one of the partitions. It also conflicts with any concurrent commit that changes
    table properties or the schema.

    Args:
        choose: Computes the new versions by name from the current ones. It is called again for each
            attempt.
    """

    def publish(url: str, table: DeltaTable | None, change: Change) -> None:
        if table is None:
            raise TableNotFoundError(
                f"no table at {redact(url)}: expected the base table of the slot groups"
            )
        versions = choose(_group_versions(url, table))
        properties = _properties(
            replace(change.metadata, groups=versions), change.bound, _version(table) + 1
        )
        text = json.dumps(versions, sort_keys=True)
        with _writable_table(url, table) as writable:
            writable.alter.set_table_properties(
                {GROUPS: text}, raise_if_not_exists=False, commit_properties=properties
            )

    return publish


def as_stored(schema: SlotSchema) -> SlotSchema:
    """The schema as it is read back from a Delta table, which replaces types that Delta lacks by
    the nearest ones.
    """
    stored = pa.schema(_delta_schema(replace(schema, foreign={})).to_arrow())
    return SlotSchema.from_arrow(stored, [key.name for key in schema.partition_keys])


def _properties(
    metadata: CommitMetadata, partitions: Iterable[Mapping[str, str]], version: int
) -> CommitProperties:
    # Keys are sorted, so that a partition has one transaction id whatever the order of its keys.
    ids = [f"{KEY}/{partition_path(dict(sorted(partition.items())))}" for partition in partitions]
    # If another writer creates the table first, a retry of delta-rs would commit this change as the
    # next version, beside the other's files, without seeing a conflict. So creation is tried once.
    return CommitProperties(
        custom_metadata={KEY: metadata.to_mapping()},
        app_transactions=[Transaction(name, version) for name in ids],
        max_commit_retries=0 if version == 0 else None,
    )


def _landed(url: str, metadata: CommitMetadata) -> int | None:
    """The version of a commit if it was made, else None. The digest of its files distinguishes it
    from another commit with the same run id.
    """
    wanted = (metadata.run_id, metadata.data_digest)
    known = ((c.version, c.metadata) for c in _all_commits(url) if c.metadata is not None)
    return next((version for version, m in known if (m.run_id, m.data_digest) == wanted), None)


def _is_of_client(error: Exception) -> bool:
    """Whether delta-rs raised the error, rather than a bug of featstore."""
    is_translated = isinstance(error, FeatstoreError)
    return not is_translated and (
        isinstance(error, OSError | DeltaError) or type(error) is Exception
    )


def _is_refusal(error: Exception, table: DeltaTable | None, newest: DeltaTable | None) -> bool:
    """Whether an attempt failed because another writer committed first. Nothing of it was or will
    be published.

    An attempt to create the table can only become version 0. Once another writer has that, the
    attempt has failed whatever the error.
    """
    return _version(newest) > _version(table) and (
        table is None or isinstance(error, CommitFailedError)
    )


def _require_unforked(url: str) -> None:
    # A child that goes on with delta-rs gets a `PanicException`, which is not an Exception and
    # prints a long trace.
    if not first_user("delta-rs").is_this():
        error = StoreError(
            f"{redact(url)} cannot be opened in this process: it was forked from one that had "
            "already opened a Delta table, and delta-rs does not survive a fork; start worker "
            "processes by 'spawn' or 'forkserver' (DataLoader: multiprocessing_context='spawn'), "
            "or open tables in the parent only after the fork"
        )
        error.errno = errno.EINVAL
        raise error


def _table_uri(url: str) -> str:
    """Where delta-rs reads the table's log: at its URL, or in a mirror, which is brought up to
    date.
    """
    return str(log_mirror(url).refresh()) if is_mirrored(url) else absolute(canonical(url))


def _escaped(uri: str) -> str:
    """The URI for delta-rs, which takes `#` and `?` in a key for a fragment and a query."""
    return uri if local_path(uri) else uri.replace("#", "%23").replace("?", "%3F")


@contextlib.contextmanager
def _writable(url: str) -> Iterator[str]:
    """Yields where delta-rs commits: at the table's URL, or in a copy of a mirror, from which the
    commit is published at the end of the block.
    """
    if not is_mirrored(url):
        yield absolute(canonical(url))
        return
    try:
        with log_mirror(url).attempt() as root:
            yield str(root)
    except VersionTakenError as error:
        raise CommitFailedError(str(error)) from None


@contextlib.contextmanager
def _writable_table(url: str, table: DeltaTable) -> Iterator[DeltaTable]:
    """Yields the table for one commit on top of its version."""
    if not is_mirrored(url):
        yield table
        return
    with _writable(url) as uri:
        yield DeltaTable(uri, version=table.version())


@dataclass(frozen=True, kw_only=True)
class _Newest:
    """The newest version of a table.

    Attributes:
        url: The table.
        root: Where its log is read.
        table: The version, as delta-rs opened it.
        log: The log, as it was listed before.
    """

    url: str = field(repr=False)
    root: str = field(repr=False)
    table: DeltaTable
    log: LogFiles

    @property
    def version(self) -> int:
        return _version(self.table)

    def commits(self, *, through: int | None = None) -> Iterator[Commit]:
        """Yields the commits that the log holds, newest first, from `through` or the newest on."""
        versions = self.log.through(self.version if through is None else through)
        for version, info in commit_infos(self.root, versions[::-1]):
            mapping = info.get(KEY)
            yield Commit(
                version=version,
                timestamp_ms=info["timestamp"],
                operation=info["operation"],
                metadata=None
                if mapping is None
                else CommitMetadata.from_mapping(mapping, f"version {version}"),
                restored=_restored(info),
            )


@_raises_store_errors
def _load(url: str) -> _Newest | None:
    """The newest version; None if there is no table, as a listing of the log shows.

    Raises:
        StoreError: delta-rs finds no table, or an older version than the log lists.
    """
    if local_path(url) is None and not is_delta_scheme(url):
        return None
    log = list_log(root := _table_uri(url))
    if log.newest < 0:
        return None
    _require_unforked(url)
    for _ in range(_NUM_OPENINGS):
        table = DeltaTable(_escaped(root), storage_options=_storage_options(url))
        if _version(table) >= log.newest:
            return _Newest(url=url, root=root, table=table, log=log)
    error = StoreError(
        f"{redact(url)}: expected version {log.newest}, which the log lists, found version "
        f"{_version(table)} as the newest that can be read: a look at the log failed; check the "
        f"disk or mount of {LOG_DIR}, then run it again"
    )
    error.errno = errno.EIO
    raise error


def _load_existing(url: str) -> _Newest:
    newest = _load(url)
    if newest is None:
        require_delta_scheme(url)
        raise TableNotFoundError(
            f"no table at {redact(url)}: expected a Delta table ({LOG_DIR}/ is missing)"
        )
    return newest


def _table_of(newest: _Newest | None) -> DeltaTable | None:
    return None if newest is None else newest.table


def _at_version(version: int, newest: _Newest) -> DeltaTable:
    url, known = newest.url, newest.log.through(newest.version) or (newest.version,)
    if version not in known:
        raise TableNotFoundError(
            f"no version {version} of {redact(url)}; it has versions {known[0]} to {known[-1]}"
        )
    try:
        options = _storage_options(url)
        return DeltaTable(_escaped(newest.root), version=version, storage_options=options)
    except DeltaError as error:
        # Others may have removed old entries meanwhile. Only a listing tells that they are gone.
        if list_log(newest.root).holds(version):
            raise
        where = f"version {version} of {redact(url)}"
        why = client_words(url, error)
        raise TableNotFoundError(
            f"{where} cannot be opened any more: the log before it is gone ({why})"
        ) from None


def _storage_options(url: str) -> dict[str, str] | None:
    """The options of delta-rs for a remote store. AccessError if there are no credentials.

    They keep credentials from being sent to other hosts, and have the budget of time of
    `retrying`, if there is one. On S3 they also require conditional
    writes for commits, and set the endpoint: with one delta-rs looks for credentials where obstore
    does, without one it uses the AWS SDK, which also reads profiles and asks the metadata service
    for a region. If the environment chooses a lock (`AWS_S3_LOCKING_PROVIDER`), which needs the
    SDK, that choice is left alone.
    """
    store = scheme(canonical(url))
    require_credentials(url, store, os.environ)
    options = own_hosts_only(store, os.environ)
    if store == "s3" and "AWS_S3_LOCKING_PROVIDER" not in os.environ:
        options |= {"aws_conditional_put": "etag", "aws_endpoint_url": s3_endpoint(os.environ)}
    if (policy := current_policy()).max_attempts is None and store != "file":
        options |= {
            "max_retries": str(policy.max_retries),
            "retry_timeout": f"{policy.retry_s * 1000:.0f}ms",
            "backoff_config.init_backoff": f"{policy.first_pause_s * 1000:.0f}ms",
            "backoff_config.max_backoff": f"{policy.longest_pause_s * 1000:.0f}ms",
        }
    return options or None


def _version(table: DeltaTable | None) -> int:
    return -1 if table is None else int(table.version())


def _snapshot(
    url: str, table: DeltaTable, commits: Iterable[Commit], *, with_files: bool = True
) -> Snapshot:
    """The loaded table as a snapshot. `commits` are those in effect, newest first."""
    check_readable(url, rules := rules_of(table))
    made = [commit.metadata for commit in commits if commit.metadata is not None]
    crc32s = {path: crc32 for metadata in made for path, crc32 in metadata.crc32s.items()}
    return Snapshot(
        url=url,
        version=int(table.version()),
        schema=_slot_schema(table),
        data_files=_data_files(url, table, crc32s) if with_files else FileList.of(),
        spec_hash=next((m.spec_hash for m in made if m.groups is None), None) or None,
        meanings=dict(pair for m in reversed(made) for pair in m.meanings.items()),
        group_versions=_group_versions(url, table),
        rules=rules,
    )


def _group_versions(url: str, table: DeltaTable) -> dict[str, int]:
    """The versions of slot groups, by name, that this version of the table references."""
    try:
        return {
            str(name): int(version)
            for name, version in json.loads(
                table.metadata().configuration.get(GROUPS, "{}")
            ).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise DataFileError(
            f"{redact(url)}: the table property {GROUPS!r} is not a mapping of groups to versions "
            f"({error})"
        ) from None


def _slot_schema(table: DeltaTable) -> SlotSchema:
    metadata = table.metadata()
    schema = mapped(pa.schema(table.schema().to_arrow()), metadata.configuration)
    return SlotSchema.from_arrow(schema, metadata.partition_columns)


@_raises_store_errors
def _data_files(url: str, table: DeltaTable, crc32s: Mapping[str, int]) -> FileList:
    # `pa.table(actions)` would import pandas, which takes longer than all the rest.
    actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    log_url = _table_uri(url)
    masks = masks_at(url, log_url, table.version()) if may_have_vectors(table) else NO_MASKS
    return files_of(url, actions, table.metadata().partition_columns, crc32s, masks)


def _all_commits(url: str) -> Iterator[Commit]:
    """Yields all commits, newest first; none if there is no table."""
    newest = _load(url)
    return iter(()) if newest is None else newest.commits()


def _check_base(url: str, newest: _Newest | None, change: Change) -> None:
    """CommitConflictError if the partitions, or the slot groups, are not those of the change's
    base, or the table went back since to an earlier version: it may have rows again that a deletion
    has not seen, or slot groups whose later versions were undone.
    """
    table = _table_of(newest)
    if newest is not None and change.base is not None:
        known = newest.log.through(newest.version)
        since = [version for version in known if version > (change.base.version or 0)]
        if any(_restored(info) is not None for _, info in commit_infos(newest.root, since)):
            raise CommitConflictError(
                f"{redact(url)}: another writer took the table back to an earlier version while "
                f"this run was at work (now version {newest.version}); nothing of this run is "
                f"visible: run it again"
            )
    if change.group_versions is not None and (
        table is None or _group_versions(url, table) != change.group_versions
    ):
        raise CommitConflictError(
            f"{redact(url)}: a slot group was committed while this run was at work (now version "
            f"{_version(table)}); nothing of this run is visible: run it again"
        )
    if table is not None:
        check_readable(url, rules := rules_of(table))
        check_kept(url, rules.writing, "commit")
    now = FileList.of() if table is None else _data_files(url, table, {})
    base = FileList.of() if change.base is None else change.base.data_files
    found, expected = (set(files.in_partitions(change.bound).paths) for files in (now, base))
    if found != expected:
        names = ", ".join(partition_path(partition) or "the table" for partition in change.bound)
        raise CommitConflictError(
            f"{redact(url)}: another writer committed {names} while this run was at work (now "
            f"version {_version(table)}); nothing of this run is visible: run it again"
        )


def _evolved(schema: Schema, existing: SlotSchema, merged: SlotSchema) -> Schema:
    """The table's schema as `merged` has it. Fields that the merge leaves as they were stay so to
    the byte, and so do all fields of other writers; new ones are appended.
    """
    before, after = ({f["name"]: f for f in _fields(_delta_schema(s))} for s in (existing, merged))
    numbers = {slot.number: slot.name for slot in merged.slots if slot.number is not None}
    renamed = {s.name: numbers.get(s.number or -1, s.name) for s in existing.slots}
    fields = []
    for known in _fields(schema):
        new = after.pop(renamed.get(known["name"], known["name"]))
        is_same = known["name"] in existing.foreign or new == before[known["name"]]
        fields.append(known if is_same else new)
    return Schema.from_json(json.dumps({"type": "struct", "fields": [*fields, *after.values()]}))


def _fields(schema: Schema) -> list[dict[str, Any]]:
    return list(json.loads(schema.to_json())["fields"])


def _delta_schema(schema: SlotSchema) -> Schema:
    """The schema for a table's log. Columns of other writers have no role in it."""
    fields = schema.to_arrow(nullable=True, partition_keys=True)
    return Schema.from_arrow(pa.schema([schema.foreign.get(of.name, of) for of in fields]))
