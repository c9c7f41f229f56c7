"""Opens a URL as a snapshot: a table of Delta or Iceberg, or a directory, glob or file of
Parquet.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from featstore.base.errors import InputError, TableNotFoundError
from featstore.base.redaction import redact
from featstore.files.retry import thread_pool
from featstore.files.store_errors import as_store_errors
from featstore.histories.file_format import histories_of
from featstore.table.delta import (
    Commit,
    files_at,
    history,
    is_delta,
    open_delta,
    open_delta_or_none,
)
from featstore.table.groups import with_groups
from featstore.table.iceberg import (
    history_of_iceberg,
    is_iceberg,
    open_address,
    open_iceberg,
    parse_address,
)
from featstore.table.layout import decode_path
from featstore.table.log_files import commit_infos, list_log, read_actions
from featstore.table.parquet_dir import REMOVED_MEANWHILE, open_parquet_dir
from featstore.table.snapshot import (
    AFTER,
    VERSIONS,
    DataFile,
    FileList,
    Snapshot,
    read_query,
)
from featstore.table.table_rules import check_kept

# Raw input is a Delta table itself, whose directory alone would name files.
_DELTA_INPUT = "delta+"
# Commits of a range that are read at once: each is one request to the store.
_NUM_THREADS = 8
# By what a URL says beside values of partition keys: the snapshot, and whether such a URL may name
# other files later.
OpenedTables: TypeAlias = dict[Hashable, tuple[Snapshot, bool]]


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A table that raw input names.

    Attributes:
        snapshot: The table, with the files that the input names.
        if_any_gone: What to do about any of these files that is gone; empty for a range of versions
            of a Delta table.
        appended: The version that appended each file of such a range, by path.
    """

    snapshot: Snapshot
    if_any_gone: str = ""
    appended: Mapping[str, int] = field(default_factory=dict)

    def if_gone(self, path: str) -> str:
        """What to do about a file that is gone."""
        return self.if_any_gone or (
            f"files that version {self.appended[path]} appended were vacuumed; begin after it, "
            f"take a whole version, or restore the file"
        )


def open_snapshot(
    url: str, version: int | str | None = None, schema_id: int | None = None
) -> Snapshot:
    """Opens the snapshot at `url`, slot groups included.

    Args:
        url: A Delta table, an Iceberg table (see `open_iceberg`), or a directory, glob or file of
            Parquet.
        version: A version of a Delta table, or a snapshot, tag or branch of an Iceberg table; by
            default the newest.
        schema_id: The schema of an Iceberg table that another snapshot of it was opened by.

    Raises:
        TableNotFoundError: There is no table, or not in this version.
    """
    if is_iceberg(url):
        return open_iceberg(url, version, schema_id)
    if isinstance(version, str):
        if not version.isdecimal():
            raise TableNotFoundError(
                f"{redact(url)}: expected the number of a version, found {version!r}: only Iceberg "
                f"tables have tags and branches"
            )
        version = int(version)
    if is_delta(url):
        return with_groups(open_delta(url, version))
    if version is not None:
        raise TableNotFoundError(
            f"{redact(url)}: expected a Delta table to open version {version}, found plain Parquet "
            f"files"
        )
    return open_parquet_dir(url)


def open_input(url: str, opened: OpenedTables | None = None) -> InputTable | None:
    """The table that raw input names, by itself and not by its files; None if the URL names files.

    Args:
        url: An Iceberg table, as of `open_iceberg`, or `delta+URL` of a Delta table. There
            `?version=` chooses a version in place of the newest, `&after=` those files alone that
            were appended since another one, and other names the partitions with these values.
        opened: Tables that were opened before, of which others are added: URLs that only name other
            partitions are parts of one snapshot.

    Raises:
        InputError: The URL names no version, or another key than one of the table, or the table is
            one that featstore wrote, or a range of versions has others than appends.
        TableNotFoundError: There is no table, or not in this version, or not all of the range.
    """
    tables = {} if opened is None else opened
    if is_iceberg(url):
        return _iceberg_input(url, tables)
    return _delta_input(url, tables) if url.startswith(_DELTA_INPUT) else None


def _iceberg_input(url: str, opened: OpenedTables) -> InputTable:
    address = parse_address(url)
    if address not in opened:
        opened[address] = open_address(url, replace(address, named={}))
    found, may_move = opened[address]
    files = found.data_files.of_values(url, address.named, found.schema.partition_keys)
    expired = "was its snapshot expired? Take newer ones, or restore the file"
    return InputTable(
        snapshot=replace(found, data_files=files),
        if_any_gone=REMOVED_MEANWHILE if may_move else expired,
    )


