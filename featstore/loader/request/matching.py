"""The table that an argument names, and the data files that a request reads of it: those whose
partitions can match its `where`.
"""

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from featstore.base.errors import ConfigError, DataFileError, SelectionError
from featstore.base.named_errors import NamedErrors
from featstore.base.redaction import redact, short
from featstore.loader.request.request import Request, resolve
from featstore.native.columns import Numbers
from featstore.statistics.stale_groups import reading, require_fresh
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, FileList, Snapshot


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A file's partition.

    Attributes:
        values: Values of the partition keys, as text; None is null.
        is_decided: Whether these values alone make `where` true for all rows of the file.
    """

    values: Mapping[str, str | None]
    is_decided: bool


def partition_value(field: pa.Field, partition: Partition) -> pa.Scalar:
    """The value of a partition key, in the type that the table declares."""
    return pa.scalar(partition.values.get(field.name), pa.string()).cast(field.type)


Listed = tuple[DataFile, Partition]


class SelectedFiles(Mapping[str, Listed]):
    """Some files of a list by path, first in its order. A file is made when it is asked for.

    Args:
        files: The list.
        matches: By place of the list: whether its partition makes `where` true for all rows (True),
            for some (None), or for none, so that its files are left out (False).

    Attributes:
        files: The selected files.
    """

    def __init__(self, files: FileList, matches: Sequence[bool | None]) -> None:
        self.files = files.at_places([is_match is not False for is_match in matches])
        self._partitions: list[Partition] = [
            Partition(values=place, is_decided=is_match is True)
            for place, is_match in zip(files.places, matches, strict=True)
        ]

    @classmethod
    def of(cls, items: Iterable[Listed]) -> "SelectedFiles":
        """Packs files, each with its partition, sorted by path."""
        listed = list(items)
        decided = {tuple(file.partition.items()): part.is_decided for file, part in listed}
        files = FileList.of(file for file, _ in listed)
        return cls(files, [decided[tuple(place.items())] or None for place in files.places])

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[str]:
        return self.files.paths

    def __getitem__(self, path: str) -> Listed:
        index = self.files.find(path)
        return self.files[index], self.partition(index)

    def values(self) -> ValuesView[Listed]:
        return _SelectedValues(self)

    def at_places(self, are_taken: Sequence[bool]) -> "SelectedFiles":
        """The files of some places of the list."""
        found = copy(self)
        found.files = self.files.at_places(are_taken)
        return found

    def take(self, indices: Numbers | Sequence[int]) -> "SelectedFiles":
        """The files at these indices, in this order."""
        found = copy(self)
        found.files = self.files.take(indices)
        return found

    def sorted_by(self, key: Callable[[Partition], Any]) -> "SelectedFiles":
        """The same files in the order of their partitions' keys; files of equal ones as before."""
        place = self.files.place
        keys = {number: key(self._partitions[number]) for number in np.unique(place).tolist()}
        ranks = {value: rank for rank, value in enumerate(sorted(set(keys.values())))}
        rank_of = np.zeros(len(self._partitions), np.int64)
        rank_of[list(keys)] = [ranks[value] for value in keys.values()]
        return self.take(np.argsort(rank_of[place], kind="stable"))

    @property
    def are_decided(self) -> bool:
        """Whether the partitions alone make `where` true for all rows of these files."""
        places = np.unique(self.files.place).tolist()
        return all(self._partitions[place].is_decided for place in places)

    def partition(self, index: int) -> Partition:
        """The partition of the file at this index."""
        return self._partitions[int(self.files.place[index])]


class _SelectedValues(ValuesView[Listed]):
    """Without looking for each path."""

    _mapping: SelectedFiles

    def __iter__(self) -> Iterator[Listed]:
        files = self._mapping
        return zip(files.files, map(files.partition, range(len(files))), strict=True)


def matching_files(snapshot: Snapshot, request: Request) -> SelectedFiles:
    """Like `matching`, but raises a SelectionError if `where` excludes every file of the table."""
    files = matching(snapshot, request)
    if snapshot.data_files and not files and request.where is not None:
        partitions = {
            "/".join(f"{k}={v}" for k, v in partition.items()) for partition in snapshot.partitions
        }
        found = ", ".join(sorted(partitions)[:5])
        has = f", which has {found}" if found else ": the bounds of its files exclude all rows"
        raise SelectionError(
            f"where {short(request.where.text)!r}: matches no partition of the table{has}"
        )
    return files


