"""Opens a URL as a snapshot: a table of Delta or Iceberg, or a directory, glob or file of
Parquet.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

from featstore.base.errors import InputError, TableNotFoundError
from featstore.base.redaction import redact
from featstore.files.listings import find_file
from featstore.files.retry import thread_pool
from featstore.files.store_errors import as_store_errors
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
from featstore.table.log_files import commit_infos, list_log, paths_of, read_actions
from featstore.table.parquet_dir import open_parquet_dir
from featstore.table.snapshot import (
    AFTER,
    VERSION,
    VERSIONS,
    DataFile,
    FileList,
    Snapshot,
    read_query,
)
from featstore.table.table_rules import check_kept

# Raw input is a Delta table itself, whose directory alone would name files.
DELTA_INPUT = "delta+"
# Commits of a range that are read at once, and files that are looked for: one request to the store
# each.
_NUM_THREADS, _NUM_LOOKING_THREADS = 8, 16
# Days of one table need three entries, and those of a table for each hour three for each.
_NUM_KEPT = 72
T = TypeVar("T")


class OpenedTables:
    """What was opened of the tables that were used last. URLs that only name other partitions are
    parts of one snapshot. Not thread-safe.
    """

    def __init__(self) -> None:
        self._kept = OrderedDict[Hashable, object]()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, or returned for the key before."""
        if key not in self._kept:
            self._kept[key] = make()
        self._kept.move_to_end(key)
        if len(self._kept) > _NUM_KEPT:
            self._kept.popitem(last=False)
        return cast("T", self._kept[key])

    @property
    def versions(self) -> dict[str, int | str | None]:
        """Those of the Delta tables that were opened last, by URL."""
        opened = (each for each in self._kept.values() if isinstance(each, Snapshot))
        return {each.url: each.version for each in opened}


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A table that raw input names.

    Attributes:
        snapshot: The table, with the files that the input names.
        lost: What to do about any of these files, or of their deleted rows, that is gone; empty if
            another look at the table may find others, and for a range.
        range_url: A range of versions of a Delta table, by the versions at both ends.
        appended: The version that appended each file of such a range, by path.
    """

    snapshot: Snapshot
    lost: str = ""
    range_url: str = field(default="", repr=False)
    appended: Mapping[str, int] = field(default_factory=dict)


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
    _require_table(url)
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


def _require_table(url: str) -> None:
    if url.startswith(DELTA_INPUT):
        raise TableNotFoundError(
            f"{redact(url)}: expected the URL of a table, found one of raw input: drop "
            f"{DELTA_INPUT!r}, and what follows '?'"
        )


def open_input(url: str, opened: OpenedTables | None = None) -> InputTable | None:
    """The table that raw input names, by itself and not by its files; None if the URL names files.

    Args:
        url: An Iceberg table, as of `open_iceberg`, or `delta+URL` of a Delta table. There
            `?version=` chooses a version in place of the newest, `&after=` those files alone that
            were appended since another one, and other names the partitions with these values.
        opened: What was opened before, to which this is added.

    Raises:
        InputError: The URL names no version, or another key than one of the table, or the table is
            one that featstore wrote, or a range of versions has others than appends.
        TableNotFoundError: There is no table, or not in this version, or not all of the range.
    """
    tables = OpenedTables() if opened is None else opened
    if is_iceberg(url):
        return _iceberg_input(url, tables)
    return _delta_input(url, tables) if url.startswith(DELTA_INPUT) else None


def lost_of_range(url: str, path: str) -> str:
    """What to do about a range of versions of a Delta table of which a file is gone: the newest of
    its versions counts that lost one. Only files that the table's newest version lacks are looked
    for, since a vacuum leaves the others.

    Args:
        url: `InputTable.range_url`.
        path: The file.
    """
    found = open_input(url)
    assert found is not None
    live, lost = {*open_delta(found.snapshot.url).data_files.paths}, found.appended[path]
    later = [
        (found.appended[file.path], file.url)
        for file in found.snapshot.data_files
        if found.appended[file.path] > lost and file.path not in live
    ]
    with thread_pool(_NUM_LOOKING_THREADS) as threads:
        for version, files in itertools.groupby(sorted(later, reverse=True), lambda each: each[0]):
            if None in threads.map(find_file, [of_file for _, of_file in files]):
                lost = version
                break
    return (
        f"files that version {lost} appended were vacuumed; begin after it, take a whole version, "
        f"or restore the file"
    )


def _iceberg_input(url: str, opened: OpenedTables) -> InputTable:
    address = parse_address(url)
    found, may_move = opened.get(address, lambda: open_address(url, replace(address, named={})))
    files = found.data_files.of_values(url, address.named, found.schema.partition_keys)
    expired = "was its snapshot expired? Take newer ones, or restore the file"
    return InputTable(
        snapshot=replace(found, data_files=files),
        lost="" if may_move else expired,
    )


def _delta_input(url: str, opened: OpenedTables) -> InputTable:
    table_url, _, query = url.removeprefix(DELTA_INPUT).partition("?")
    values = read_query(url, query)
    for name in VERSIONS:
        number = values.get(name, "0")
        if not number.isdecimal() and (name, number) != (AFTER, "-1"):
            raise InputError(f"{redact(url)}: expected the number of a version, found {number!r}")
    version, after = (int(values[name]) if name in values else None for name in VERSIONS)
    found = opened.get((table_url, version), lambda: open_delta(table_url, version))
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
        key = table_url, found.version, after
        commits = opened.get(key, lambda: _commits(found, after))
        _require_appends(found, after, commits, values, opened)
        files, appended = opened.get((*key, "files"), lambda: _appended(found, after, commits))
        files = files.of_values(url, values, keys)
        return InputTable(
            snapshot=replace(found, data_files=files),
            range_url=url if version is not None else url + f"&{VERSION}={found.version}",
            appended=appended,
        )
    gone = f"files of version {version} were vacuumed; take a newer version, or restore the file"
    return InputTable(
        snapshot=replace(found, data_files=found.data_files.of_values(url, values, keys)),
        lost="" if version is None else gone,
    )


class _Commit(NamedTuple):
    """What a version of a Delta table did to its files, by their paths.

    Attributes:
        added: Files with new rows.
        removed: Files whose rows are not in others now.
        gone: All files that are not the table's any more.
    """

    version: int
    added: set[str]
    removed: set[str]
    gone: set[str]


def _commits(snapshot: Snapshot, after: int) -> list[_Commit]:
    """The commits of a table after a version up to the snapshot's.

    Raises:
        InputError: The version is a later one.
        TableNotFoundError: The log has not all of them any more.
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
        return list(threads.map(lambda each: _commit_of(url, each), wanted))