def _delta_input(url: str, opened: OpenedTables) -> InputTable:
    table_url, _, query = url.removeprefix(_DELTA_INPUT).partition("?")
    values = read_query(url, query)
    for name in VERSIONS:
        number = values.get(name, "0")
        if not number.isdecimal() and (name, number) != (AFTER, "-1"):
            raise InputError(f"{redact(url)}: expected the number of a version, found {number!r}")
    version, after = (int(values[name]) if name in values else None for name in VERSIONS)
    if (table_url, version) not in opened:
        opened[table_url, version] = open_delta(table_url, version), version is None
    found, may_move = opened[table_url, version]
    schema, keys = found.schema, found.schema.partition_keys
    if len(schema.foreign) < len(schema.column_names):
        raise InputError(
            f"{redact(url)}: expected a Delta table of raw rows, found one that featstore wrote, "
            "with slots: extract the rows that it was made of"
        )
    if both := next(
        (key.name for key in keys if key.name in VERSIONS and key.name in values), None
    ):
        raise InputError(
            f"{redact(url)}: expected {both!r} to mean one thing, found a table that has a "
            f"partition key of this name: take all of its partitions "
            f"(--partition-from-path {both}), or the rows of a query (--sql, dataframe=...)"
        )
    if after is not None:
        files, appended = _appended(found, after, values)
        files = files.of_values(url, values, keys)
        return InputTable(snapshot=replace(found, data_files=files), appended=appended)
    gone = f"files of version {version} were vacuumed; take a newer version, or restore the file"
    return InputTable(
        snapshot=replace(found, data_files=found.data_files.of_values(url, values, keys)),
        if_any_gone=REMOVED_MEANWHILE if may_move else gone,
    )


def _appended(
    snapshot: Snapshot, after: int, named: Mapping[str, str]
) -> tuple[FileList, dict[str, int]]:
    """The data files of a Delta table that were appended after a version up to the snapshot's, as
    they were then if they have been rewritten since, and the versions that appended them, by path.

    Args:
        snapshot: The table.
        after: The version.
        named: What the URL names; nothing else may have changed in the partitions among it.

    Raises:
        InputError: The version is a later one, or others than appends lie between, or no version
            has a file.
        TableNotFoundError: The log has not all commits between any more.
    """
    url, version = snapshot.url, int(snapshot.version or 0)
    if after > version:
        raise InputError(
            f"{redact(url)}: expected a version after which {version} came, found {after}"
        )
    wanted = range(after + 1, version + 1)
    with as_store_errors(url), thread_pool(_NUM_THREADS) as threads:
        if gone := sorted(set(wanted).difference(list_log(url).through(version))):
            raise TableNotFoundError(
                f"{redact(url)}: expected all commits after version {after}, found none of "
                f"version {gone[0]}: the log was cleaned up; begin after {gone[-1]}, or take a "
                f"whole version"
            )
        actions = list(threads.map(lambda each: read_actions(url, each), wanted))
    names = {key.name for key in snapshot.schema.partition_keys}
    appended, found, unseen = dict[str, int](), dict[str, DataFile](), set[str]()

    def see(files: FileList) -> None:
        """Takes the files that are not seen yet from a version that has them."""
        taken = [index for index, path in enumerate(files.paths) if path in unseen]
        for file in files.take(taken):
            if file.partition.keys() != names:
                raise InputError(
                    f"{redact(url)}: expected the partition keys {', '.join(sorted(names))} in all "
                    f"files since version {after}, found others in version "
                    f"{appended[file.path]}: keys were renamed; begin after it, or take a whole "
                    f"version"
                )
            found[file.path] = file
            unseen.remove(file.path)

    for number, of_commit in zip(wanted, actions, strict=True):
        if _takes_away(snapshot, number, of_commit, named):
            [(_, info)] = commit_infos(url, [number])
            raise InputError(
                f"{redact(url)}: expected only appends after version {after}, found version "
                f"{number} ({info['operation']}), which also takes rows away: begin after it, or "
                f"take whole versions"
            )
        # Opening a version takes as long as all of its files, so only the last one is opened before
        # files of the range were rewritten.
        if not unseen.isdisjoint(_paths(url, "remove", of_commit)):
            see(files_at(url, number - 1))
        added = _changed(url, "add", of_commit)
        appended |= dict.fromkeys(added, number)
        unseen |= added
    see(snapshot.data_files)
    if unseen:
        path = min(unseen)
        raise InputError(
            f"{redact(url)}: expected {path}, which version {appended[path]} appended, in version "
            f"{version} or before its removal, found it in neither: begin after version "
            f"{appended[path]}, or take a whole version"
        )
    return FileList.of(found.values()), appended