def matching(snapshot: Snapshot, request: Request) -> SelectedFiles:
    """The data files whose partitions, and bounds of columns, can match `where`, by path, each with
    the files of those slot groups that have requested columns.
    """
    return selected(snapshot, request, snapshot.data_files)


def require_fresh_files(snapshot: Snapshot, files: SelectedFiles, request: Request) -> None:
    """StaleGroupError if a slot group with requested columns is stale beside some of the files."""
    require_fresh(snapshot, (file for file, _ in files.values()), _names_read(request))


def _names_read(request: Request) -> set[str]:
    """The requested columns."""
    read = request.selection
    return {slot.name for slot in read.slots} | {field.name for field in read.others}


def selected(snapshot: Snapshot, request: Request, files: FileList) -> SelectedFiles:
    """Those of `files` that `matching` would give.

    Args:
        snapshot: Where the slot groups are declared.
        request: What is read.
        files: Data files of the snapshot.
    """
    _require_keys(snapshot, request)
    where = request.where
    matches = [None if where is None else where.matches_partition(place) for place in files.places]
    names = _names_read(request)
    read = {group.name for group in snapshot.groups if group.has(names)}
    groups = {name: group for name, group in files.groups.items() if name in read}
    found = SelectedFiles(replace(files, groups=groups), matches)
    chosen = None if where is None else found.files.matching(where)
    return found if chosen is None else found.take(chosen)


def _require_keys(snapshot: Snapshot, request: Request) -> None:
    """DataFileError if the table has other partition keys than when the request was made, as one
    that is followed may: their columns are then elsewhere.
    """
    expected, found = (
        [key.name for key in schema.partition_keys] for schema in (request.schema, snapshot.schema)
    )
    if expected != found:
        raise DataFileError(
            f"{redact(snapshot.url)}: expected the partition keys {', '.join(expected) or 'none'}, "
            f"found {', '.join(found) or 'none'}: the table is partitioned otherwise since it was "
            f"opened; open it again"
        )


class TableLike(Protocol):
    """A table opened by `featstore.open_table`."""

    @property
    def snapshot(self) -> Snapshot: ...


def snapshot_of(
    table: TableLike | Snapshot | str | Path, opened: Callable[[str], Snapshot] = open_snapshot
) -> Snapshot:
    """The table's snapshot.

    Args:
        table: An open table, a snapshot, or the path or URL of one.
        opened: Opens a URL.

    Raises:
        ConfigError: It is none of them.
        TableNotFoundError: There is no table at the URL.
    """
    if isinstance(table, Snapshot):
        return table
    if isinstance(table, str | Path):
        return opened(str(table))
    snapshot = getattr(table, "snapshot", None)
    if not isinstance(snapshot, Snapshot):
        raise ConfigError(
            f"table: expected a Table, a Snapshot or a URL, found {type(table).__name__}"
        )
    return snapshot


def resolved(
    table: TableLike | Snapshot | str | Path,
    columns: Mapping[str, Any],
    stale_groups: str,
    opened: Callable[[str], Snapshot] = open_snapshot,
) -> tuple[Snapshot, Request]:
    """The table's snapshot, and the request for columns of it.

    Args:
        table: As of `snapshot_of`.
        columns: The arguments of `resolve`.
        stale_groups: Whether slots of stale groups are an error, or are read as missing.
        opened: Opens a URL.

    Raises:
        StaleGroupError: A slot group that is read is stale beside files that are read.
        Everything that `snapshot_of` and `resolve` raise.
    """
    snapshot = reading(snapshot_of(table, opened), stale_groups)
    request = resolve(snapshot.schema, **columns)
    if snapshot.groups:
        require_fresh_files(snapshot, matching(snapshot, request), request)
    return snapshot, request


def naming_table(table: object) -> NamedErrors:
    """Names a table, given as of `snapshot_of`, in errors of the operating system."""
    return NamedErrors(str(getattr(getattr(table, "snapshot", table), "url", table)))