def _commit_of(url: str, version: int) -> _Commit:
    actions = read_actions(url, version)
    added, removed = (_changed(url, kind, actions) for kind in ("add", "remove"))
    return _Commit(version, added, removed, paths_of(url, "remove", actions))


def _require_appends(
    snapshot: Snapshot,
    after: int,
    commits: Iterable[_Commit],
    named: Mapping[str, str],
    opened: OpenedTables,
) -> None:
    """InputError if a version takes rows away from the partitions that a URL names."""
    for commit in commits:
        removed = commit.removed
        if removed and named.keys() - {*VERSIONS}:
            removed = removed - _elsewhere(snapshot, commit.version - 1, named, opened)
        if removed:
            [(_, info)] = commit_infos(snapshot.url, [commit.version])
            raise InputError(
                f"{redact(snapshot.url)}: expected only appends after version {after}, found "
                f"version {commit.version} ({info['operation']}), which also takes rows away: "
                f"begin after it, or take whole versions"
            )


def _appended(
    snapshot: Snapshot, after: int, commits: Sequence[_Commit]
) -> tuple[FileList, dict[str, int]]:
    """The data files that commits of a Delta table up to the snapshot's appended, as they were then
    if they have been rewritten since, and the versions that appended them, by path.

    Raises:
        InputError: A file has other partition keys, or no version has it.
    """
    url, version = snapshot.url, snapshot.version
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

    for commit in commits:
        # Opening a version takes as long as all of its files, so only the last one is opened before
        # files of the range were rewritten.
        if not unseen.isdisjoint(commit.gone):
            see(files_at(url, commit.version - 1))
        appended |= dict.fromkeys(commit.added, commit.version)
        unseen |= commit.added
    see(snapshot.data_files)
    if unseen:
        path = min(unseen)
        raise InputError(
            f"{redact(url)}: expected {path}, which version {appended[path]} appended, in version "
            f"{version} or before its removal, found it in neither: begin after version "
            f"{appended[path]}, or take a whole version"
        )
    return FileList.of(found.values()), appended


def _elsewhere(
    snapshot: Snapshot, version: int, named: Mapping[str, str], opened: OpenedTables
) -> set[str]:
    """The paths of the files that a version had in other partitions than those that a URL names.
    None are known of a version that the log does not hold any more, or that had other keys.
    """
    try:
        before = opened.get((snapshot.url, version), lambda: open_delta(snapshot.url, version))
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
    """As `paths_of`, without those by which rows only move to other files."""
    return paths_of(url, kind, (a for a in actions if (a.get(kind) or {}).get("dataChange", True)))


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
    _require_table(url)
    base = open_delta_or_none(url)
    if base is None:
        return None
    check_kept(url, base.rules.writing, what)
    return with_groups(base)


def open_existing(url: str, what: str, expected: str = "a Delta table") -> Snapshot:
    """As `open_for_writing`, of a table that must be there, to be changed in place.

    Raises:
        TableNotFoundError: It is not; the error says what was expected.
        InputError: As of `open_for_writing`.
    """
    found = open_for_writing(url, what)
    if found is None:
        raise TableNotFoundError(f"no table at {redact(url)}: expected {expected}")
    return found


def history_of(url: str) -> list[Commit]:
    """The commits of a Delta table, or the snapshots of an Iceberg table, newest first.

    Raises:
        TableNotFoundError: There is no table.
    """
    return history_of_iceberg(url) if is_iceberg(url) else history(url)
