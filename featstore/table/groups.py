"""Slot groups: columns extracted later, stored in Delta tables of their own beside the base table,
and read with it as one table.

A group's files are first committed to the group, where no reader looks. Then one commit to the base
table references the group's new version. So the base version alone determines what is read, and a
run that dies between the two commits has changed nothing.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pyarrow.compute as pc

from featstore.base.errors import DataFileError, TableNotFoundError
from featstore.base.redaction import redact
from featstore.base.schema import SlotSchema
from featstore.native.columns import lines, numbers
from featstore.table import delta
from featstore.table.evolution import merge_schemas
from featstore.table.layout import GROUPS_DIR, base_path, group_url
from featstore.table.metadata import CommitMetadata, GroupOrigin
from featstore.table.snapshot import DataFile, FileList, Group, GroupFiles, Snapshot, files_digest


def with_groups(base: Snapshot) -> Snapshot:
    """The base table and the slot groups that it references, as one snapshot.

    If both have a column, it is read from the group for base files that have a file in the group,
    and from the base file otherwise.

    Raises:
        TableNotFoundError: A group, or the referenced version of it, does not exist.
        DataFileError: Rows of the base table are deleted by row masks.
    """
    if not base.group_versions:
        return base
    if base.data_files.has_masks:
        raise DataFileError(
            f"{redact(base.url)}: expected a table with slot groups "
            f"({', '.join(sorted(base.group_versions))}) whose rows are deleted by writing their "
            "files again, found deletion vectors, which slot groups do not have: rewrite the files "
            "that have them (REORG TABLE ... APPLY (PURGE)), then extract the groups again"
        )
    opened = [
        _open(base.url, name, version) for name, version in sorted(base.group_versions.items())
    ]
    files, groups, schema = dict[str, GroupFiles](), [], base.schema
    for name, snapshot in opened:
        files[name], stale = _beside(base.data_files, snapshot.data_files, name)
        groups.append(
            Group(name=name, version=snapshot.version or 0, schema=snapshot.schema, stale=stale)
        )
        schema = merge_group_schema(schema, snapshot.schema, redact(base.url))
    data_files = replace(base.data_files, groups=files)
    return replace(base, schema=schema, data_files=data_files, groups=tuple(groups))


def _beside(base: FileList, group: FileList, name: str) -> tuple[GroupFiles, tuple[DataFile, ...]]:
    """A group's files for those of the base table, and its stale files."""
    paths = group.columns["path"]
    # `base_path` of each.
    base_paths = pc.replace_substring_regex(paths, "/[^/]*$", ".parquet")
    base_row = np.from_dlpack(
        pc.coalesce(pc.index_in(base_paths, value_set=base.columns["path"]), numbers([-1])[0])
    )
    read = np.flatnonzero(base_row >= 0)
    # Rows are matched by position, so a file with another number of rows cannot be used.
    read = read[base.values("num_rows")[base_row[read]] == group.values("num_rows")[read]]
    row_of = np.full(len(base), -1, np.int32)
    row_of[base_row[read]] = np.arange(len(read))
    below = lines(f"{GROUPS_DIR}/{name}/", paths)
    moved = replace(group, columns={**group.columns, "path": below}, root=base.root)
    stale = np.setdiff1d(np.arange(len(group)), read).tolist()
    return GroupFiles(moved.take(read), row_of), tuple(group[row] for row in stale)


def merge_group_schema(schema: SlotSchema, group: SlotSchema, where: str) -> SlotSchema:
    """The table's schema extended by a group's columns.

    Args:
        schema: The schema of the table.
        group: The schema of the group.
        where: The table, for error messages.

    Raises:
        InputError: A name or slot number has two meanings. Table and groups share one namespace.
    """
    same_keys = replace(group, partition_keys=schema.partition_keys)
    return merge_schemas(schema, same_keys, where)


def open_group_for_writing(base: Snapshot, name: str) -> Snapshot | None:
    """The newest version of a group, to commit to; None if there is no group.

    If the table went back to an earlier version since it named a later one of the group, the group
    goes back first, in a commit of its own. What is added would else bring back what was undone.

    Raises:
        CommitConflictError: Another writer committed to the group meanwhile.
    """
    url, shown = group_url(base.url, name), base.group_versions.get(name)
    group = delta.open_delta_or_none(url)
    if group is None or group.version == shown:
        return group
    commits = itertools.dropwhile(
        lambda commit: commit.version > (base.version or 0) or commit.restored is None,
        delta.history(base.url),
    )
    if (back := next(commits, None)) is None:
        return group
    earlier = [made.groups for commit in commits if (made := commit.metadata) and made.groups]
    named = max((versions[name] for versions in earlier if name in versions), default=-1)
    later = [commit for commit in delta.history(url) if shown is None or commit.version > shown]
    backs = [each for each in later if each.restored is not None or each.operation == "DELETE"]
    run_id = f"restore-{back.version}"
    is_back = any(each.metadata and each.metadata.run_id == run_id for each in backs)
    # Later versions that the table has not named are of runs that are about to.
    is_ahead = bool(backs) or any(commit.version <= named for commit in later)
    if is_back or not is_ahead or (shown is None and not group.data_files):
        return group
    delta.restore(url, shown, run_id, base=group.version)
    return delta.open_delta(url)


def matches_base(group: Snapshot, partitions: Sequence[Mapping[str, str]], base: Snapshot) -> bool:
    """Whether, in the partitions, the group has a file for every base file, and no others."""
    files, of_group = base.in_partitions(partitions), group.in_partitions(partitions)
    rows = zip(of_group.paths, of_group.values("num_rows"), strict=True)
    found = {base_path(path): count for path, count in rows}
    return found == dict(zip(files.paths, files.values("num_rows"), strict=True))


