"""Slot groups: columns extracted later, in Delta tables of their own beside the base, and shown
with it as one table.

A group's files are committed to the group first, where nobody looks; then one commit to the base
names the group's version. So the base's version alone says what is read, and a run that dies
between both has changed nothing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from featstore.errors import TableNotFoundError
from featstore.redaction import redact
from featstore.schema import SlotSchema
from featstore.table import delta
from featstore.table.evolution import merge_schemas
from featstore.table.layout import GROUPS_DIR, base_path, group_url
from featstore.table.metadata import CommitMetadata
from featstore.table.snapshot import DataFile, Group, GroupFile, Snapshot, files_digest


def with_groups(base: Snapshot) -> Snapshot:
    """The base and the slot groups that its version names, as one snapshot.

    A column that both have is the group's where a group's file is bound to the base file, else the
    base's. TableNotFoundError where a group, or the version that is named, is gone.
    """
    opened = [
        _open(base.url, name, version) for name, version in sorted(base.group_versions.items())
    ]
    bound: defaultdict[str, list[GroupFile]] = defaultdict(list)
    rows = {file.path: file.num_rows for file in base.data_files}
    groups, schema = [], base.schema
    for name, snapshot in opened:
        stale = []
        for file in snapshot.data_files:
            of = base_path(file.path)
            if rows.get(of) == file.num_rows:
                bound[of].append(_group_file(name, file))
            else:
                stale.append(file.path)
        groups.append(
            Group(
                name=name, version=snapshot.version or 0, schema=snapshot.schema, stale=tuple(stale)
            )
        )
        schema = merged(schema, snapshot.schema, redact(base.url))
    files = tuple(
        replace(file, groups=tuple(bound[file.path])) if file.path in bound else file
        for file in base.data_files
    )
    return replace(base, schema=schema, data_files=files, groups=tuple(groups)) if groups else base


def merged(schema: SlotSchema, group: SlotSchema, where: str) -> SlotSchema:
    """The table's schema with a group's columns: one namespace, so InputError where a name or
    number means two things.
    """
    same_keys = group.with_partition_keys(schema.partition_keys)
    return merge_schemas(schema, same_keys, where)


def open_group_or_none(table_url: str, name: str) -> Snapshot | None:
    """The newest version of a group, also one that no base version names yet; None where there is
    none.
    """
    return delta.open_delta_or_none(group_url(table_url, name))


def bound_to(group: Snapshot, partitions: Sequence[Mapping[str, str]], base: Snapshot) -> bool:
    """Whether every base file of the partitions has its file in the group, and the group none
    besides.
    """
    found = {base_path(file.path): file.num_rows for file in group.in_partitions(partitions)}
    return found == {file.path: file.num_rows for file in base.in_partitions(partitions)}


def publish_group(
    base: Snapshot,
    name: str,
    version: int,
    partitions: tuple[Mapping[str, str], ...],
    metadata: CommitMetadata,
    publish: delta.Publish | None = None,
) -> int:
    """Names the group's version in one commit to the base, and returns the base's version.

    Nothing is committed where the base names this version, or a later one, already.
    CommitConflictError where files of the partitions were replaced since `base` was opened: the
    group's files are then bound to files that nobody reads.
    """

    def choose(named: dict[str, int]) -> dict[str, int]:
        return named | {name: max(version, named.get(name, version))}

    change = delta.Change(
        base=base, schema=base.schema, partitions=partitions, files=(), metadata=metadata
    )
    now = delta.open_delta(base.url)
    if now.group_versions.get(name, -1) >= version and files_of(now, partitions) == files_of(
        base, partitions
    ):
        return now.version or 0
    return delta.commit(base.url, change, publish or delta.publish_groups(choose))


def drop_groups(base: Snapshot, versions: Mapping[str, int], metadata: CommitMetadata) -> int:
    """Names these groups no more, in one commit to the base, but those that have been committed to
    since.
    """

    def choose(named: dict[str, int]) -> dict[str, int]:
        return {name: version for name, version in named.items() if versions.get(name) != version}

    change = delta.Change(base=base, schema=base.schema, partitions=(), files=(), metadata=metadata)
    return delta.commit(base.url, change, delta.publish_groups(choose))


def groups_commit(run_id: str, base: Snapshot, files: Sequence[DataFile]) -> CommitMetadata:
    """What the base's log says of a commit that only names groups: `files` are the group's."""
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
    )


def files_of(snapshot: Snapshot, partitions: Sequence[Mapping[str, str]]) -> set[str]:
    """The paths of the base files of some partitions."""
    return {file.path for file in snapshot.in_partitions(partitions)}


def _open(table_url: str, name: str, version: int) -> tuple[str, Snapshot]:
    try:
        return name, delta.open_delta(group_url(table_url, name), version)
    except TableNotFoundError as error:
        raise TableNotFoundError(
            f"{redact(table_url)}: slot group {name!r} cannot be opened at version {version}, "
            f"which the table names ({error})"
        ) from None


def _group_file(name: str, file: DataFile) -> GroupFile:
    path = f"{GROUPS_DIR}/{name}/{file.path}"
    return GroupFile(
        group=name,
        path=path,
        url=file.url,
        size_bytes=file.size_bytes,
        num_rows=file.num_rows,
        version=file.version,
        crc32=file.crc32,
    )
