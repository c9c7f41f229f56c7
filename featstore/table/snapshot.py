"""One version of a table as data: its schema and its data files. Whatever reads a table starts from here."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from featstore.schema import SlotSchema
from featstore.table.metadata import to_json


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One immutable Parquet file. `path` is relative to the table and unique in the snapshot, `url` opens the file.

    `partition` has each value as text, whatever the key's type in the schema; None is null, in tables by others.
    `version` is the modification time or ETag of a file that is not a table's own and so may be replaced, else empty.
    """

    path: str
    url: str
    size_bytes: int
    num_rows: int
    partition: Mapping[str, str | None]
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A table at one version (None for a plain directory), files sorted by path.

    `schema` is that of the whole table: a file may lack some of its slots. `spec_hash` is that of the newest commit.
    """

    url: str
    version: int | None
    schema: SlotSchema
    data_files: tuple[DataFile, ...]
    spec_hash: str | None = None

    @cached_property
    def digest(self) -> str:
        """Names the files' content: equal for two snapshots exactly if they hold the same files (path, size, rows)."""
        return files_digest(self.data_files)

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.data_files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.data_files)

    @property
    def partitions(self) -> tuple[Mapping[str, str | None], ...]:
        """The distinct partitions that hold files, in path order."""
        return tuple({to_json(file.partition): file.partition for file in self.data_files}.values())

    def in_partitions(self, partitions: Iterable[Mapping[str, str | None]]) -> tuple[DataFile, ...]:
        """The data files of the given partitions."""
        wanted = {frozenset(partition.items()) for partition in partitions}
        return tuple(file for file in self.data_files if frozenset(file.partition.items()) in wanted)


def files_digest(files: Iterable[DataFile]) -> str:
    """sha256 over the sorted lines `path, size, rows`, tab-separated."""
    lines = sorted(f"{file.path}\t{file.size_bytes}\t{file.num_rows}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
