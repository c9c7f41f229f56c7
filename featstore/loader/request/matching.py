"""The table that an argument names, and the data files that a request reads of it: those whose
partitions can match its `where`.
"""

from array import array
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
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

import pyarrow as pa

from featstore.base.errors import ConfigError, SelectionError
from featstore.base.named_errors import NamedErrors
from featstore.base.redaction import short
from featstore.loader.request.request import Request, resolve
from featstore.statistics.stale_groups import reading, require_fresh
from featstore.table.file_list import FileList
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, Snapshot


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
Files = Mapping[str, Listed]


class SelectedFiles(Files):
    """Some files of a list by path, first in its order. A file is made when it is asked for.

    A mapping as any other, and by index besides: the index counts selected files only.

    Args:
        files: The list.
        matches: By place of the list: whether its partition makes `where` true for all rows (True),
            for some (None), or for none, so that its files are left out (False).
        groups: The slot groups whose files are read.
    """

    def __init__(
        self, files: FileList, matches: Sequence[bool | None], groups: Iterable[str]
    ) -> None:
        self._files, self._groups = files, frozenset(groups)
        self._partitions = [
            Partition(values=place.partition, is_decided=is_match is True)
            for place, is_match in zip(files.places, matches, strict=True)
        ]
        self._is_selected = [is_match is not False for is_match in matches]
        # None: all of them.
        self._selected: array[int] | None = None
        if not all(self._is_selected):
            indices = (i for i in range(len(files)) if self._is_selected[files.place(i)])
            self._selected = array("I", indices)

    @classmethod
    def of(cls, items: Iterable[Listed]) -> "SelectedFiles":
        """Packs files that are sorted by path, each with its partition."""
        decided = dict[tuple[tuple[str, str | None], ...], bool]()

        def noted() -> Iterator[DataFile]:
            for file, partition in items:
                decided[tuple(file.partition.items())] = partition.is_decided
                yield file

        files = FileList(noted())
        matches = [decided[tuple(place.partition.items())] or None for place in files.places]
        return cls(files, matches, files.groups)

    def __len__(self) -> int:
        return len(self._files if self._selected is None else self._selected)

    def __iter__(self) -> Iterator[str]:
        return (self._files.path(index) for index in self._indices)

    def __getitem__(self, path: str) -> Listed:
        index = self._files.find(path)
        if not self._is_selected[self._files.place(index)]:
            raise KeyError(path)
        return self._listed(index)

    def values(self) -> ValuesView[Listed]:
        return _SelectedValues(self)

    def items(self) -> ItemsView[str, Listed]:
        return _SelectedItems(self)

    def sorted_by(self, key: Callable[[Partition], Any]) -> "SelectedFiles":
        """The same files in the order of their partitions' keys; files of equal ones as before."""
        found = copy(self)
        partitions, place = self._partitions, self._files.place
        in_order = sorted(self._indices, key=lambda index: key(partitions[place(index)]))
        found._selected = array("I", in_order)
        return found

    def listed(self) -> Iterator[Listed]:
        """The files and partitions, in order."""
        return map(self._listed, self._indices)

    @property
    def are_decided(self) -> bool:
        """Whether the partitions alone make `where` true for all rows of these files."""
        pairs = zip(self._partitions, self._is_selected, strict=True)
        return all(partition.is_decided for partition, is_selected in pairs if is_selected)

    def path(self, index: int) -> str:
        """The path of a selected file."""
        return self._files.path(self._indices[index])

    def num_rows(self, index: int) -> int:
        """The rows of a selected file."""
        return self._files.num_rows(self._indices[index])

    @property
    def _indices(self) -> Sequence[int]:
        return range(len(self._files)) if self._selected is None else self._selected

    def _listed(self, index: int) -> Listed:
        file = _with_groups(self._files[index], self._groups)
        return file, self._partitions[self._files.place(index)]


class _SelectedValues(ValuesView[Listed]):
    """Without looking for each path."""

    _mapping: SelectedFiles

    def __iter__(self) -> Iterator[Listed]:
        return self._mapping.listed()


class _SelectedItems(ItemsView[str, Listed]):
    """Without looking for each path."""

    _mapping: SelectedFiles

    def __iter__(self) -> Iterator[tuple[str, Listed]]:
        return ((item[0].path, item) for item in self._mapping.listed())


def are_decided(files: Files) -> bool:
    """Whether the partitions alone make `where` true for all rows of these files."""
    if isinstance(files, SelectedFiles):
        return files.are_decided
    return all(partition.is_decided for _, partition in files.values())


def matching_files(snapshot: Snapshot, request: Request) -> SelectedFiles:
    """Like `matching`, but raises a SelectionError if `where` excludes every file of the table."""
    files = matching(snapshot, request)
    if snapshot.data_files and not files and request.where is not None:
        found = ", ".join(
            sorted(
                {
                    "/".join(f"{k}={v}" for k, v in file.partition.items())
                    for file in snapshot.data_files
                }
            )[:5]
        )
        raise SelectionError(
            f"where {short(request.where.text)!r}: matches no partition of the table, which has "
            f"{found}"
        )
    return files


def matching(snapshot: Snapshot, request: Request) -> SelectedFiles:
    """The data files whose partitions can match `where`, by path, each with the files of those slot
    groups that have requested columns.
    """
    files = snapshot.data_files
    files = files if isinstance(files, FileList) else FileList(files)
    where = request.where
    matches = [
        None if where is None else where.matches_partition(place.partition)
        for place in files.places
    ]
    return SelectedFiles(files, matches, _groups_read(snapshot, request))


def require_fresh_files(snapshot: Snapshot, files: Files, request: Request) -> None:
    """StaleGroupError if a slot group with requested columns is stale beside some of the files."""
    require_fresh(snapshot, (file for file, _ in files.values()), _names_read(request))


def _with_groups(file: DataFile, names: Collection[str]) -> DataFile:
    """The data file with its files of these slot groups only."""
    if not file.groups:
        return file
    return replace(file, groups=tuple(group for group in file.groups if group.group in names))


def _groups_read(snapshot: Snapshot, request: Request) -> set[str]:
    """The slot groups that have requested columns."""
    read = _names_read(request)
    return {group.name for group in snapshot.groups if group.has(read)}


def _names_read(request: Request) -> set[str]:
    """The requested columns."""
    read = request.selection
    return {slot.name for slot in read.slots} | {field.name for field in read.others}


def selected(snapshot: Snapshot, request: Request, files: Iterable[DataFile]) -> Iterator[Listed]:
    """Streams those of `files` that `matching` would give.

    Args:
        snapshot: Where the slot groups are declared.
        request: What is read.
        files: Data files of the snapshot.
    """
    groups = _groups_read(snapshot, request)
    for file in files:
        matches = None if request.where is None else request.where.matches_partition(file.partition)
        if matches is not False:
            partition = Partition(values=file.partition, is_decided=matches is True)
            yield _with_groups(file, groups), partition


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
