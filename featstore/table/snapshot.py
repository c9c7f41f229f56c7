"""One version of a table as data: its schema and its data files. Whatever reads a table starts from
here.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from featstore.errors import DataFileError, InputError
from featstore.schema import SlotSchema
from featstore.table.layout import partition_path
from featstore.table.metadata import to_json


@dataclass(frozen=True, kw_only=True)
class GroupFile:
    """A slot group's file beside one base data file: the same rows in the same order, cut into the
    same row groups.

    `path` is relative to the base table and says what errors call the file; `url` opens it.
    `version` and `crc32` are as a data file's.
    """

    group: str
    path: str
    url: str = field(repr=False)
    size_bytes: int
    num_rows: int
    version: str = ""
    crc32: int | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """A slot group at the version that a base version names.

    `stale` are its files whose base data file has been replaced or whose rows are not that file's:
    they are not read.
    """

    name: str
    version: int
    schema: SlotSchema
    stale: tuple[str, ...] = ()

    def has(self, names: Iterable[str]) -> bool:
        """Whether it has a column of any of these names, partition keys aside."""
        return not set(names).isdisjoint(self.schema.to_arrow().names)


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One immutable Parquet file. `path` is relative to the table and unique in the snapshot, `url`
    opens the file.

    `partition` has each value as text, whatever the key's type in the schema; None is null, in
    tables by others. `version` tells it from another one of the same URL and size: the modification
    time that a table's log has of it, and of a file without a table what the store says,
    modification time or ETag; empty before it is committed. `crc32` is that of the file's bytes,
    None where no commit that was read says it. `groups` are the slot groups' files for it, by name
    of the group: a column is that of the last of them that has it, else the file's own.
    """

    path: str
    url: str = field(repr=False)
    size_bytes: int
    num_rows: int
    partition: Mapping[str, str | None]
    version: str = ""
    crc32: int | None = None
    groups: tuple[GroupFile, ...] = ()

    @property
    def parts(self) -> "tuple[DataFile | GroupFile, ...]":
        """All files that the rows are in: this one, then those of slot groups."""
        return (self, *self.groups)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A table at one version (None for a plain directory), files sorted by path.

    `schema` is that of the whole table: a file may lack some of its slots. `spec_hash` is that of
    the newest commit. `group_versions` are the versions of slot groups that this version names.
    `groups` are these groups, opened: where there are any, schema and files are those of base and
    groups as one.
    """

    url: str = field(repr=False)
    version: int | None
    schema: SlotSchema
    data_files: tuple[DataFile, ...]
    spec_hash: str | None = None
    group_versions: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Names the files' content: equal for two snapshots exactly if they hold the same files
        (path, size, rows), those of slot groups included."""
        bound = [
            f"{g.group}\t{g.path}\t{g.size_bytes}\n"
            for file in self.data_files
            for g in file.groups
        ]
        digest = files_digest(self.data_files)
        return (
            digest
            if not bound
            else hashlib.sha256("".join([digest, "\n", *sorted(bound)]).encode()).hexdigest()
        )

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.data_files)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for file in self.data_files for part in file.parts)

    @property
    def partitions(self) -> tuple[Mapping[str, str | None], ...]:
        """The distinct partitions that hold files, in path order."""
        return tuple({to_json(file.partition): file.partition for file in self.data_files}.values())

    def in_partitions(self, partitions: Iterable[Mapping[str, str | None]]) -> tuple[DataFile, ...]:
        """The data files of the given partitions."""
        return in_partitions(self.data_files, partitions)


def in_partitions(
    files: Iterable[DataFile], partitions: Iterable[Mapping[str, str | None]]
) -> tuple[DataFile, ...]:
    """Those of the files that are of the given partitions."""
    wanted = {frozenset(partition.items()) for partition in partitions}
    return tuple(file for file in files if frozenset(file.partition.items()) in wanted)


def replaced(
    partitions: Iterable[Mapping[str, str]], existing: Iterable[Mapping[str, str | None]]
) -> list[tuple[str, str, Any]] | None:
    """The conjunction of `key in values` that selects `partitions` and no other of the `existing`
    ones.

    None selects all: a table without partition keys. InputError where no such conjunction exists.
    """
    wanted = [dict(partition) for partition in partitions]
    values = {key: {partition[key] for partition in wanted} for key in wanted[0]}
    known = {frozenset(partition.items()) for partition in wanted}
    matched = (p for p in existing if all(p[key] in found for key, found in values.items()))
    also = [p for p in matched if frozenset(p.items()) not in known]
    if also:
        raise InputError(
            f"one run cannot replace {', '.join(map(partition_path, wanted))} without "
            f"{partition_path(also[0])}; "
            f"run each value of {next(iter(values))} alone"
        )
    return [(key, "in", sorted(found)) for key, found in values.items()] or None


def files_digest(files: Iterable[DataFile]) -> str:
    """sha256 over the sorted lines `path, size, rows`, tab-separated; files of slot groups are no
    part of it.
    """
    lines = sorted(map(_line, files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class OrderedDigest:
    """`files_digest` of files that go by in order of their paths."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def over(self, files: Iterable[DataFile]) -> Iterator[DataFile]:
        """The same files. DataFileError for one out of order: paths that hold control characters
        sort differently.
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
        return self._state.hexdigest()


def _line(file: DataFile) -> str:
    return f"{file.path}\t{file.size_bytes}\t{file.num_rows}\n"
