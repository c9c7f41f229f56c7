"""One version of a table: its schema and its data files. Every reader starts from a snapshot."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from featstore.base.errors import DataFileError, InputError
from featstore.base.schema import SlotSchema
from featstore.table.layout import partition_path
from featstore.table.metadata import to_json


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """One immutable Parquet file of a table.

    Attributes:
        path: The path relative to the table, unique in the snapshot. Errors name the file by it.
        url: The URL that opens the file.
        size_bytes: The size of the file.
        num_rows: The number of rows.
        version: Distinguishes the file from another one with the same URL and size. It is the
            modification time in the table's log, or for plain Parquet the modification time or
            ETag in the store. Empty before the commit.
        crc32: The CRC-32 of the file's bytes, or None if no commit that was read records it.
    """

    path: str
    url: str = field(repr=False)
    size_bytes: int
    num_rows: int
    version: str = ""
    crc32: int | None = None


@dataclass(frozen=True, kw_only=True)
class GroupFile(TableFile):
    """A slot group's file for one base data file. It has the same rows in the same order, and the
    same row groups.

    Attributes:
        group: The name of the slot group.
    """

    group: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """A slot group, at the version that the base table references.

    Attributes:
        name: The name of the slot group.
        version: The version of the group's own Delta table.
        schema: The group's columns.
        stale: Files that are not read, because their base data file was replaced or has another
            number of rows. Their paths are relative to the group.
    """

    name: str
    version: int
    schema: SlotSchema
    stale: tuple["DataFile", ...] = ()

    def has(self, names: Iterable[str]) -> bool:
        """Whether it has a column of any of these names. Partition keys do not count."""
        return not set(names).isdisjoint(self.schema.to_arrow().names)


@dataclass(frozen=True, kw_only=True)
class DataFile(TableFile):
    """One file of the base table.

    Attributes:
        partition: The values of the partition keys as text, whatever the key's type in the schema.
            None is null, which occurs in tables of other writers.
        groups: The slot groups' files for this one, sorted by name of the group. A column is taken
            from the last of them that has it, or else from the file itself.
    """

    partition: Mapping[str, str | None]
    groups: tuple[GroupFile, ...] = ()

    @property
    def table_url(self) -> str:
        """The URL of the table, or of the file if that lies in another one."""
        return self.url.removesuffix(self.path).rstrip("/")

    @property
    def parts(self) -> tuple[TableFile, ...]:
        """All files that hold the rows: this one, then those of slot groups."""
        return (self, *self.groups)


@dataclass(frozen=True, kw_only=True)
class TableRules:
    """What a Delta table demands, in words; see `log/table_rules.py`. By default nothing.

    Attributes:
        reading: What featstore cannot read of the table, if anything.
        writing: The rules that a commit of featstore would break.
        vacuuming: The rules that a vacuum would break.
    """

    reading: str = ""
    writing: tuple[str, ...] = ()
    vacuuming: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A table at one version.

    Attributes:
        url: The URL of the table.
        version: The Delta version, or None for plain Parquet.
        schema: The schema of the whole table, slot groups included. A file may lack some of its
            slots.
        data_files: The data files, sorted by path. Those of an opened table are in columns
            (`FileList`).
        spec_hash: The spec hash of the newest extraction, or None if unknown.
        group_versions: The versions of slot groups that this version references, by name.
        groups: These slot groups, opened. Empty if they were not opened.
        rules: What the table demands of writers.
        reads_stale: Whether columns of stale slot groups are read as missing, in place of an error.
    """

    url: str = field(repr=False)
    version: int | None
    schema: SlotSchema
    data_files: Sequence[DataFile]
    spec_hash: str | None = None
    group_versions: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    rules: TableRules = TableRules()
    reads_stale: bool = False

    @cached_property
    def digest(self) -> str:
        """A hex digest that two snapshots share exactly if they hold the same files (path, size,
        rows), those of slot groups included.
        """
        group_lines = [
            f"{g.group}\t{g.path}\t{g.size_bytes}\n"
            for file in self.data_files
            for g in file.groups
        ]
        digest = files_digest(self.data_files)
        if not group_lines:
            return digest
        return hashlib.sha256("".join([digest, "\n", *sorted(group_lines)]).encode()).hexdigest()

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.num_rows for file in self.data_files)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files, those of slot groups included."""
        return sum(part.size_bytes for file in self.data_files for part in file.parts)

    @property
    def partitions(self) -> tuple[Mapping[str, str | None], ...]:
        """The distinct partitions that hold files, in path order."""
        return tuple(files[0].partition for files in by_partition(self.data_files).values())

    def in_partitions(self, partitions: Iterable[Mapping[str, str | None]]) -> tuple[DataFile, ...]:
        """The data files of the given partitions."""
        return in_partitions(self.data_files, partitions)


class OfPartition(Protocol):
    """A file, or what else belongs to one partition."""

    @property
    def partition(self) -> Mapping[str, str | None]: ...


_Of = TypeVar("_Of", bound=OfPartition)


def by_partition(items: Iterable[_Of]) -> dict[str, list[_Of]]:
    """The items of each partition in their order, by the JSON of the partition."""
    found: dict[str, list[_Of]] = {}
    for item in items:
        found.setdefault(to_json(item.partition), []).append(item)
    return found


def in_partitions(
    files: Iterable[DataFile], partitions: Iterable[Mapping[str, str | None]]
) -> tuple[DataFile, ...]:
    """The files that belong to the given partitions."""
    keys = {frozenset(partition.items()) for partition in partitions}
    return tuple(file for file in files if frozenset(file.partition.items()) in keys)


def overwrite_filters(
    partitions: Iterable[Mapping[str, str]], existing: Iterable[Mapping[str, str | None]]
) -> list[tuple[str, str, Any]] | None:
    """The partition filters for delta-rs that select `partitions` and no other existing one.

    delta-rs takes only a conjunction of `key in values`, which may select more partitions than the
    given ones.

    Returns:
        The conjunction. None, for a table without partition keys, selects everything.

    Raises:
        InputError: Every such conjunction would select another partition too.
    """
    targets = [dict(partition) for partition in partitions]
    values = {key: {partition[key] for partition in targets} for key in targets[0]}
    target_keys = {frozenset(partition.items()) for partition in targets}
    matched = (p for p in existing if all(p[key] in texts for key, texts in values.items()))
    others = [p for p in matched if frozenset(p.items()) not in target_keys]
    if others:
        raise InputError(
            f"one run cannot replace {', '.join(map(partition_path, targets))} without "
            f"{partition_path(others[0])}; run each value of {next(iter(values))} alone"
        )
    return [(key, "in", sorted(texts)) for key, texts in values.items()] or None


def files_digest(files: Iterable[DataFile]) -> str:
    """The sha256, in hex, over the sorted lines `path, size, rows`, tab-separated. Files of slot
    groups are not part of it.
    """
    lines = sorted(map(_line, files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class OrderedDigest:
    """The `files_digest` of a stream of files that is sorted by path, in constant memory."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def over(self, files: Iterable[DataFile]) -> Iterator[DataFile]:
        """Yields the files unchanged and adds them to the digest.

        Raises:
            DataFileError: A file is out of order. Lines sort as paths do, unless a path has control
                characters.
        """
        before = ""
        for file in files:
            line = _line(file)
            if line < before:
                raise DataFileError(
                    f"{file.path!r}: expected files in order of their paths, found it after "
                    f"{before!r}"
                )
            self._state.update(line.encode())
            before = line
            yield file

    def hexdigest(self) -> str:
        """The digest of the files so far."""
        return self._state.hexdigest()


def _line(file: DataFile) -> str:
    return f"{file.path}\t{file.size_bytes}\t{file.num_rows}\n"