def _takes_away(
    snapshot: Snapshot, version: int, actions: Iterable[Mapping[str, Any]], named: Mapping[str, str]
) -> bool:
    """Whether a version takes rows away from the partitions that a URL names."""
    removed = _changed(snapshot.url, "remove", actions)
    if removed and named.keys() - {*VERSIONS}:
        removed -= _elsewhere(snapshot, version - 1, named)
    return bool(removed)


def _elsewhere(snapshot: Snapshot, version: int, named: Mapping[str, str]) -> set[str]:
    """The paths of the files that a version had in other partitions than those that a URL names.
    None are known of a version that the log does not hold any more, or that had other keys.
    """
    try:
        before = open_delta(snapshot.url, version)
    except TableNotFoundError:
        return set()
    former, keys = (
        {key.name: key.type for key in each.schema.partition_keys} for each in (before, snapshot)
    )
    if former != keys:
        return set()
    files, of_keys = before.data_files, before.schema.partition_keys
    return {*files.paths}.difference(files.of_values(snapshot.url, named, of_keys).paths)


def _changed(url: str, kind: str, actions: Iterable[Mapping[str, Any]]) -> set[str]:
    """As `_paths`, without those by which rows only move to other files."""
    return _paths(url, kind, (a for a in actions if a.get(kind, {}).get("dataChange", True)))


def _paths(url: str, kind: str, actions: Iterable[Mapping[str, Any]]) -> set[str]:
    """The paths in actions of a kind."""
    return {decode_path(url, each[kind]["path"]) for each in actions if kind in each}


def open_without_files(url: str) -> Snapshot:
    """The newest snapshot at `url`, without data files if it takes less time.

    Files of Delta tables with slot groups, and of Iceberg tables, are needed for the schema.
    """
    if not is_delta(url):
        return open_snapshot(url)
    head = open_delta(url, with_files=False)
    return head if not head.group_versions else open_snapshot(url, head.version)


def data_files_of(snapshot: Snapshot) -> FileList:
    """The snapshot's data files.

    Those of a table with versions are read again. A plain directory has no versions, so its
    files are those that the snapshot holds.
    """
    if snapshot.version is None:
        return snapshot.data_files
    if snapshot.group_versions or is_iceberg(snapshot.url):
        return open_snapshot(snapshot.url, snapshot.version, snapshot.schema_id).data_files
    return files_at(snapshot.url, snapshot.version)


def open_for_writing(url: str, what: str) -> Snapshot | None:
    """The newest snapshot of a Delta table with its slot groups, to commit to; None if there is no
    table.

    Args:
        url: The table.
        what: What is to be done, for the error.

    Raises:
        InputError: The table has a rule, set by another writer, that featstore does not keep, or
            is one of Iceberg.
    """
    if is_iceberg(url):
        raise InputError(
            f"{redact(url)}: {what}: expected a Delta table, found one of Iceberg, which featstore "
            f"only reads; nothing was done: take the path of a table of your own"
        )
    base = open_delta_or_none(url)
    if base is None:
        return None
    check_kept(url, base.rules.writing, what)
    return with_groups(base)


def open_existing(url: str, what: str, expected: str = "a Delta table") -> Snapshot:
    """As `open_for_writing`, of a table that must be there, to be changed in place.

    Raises:
        TableNotFoundError: It is not; the error says what was expected.
        InputError: Also where it has histories, whose lists would be lost.
    """
    found = open_for_writing(url, what)
    if found is None:
        raise TableNotFoundError(f"no table at {redact(url)}: expected {expected}")
    if histories := histories_of(found.schema):
        names = ", ".join(history.name for history in histories)
        raise InputError(
            f"{redact(url)}: {what}: expected a table without histories, whose lists this release "
            f"cannot write again, found {names}; nothing was done: extract the partitions again"
        )
    return found


def history_of(url: str) -> list[Commit]:
    """The commits of a Delta table, or the snapshots of an Iceberg table, newest first.

    Raises:
        TableNotFoundError: There is no table.
    """
    return history_of_iceberg(url) if is_iceberg(url) else history(url)