def group_commits(table_url: str, group: Group) -> list[delta.Commit]:
    """The commits in effect of a group up to its version, newest first."""
    commits = delta.history(group_url(table_url, group.name))
    return list(delta.in_effect(commit for commit in commits if commit.version <= group.version))


class GroupOrigins:
    """Which runs made the files of a table's slot groups. Reads the groups' logs when it is made.

    Args:
        snapshot: The table with its groups.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._commits = {
            group.name: [
                commit.metadata
                for commit in group_commits(snapshot.url, group)
                if commit.metadata is not None
            ]
            for group in snapshot.groups
            if _slot_names(group)
        }

    def of(self, partitions: Sequence[Mapping[str, str | None]]) -> tuple[GroupOrigin, ...]:
        """The origins of the groups that have a file beside every data file of the partitions."""
        files = self._snapshot.in_partitions(partitions)
        beside = files.groups.items() if files else ()
        everywhere = {name for name, group in beside if (group.row_of >= 0).all()}
        return tuple(
            GroupOrigin(
                group=group.name,
                slots=_slot_names(group),
                spec_hash=hashes.pop(),
            )
            for group in self._snapshot.groups
            if group.name in everywhere & self._commits.keys()
            and len(hashes := self._hashes(group.name, partitions)) == 1
        )

    def _hashes(self, name: str, partitions: Sequence[Mapping[str, str | None]]) -> set[str]:
        """The hashes of the specs of the last runs that wrote the partitions."""
        return {
            next((c.spec_hash for c in self._commits[name] if partition in c.partitions), "")
            for partition in partitions
        }


def _slot_names(group: Group) -> tuple[str, ...]:
    """The names of a group's slots, those of histories too."""
    of_histories = (slot for each in group.histories for slot in each.slots)
    return tuple(slot.name for slot in (*group.schema.slots, *of_histories))


def publish_group(
    base: Snapshot,
    name: str,
    version: int,
    partitions: tuple[Mapping[str, str], ...],
    metadata: CommitMetadata,
    publish: delta.Publish | None = None,
) -> int:
    """References a group's version in one commit to the base table.

    Nothing is committed if the base already references this version or a later one.

    Args:
        base: The base table as the run found it.
        name: The slot group.
        version: The group's version.
        partitions: The partitions that the run wrote to the group.
        metadata: The metadata of the commit.
        publish: Makes the commit; by default `delta.publish_groups`.

    Returns:
        The version of the base table that references the group's version.

    Raises:
        CommitConflictError: Base files of the partitions were replaced since `base` was opened, so
            that the group's files belong to files that are no longer read.
    """

    def choose(versions: dict[str, int]) -> dict[str, int]:
        # A concurrent run may have referenced a later version, which includes this one.
        return versions | {name: max(version, versions.get(name, version))}

    change = delta.Change(
        base=base, schema=base.schema, partitions=partitions, files=(), metadata=metadata
    )
    now = delta.open_delta(base.url)
    is_referenced = now.group_versions.get(name, -1) >= version
    if is_referenced and _paths(now, partitions) == _paths(base, partitions):
        return now.version or 0
    return delta.commit(base.url, change, publish or delta.publish_groups(choose))


def drop_groups(base: Snapshot, versions: Mapping[str, int], metadata: CommitMetadata) -> int:
    """Removes the references to slot groups, in one commit to the base table.

    Args:
        base: The base table.
        versions: The groups by name, with the version to drop. A group that is referenced at
            another version, because it was committed to since, stays.
        metadata: The metadata of the commit.

    Returns:
        The new version of the base table.
    """

    def choose(current: dict[str, int]) -> dict[str, int]:
        return {name: version for name, version in current.items() if versions.get(name) != version}

    # Without partitions the commit has no transactions, and does not conflict with runs that
    # replace base files.
    change = delta.Change(base=base, schema=base.schema, partitions=(), files=(), metadata=metadata)
    return delta.commit(base.url, change, delta.publish_groups(choose))


def groups_commit(
    run_id: str,
    base: Snapshot,
    files: Sequence[DataFile],
    *,
    counts: Mapping[str, int] = MappingProxyType({}),
    num_rows_skipped: int = 0,
) -> CommitMetadata:
    """The metadata of a commit to the base table that only changes references to groups.

    Args:
        run_id: The run.
        base: The base table.
        files: The group's files.
        counts: The counts of the run that made the group's files.
        num_rows_skipped: The raw rows that it skipped.
    """
    return CommitMetadata(
        run_id=run_id,
        spec_hash=base.spec_hash or "",
        spec_version=1,
        input_digest=None,
        data_digest=files_digest(files),
        partitions=(),
        num_files=0,
        num_rows=0,
        size_bytes=0,
        counts=counts,
        num_rows_skipped=num_rows_skipped,
    )


def _paths(snapshot: Snapshot, partitions: Sequence[Mapping[str, str]]) -> set[str]:
    return set(snapshot.in_partitions(partitions).paths)


def _open(table_url: str, name: str, version: int) -> tuple[str, Snapshot]:
    try:
        return name, delta.open_delta(group_url(table_url, name), version)
    except TableNotFoundError as error:
        raise TableNotFoundError(
            f"{redact(table_url)}: slot group {name!r} cannot be opened at version {version}, "
            f"which the table references ({error})"
        ) from None
