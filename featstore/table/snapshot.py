"""One version of a table: its schema and its data files, which are kept in Arrow columns. Every
reader starts from a snapshot.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, overload
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.errors import DataFileError, InputError, nearest
from featstore.base.processes import cached_property
from featstore.base.redaction import redact
from featstore.base.schema import FieldId, Slot, SlotSchema
from featstore.histories.file_format import StoredHistory, histories_of
from featstore.native.columns import Numbers, lines, narrow, numbers, sha256_of, text_of, texts
from featstore.selection.predicate import Range, Ranges
from featstore.selection.where import Where
from featstore.table.metadata import to_json
from featstore.table.row_masks import RowMask, deleted_rows, num_deleted_in
from featstore.table.table_rules import TableRules

Partition: TypeAlias = Mapping[str, str | None]
# What the URL of a table says beside values of partition keys, after `?`.
VERSIONS = VERSION, AFTER = "version", "after"
# Rows of a list that are made into objects at once while it is iterated.
_BATCH_ROWS = 4_096


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
        mask: The file's deleted rows; None if there are none. `num_rows` includes them.
    """

    path: str
    url: str = field(repr=False)
    size_bytes: int
    num_rows: int
    version: str = ""
    crc32: int | None = None
    mask: RowMask | None = None

    def deleted_rows(self) -> Numbers | None:
        """Loads the positions of the deleted rows, as of `row_masks.deleted_rows`; None if the file
        has no mask.
        """
        return None if self.mask is None else deleted_rows(self.mask, self.path, self.num_rows)

    @property
    def num_left(self) -> int:
        """How many rows are not deleted. Deleted ones are loaded if the table does not tell how
        many there are.
        """
        if self.mask is not None and self.mask.num_deleted is not None:
            return self.num_rows - self.mask.num_deleted
        deleted = self.deleted_rows()
        return self.num_rows - (0 if deleted is None else len(deleted))


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

    @property
    def histories(self) -> tuple[StoredHistory, ...]:
        """Its histories. DataFileError as `histories_of`."""
        return histories_of(self.schema)

    def has(self, names: Iterable[str]) -> bool:
        """Whether it has a column of any of these names. Partition keys do not count."""
        return not set(names).isdisjoint(self.schema.column_names)


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


class PartitionTotal(NamedTuple):
    """How many files a partition has, their rows that are not deleted, and their bytes."""

    partition: Partition
    num_files: int
    num_rows: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FileList(Sequence[DataFile]):
    """Data files in Arrow columns. The object of a file is made when it is asked for.

    A file takes the bytes of its path and 24 more, and 8 for its CRC-32 if one of them is known.
    Files of 4 GiB or more, versions that differ in each file, URLs that do not end in the path,
    masks and ranges take more.

    Attributes:
        columns: By name, each with one value per file: `path` and `version`, `size_bytes` and
            `num_rows`; `crc32` if any is known (-1: unknown); `url` unless each is `root` and path;
            `mask` unless no file has one: as JSON, relative to `root` (empty: none).
        root: See `columns`.
        place: int32 (num_files,), the index of each file's partition in `places`.
        places: The partitions, of which not all need have a file.
        groups: The files of slot groups, by name of the group, sorted.
        ranges: The bounds in each file of some columns, if the table's metadata tell them; as of
            row groups.
    """

    columns: Mapping[str, pa.Array]
    root: str
    place: Numbers
    places: Sequence[Partition]
    groups: Mapping[str, "GroupFiles"] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[DataFile] = ()) -> "FileList":
        """The list of these files, sorted by path.

        Raises:
            DataFileError: Two of them have the same path.
        """
        rows = list(files)
        beside: dict[str, dict[int, GroupFile]] = {}
        for index, file in enumerate(rows):
            for bound in file.groups:
                beside.setdefault(bound.group, {})[index] = bound
        root, columns = _packed(rows)
        place, places = _placed(file.partition for file in rows)
        return cls(
            columns=columns,
            root=root,
            place=place,
            places=places,
            groups={
                name: GroupFiles.of(found, len(rows)) for name, found in sorted(beside.items())
            },
        ).sorted()

    @classmethod
    def of_columns(
        cls,
        *,
        paths: Sequence[str],
        urls: Sequence[str],
        size_bytes: Sequence[int],
        num_rows: Sequence[int],
        masks: Iterable[RowMask | None] | None,
        partitions: Iterable[Partition] | None,
    ) -> "FileList":
        """The list of files without versions and slot groups, sorted by path.

        Arguments are fields of `DataFile`, of each file; None if no file has any.

        Raises:
            DataFileError: Two of them have the same path.
        """
        root, columns = _columns(paths, urls, size_bytes, num_rows, masks)
        place, places = _placed([{}] * len(paths) if partitions is None else partitions)
        return cls(columns=columns, root=root, place=place, places=places).sorted()

    def __len__(self) -> int:
        return len(self.place)

    @overload
    def __getitem__(self, index: int) -> DataFile: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DataFile, ...]: ...
    def __getitem__(self, index: int | slice) -> DataFile | tuple[DataFile, ...]:
        if isinstance(index, slice):
            return tuple(self[row] for row in range(*index.indices(len(self))))
        row = range(len(self))[index]
        return self._file(row, {name: values[row].as_py() for name, values in self.columns.items()})

    def __iter__(self) -> Iterator[DataFile]:
        for first in range(0, len(self), _BATCH_ROWS):
            batch = [values.slice(first, _BATCH_ROWS) for values in self.columns.values()]
            rows = zip(*(values.to_pylist() for values in batch), strict=True)
            for index, row in enumerate(rows, first):
                yield self._file(index, dict(zip(self.columns, row, strict=True)))

    def __eq__(self, other: object) -> bool:
        """Whether the other one is a sequence of the same files."""
        if not isinstance(other, FileList | tuple):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return f"FileList({len(self)} files)"

    def path(self, index: int) -> str:
        """The path of a file."""
        return text_of(self.columns["path"][index].as_py())

    @property
    def paths(self) -> Iterator[str]:
        """The paths of all files."""
        return map(text_of, self.columns["path"].to_pylist())

    @property
    def urls(self) -> Iterator[str]:
        """The URLs of all files."""
        if "url" in self.columns:
            return map(text_of, self.columns["url"].to_pylist())
        return (f"{self.root}{path}" for path in self.paths)

    @property
    def parts(self) -> "tuple[FileList, ...]":
        """The list itself, then those of its slot groups' files."""
        return (self, *(group.files for group in self.groups.values()))

    def find(self, path: str) -> int:
        """The index of the file with this path. KeyError if there is none."""
        paths, wanted = self.columns["path"], path.encode("utf-8", "surrogateescape")
        at = bisect_left(self._by_path, wanted, key=lambda index: paths[int(index)].as_py())
        if at == len(self) or paths[index := int(self._by_path[at])].as_py() != wanted:
            raise KeyError(path)
        return index

    def sorted(self) -> "FileList":
        """The files sorted by path. DataFileError if two have the same path."""
        found = self if self._is_sorted else self.take(self._by_path)
        if not found._is_sorted:
            paths = list(found.paths)
            twice = next(path for path, after in pairwise(paths) if path == after)
            raise DataFileError(
                f"{twice!r}: expected files in the order of their paths, found it after {twice!r}"
            )
        return found

    def take(self, indices: Numbers | Sequence[int]) -> "FileList":
        """The files at these indices, in this order."""
        rows = np.asarray(indices, np.int64)
        taken = {name: values.take(numbers(rows)) for name, values in self.columns.items()}
        # A dictionary of few rows is often much smaller.
        taken["version"] = taken["version"].dictionary_decode().dictionary_encode()
        groups = {name: group.take(rows) for name, group in self.groups.items()}
        ranges = {name: range_.take(rows) for name, range_ in self.ranges.items()}
        place = self.place[rows]
        return replace(self, columns=taken, place=place, groups=groups, ranges=ranges)

    def matching(self, where: Where) -> Numbers | None:
        """The indices of the files in which the bounds of columns do not exclude that a row
        matches; None for all.
        """
        if self.ranges.keys().isdisjoint(where.columns):
            return None
        may = where.can_match(Ranges(num_row_groups=len(self), columns=self.ranges))
        return None if may.all() else np.flatnonzero(may)

    def at_places(self, are_taken: Sequence[bool]) -> "FileList":
        """The files of some of the `places`."""
        if all(are_taken):
            return self
        return self.take(np.flatnonzero(np.array(are_taken, bool)[self.place]))

    def in_partitions(self, partitions: Iterable[Partition]) -> "FileList":
        """The files that belong to the given partitions."""
        keys = {frozenset(partition.items()) for partition in partitions}
        return self.at_places([frozenset(place.items()) in keys for place in self.places])

    def of_values(self, url: str, named: Mapping[str, str], keys: Iterable[pa.Field]) -> "FileList":
        """The files of the partitions with these values, or with values from FIRST to LAST of
        `FIRST..LAST`, compared in the types of the keys: 05 is the integer 5.

        Args:
            url: What names the values, for errors.
            named: What the URL says, as `read_query` gives it.
            keys: The partition keys.

        Raises:
            InputError: A name is no partition key, a value is none of its key's type, or a range is
                reversed.
        """
        types = {key.name: key.type for key in keys}
        values = {name: text for name, text in named.items() if name not in VERSIONS}
        if unknown := sorted(values.keys() - types.keys()):
            known = [*VERSIONS, *types]
            raise InputError(
                f"{redact(url)}: expected {', '.join(VERSIONS)} or a partition key "
                f"({', '.join(types)}) after '?', found {unknown[0]!r}{nearest(unknown[0], known)}"
            )
        wanted = {key: _wanted(url, key, text, types[key]) for key, text in values.items()}
        return self.at_places(
            [all(holds(place[key]) for key, holds in wanted.items()) for place in self.places]
        )

    def values(self, name: str) -> Numbers:
        """A column of numbers: int64 (num_files,)."""
        return np.from_dlpack(self.columns[name]).astype(np.int64)

    @cached_property
    def _masked(self) -> list[int]:
        """The indices of the files that have a mask."""
        if "mask" not in self.columns:
            return []
        sizes: Numbers = np.from_dlpack(pc.binary_length(self.columns["mask"]))
        return np.flatnonzero(sizes).tolist()

    @cached_property
    def _told(self) -> list[int | None]:
        """How many rows of each of these files are deleted; None where the table does not tell."""
        if not self._masked:
            return []
        masks = self.columns["mask"].take(numbers(self._masked))
        return list(map(num_deleted_in, masks.to_pylist()))

    @property
    def has_masks(self) -> bool:
        """Whether rows of any file are deleted."""
        return bool(self._masked)

    @property
    def rows_left(self) -> Numbers:
        """The rows of each file that are not deleted: int64 (num_files,). Where the table does not
        tell how many are, they are loaded.
        """
        left = self.values("num_rows")
        for index, num_deleted in zip(self._masked, self._told, strict=True):
            left[index] = self[index].num_left if num_deleted is None else left[index] - num_deleted
        return left

    @property
    def num_rows_told(self) -> int | None:
        """The number of rows that are not deleted, as the table tells it; None if deleted ones had
        to be loaded.
        """
        return None if None in self._told else int(self.rows_left.sum())

    @property
    def num_parts(self) -> Numbers:
        """How many files hold the rows of each file, see `DataFile.parts`: (num_files,)."""
        ones = np.ones(len(self), np.int64)
        return sum((group.row_of >= 0 for group in self.groups.values()), start=ones)

    @property
    def total_bytes(self) -> Numbers:
        """The bytes of each file and those of its slot groups: int64 (num_files,)."""
        total = self.values("size_bytes")
        for files, row_of in self.groups.values():
            total[row_of >= 0] += files.values("size_bytes")[row_of[row_of >= 0]]
        return total

    def totals(self) -> list[PartitionTotal]:
        """What the partitions with files hold, in the order of their first file."""
        sums = np.zeros((len(self.places), 3), np.int64)
        of_files = [
            np.ones(len(self), np.int64),
            self.rows_left,
            self.values("size_bytes"),
        ]
        np.add.at(sums, self.place, np.stack(of_files, axis=1))
        # Of several values for one index the last one stays, so the first file's comes last.
        first = np.full(len(self.places), len(self), np.int64)
        first[self.place[::-1]] = np.arange(len(self))[::-1]
        order = [place for place in np.argsort(first).tolist() if first[place] < len(self)]
        return [PartitionTotal(self.places[place], *sums[place].tolist()) for place in order]

    @property
    def digest(self) -> str:
        """A hex digest of `path, size, rows` of the files, and of their masks, without those of
        slot groups; see `files_digest`.
        """
        columns = self.columns
        masks = [columns["mask"]] if "mask" in columns else []
        return sha256_of(
            lines(
                *(columns["path"], "\t", columns["size_bytes"], "\t", columns["num_rows"]),
                *(*masks, "\n"),
            )
        )

    @cached_property
    def _is_sorted(self) -> bool:
        paths = self.columns["path"]
        return pc.all(pc.less(paths[:-1], paths[1:])).as_py() is not False  # None of one file

    @cached_property
    def _by_path(self) -> Sequence[int] | Numbers:
        """The indices of the files in the order of their paths."""
        if self._is_sorted:
            return range(len(self))
        return np.from_dlpack(pc.sort_indices(self.columns["path"]))

    def _file(self, index: int, row: dict[str, Any]) -> DataFile:
        partition = self.places[self.place[index]]
        groups = (group.file(name, index) for name, group in self.groups.items())
        found = tuple(file for file in groups if file is not None)
        return DataFile(**_fields(row, self.root), partition=partition, groups=found)


class GroupFiles(NamedTuple):
    """A slot group's files for the files of a list.

    Attributes:
        files: The group's files, in any order. Their paths are relative to the table.
        row_of: int32 (num_files,), the index in `files` for each file of the list; -1 for none.
    """

    files: FileList
    row_of: Numbers

    @classmethod
    def of(cls, found: Mapping[int, GroupFile], num_files: int) -> "GroupFiles":
        """Packs files by the index of the one that each is for."""
        root, columns = _packed(list(found.values()))
        place, row_of = np.zeros(len(found), np.int32), np.full(num_files, -1, np.int32)
        row_of[list(found)] = np.arange(len(found))
        return cls(FileList(columns=columns, root=root, place=place, places=({},)), row_of)

    def take(self, indices: Numbers) -> "GroupFiles":
        """The group's files for the files at these indices."""
        rows = self.row_of[indices]
        own = rows >= 0
        return GroupFiles(
            self.files.take(rows[own]), np.where(own, np.cumsum(own) - 1, -1).astype(np.int32)
        )

    def file(self, name: str, index: int) -> GroupFile | None:
        """The group's file for a file of the list, if there is one."""
        row, files = int(self.row_of[index]), self.files
        if row < 0:
            return None
        values = {name: column[row].as_py() for name, column in files.columns.items()}
        return GroupFile(group=name, **_fields(values, files.root))


def read_query(url: str, query: str) -> dict[str, str]:
    """What the URL of a table says after `?`, by name. What is no version stays percent-encoded, so
    that the dots of a value can be told from those of a range.

    Args:
        url: The URL, for the error.
        query: What follows the `?`.

    Raises:
        InputError: A name is given twice.
    """
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    names = [unquote_plus(name) for name, _, _ in pairs]
    for name in names:
        if (count := names.count(name)) > 1:
            raise InputError(
                f"{redact(url)}: expected one value of {name!r} after '?', found {count}: name one "
                f"alone, or of a partition key a range, FIRST..LAST"
            )
    values = dict(zip(names, (value for _, _, value in pairs), strict=True))
    return {n: unquote_plus(value) if n in VERSIONS else value for n, value in values.items()}


def _wanted(url: str, key: str, text: str, type_: pa.DataType) -> Callable[[str | None], bool]:
    """Whether a URL names a value of a partition key by `text`, for each value."""
    before, _, after = text.partition("..")
    ends = (before, after) if before and after else (text, text)
    first, last = (_value(url, key, unquote_plus(end), type_) for end in ends)
    if not first <= last:
        raise InputError(
            f"{redact(url)}: expected the first value of the partition key {key!r} ({type_}) "
            f"before the last, found {text!r}"
        )

    def holds(found: str | None) -> bool:
        value = _value(url, key, found, type_)
        return value is not None and bool(first <= value <= last)

    return holds


def _value(url: str, key: str, text: str | None, type_: pa.DataType) -> Any:
    try:
        return pa.scalar(text, pa.string()).cast(type_).as_py()
    except pa.ArrowInvalid:
        raise InputError(
            f"{redact(url)}: expected a value of the partition key {key!r} ({type_}), found "
            f"{text!r}"
        ) from None


def _placed(partitions: Iterable[Partition]) -> tuple[Numbers, list[Partition]]:
    """`FileList.place` and `FileList.places` of files in these partitions."""
    # An object for each file that stayed would cost more than all else: in garbage collections.
    number_of, places, found = dict[frozenset[Any], int](), list[Partition](), array("i")
    for partition in partitions:
        number = number_of.setdefault(frozenset(partition.items()), len(places))
        if number == len(places):
            places.append(partition)
        found.append(number)
    return np.array(found, np.int32), places


def _packed(files: Sequence[TableFile]) -> tuple[str, dict[str, pa.Array]]:
    """The root and the columns of files."""
    root, columns = _columns(
        [file.path for file in files],
        [file.url for file in files],
        [file.size_bytes for file in files],
        [file.num_rows for file in files],
        (file.mask for file in files) if any(file.mask for file in files) else None,
    )
    versions = texts(file.version for file in files).cast(pa.large_string())
    columns["version"] = versions.dictionary_encode()
    if any(file.crc32 is not None for file in files):
        columns["crc32"] = numbers(-1 if file.crc32 is None else file.crc32 for file in files)
    return root, columns


def _columns(
    paths: Sequence[str],
    urls: Sequence[str],
    size_bytes: Sequence[int],
    num_rows: Sequence[int],
    masks: Iterable[RowMask | None] | None,
) -> tuple[str, dict[str, pa.Array]]:
    """The root and the columns of files without versions."""
    root = urls[0].removesuffix(paths[0]) if paths else ""
    columns = {
        "path": texts(paths),
        "size_bytes": narrow(numbers(size_bytes)),
        "num_rows": narrow(numbers(num_rows)),
        "version": texts([""] * len(paths)).cast(pa.large_string()).dictionary_encode(),
    }
    if any(url != f"{root}{path}" for url, path in zip(urls, paths, strict=True)):
        columns["url"] = texts(urls)
    if masks is not None:
        columns["mask"] = texts(mask.to_json(root) if mask else "" for mask in masks)
    return root, columns


def _fields(row: Mapping[str, Any], root: str) -> dict[str, Any]:
    """The fields of a file, of the values in its columns."""
    path, crc32 = text_of(row["path"]), row.get("crc32", -1)
    return {
        **{name: row[name] for name in ("size_bytes", "num_rows", "version")},
        "path": path,
        "url": text_of(row["url"]) if "url" in row else f"{root}{path}",
        "crc32": None if crc32 < 0 else crc32,
        "mask": RowMask.from_json(text_of(mask), root) if (mask := row.get("mask")) else None,
    }


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A table at one version.

    Attributes:
        url: The URL of the table.
        version: The Delta version, the id of the Iceberg snapshot, or None for plain Parquet.
        schema: The schema of the whole table, slot groups included. A file may lack some of its
            slots.
        data_files: The data files, sorted by path.
        spec_hash: The spec hash of the newest extraction, or None if unknown.
        meanings: What slot numbers mean, as of `CommitMetadata`, by the newest commits.
        group_versions: The versions of slot groups that this version references, by name.
        groups: These slot groups, opened. Empty if they were not opened.
        rules: What the table demands of writers.
        reads_stale: Whether columns of stale slot groups are read as missing, in place of an error.
        schema_id: The id, in an Iceberg table, of the schema whose columns and names `schema` has.
    """

    url: str = field(repr=False)
    version: int | None
    schema: SlotSchema
    data_files: FileList
    spec_hash: str | None = None
    meanings: Mapping[str, str] = field(default_factory=dict, repr=False)
    group_versions: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    rules: TableRules = field(default_factory=TableRules)
    reads_stale: bool = False
    schema_id: int | None = None

    @cached_property
    def digest(self) -> str:
        """A hex digest that two snapshots share exactly if they hold the same files (path, size,
        rows, mask), those of slot groups included.
        """
        files = self.data_files
        of_groups = [
            lines(f"{name}\t", g.files.columns["path"], "\t", g.files.columns["size_bytes"], "\n")
            for name, g in files.groups.items()
            if len(g.files)  # A group that is wholly stale has none.
        ]
        if not of_groups:
            return files.digest
        return sha256_of(pa.concat_arrays(of_groups), before=f"{files.digest}\n")

    @cached_property
    def histories(self) -> tuple[StoredHistory, ...]:
        """The table's histories, of which a file may lack some. DataFileError as `histories_of`."""
        return histories_of(self.schema)

    @property
    def all_slots(self) -> tuple[Slot, ...]:
        """The slots, then those of histories."""
        return (*self.schema, *(slot for history in self.histories for slot in history.slots))

    @property
    def num_rows(self) -> int:
        """The number of rows of all files, without deleted ones."""
        return int(self.data_files.rows_left.sum())

    @property
    def size_bytes(self) -> int:
        """The bytes of all files, those of slot groups included."""
        return int(self.data_files.total_bytes.sum())

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The distinct partitions that hold files, in path order."""
        files = self.data_files
        return tuple(files.places[place] for place in dict.fromkeys(files.place.tolist()))

    def in_partitions(self, partitions: Iterable[Partition]) -> FileList:
        """The data files of the given partitions."""
        return self.data_files.in_partitions(partitions)


def require_plain_files(snapshot: Snapshot, what: str) -> None:
    """Checks that whoever reads the data files by themselves, with columns by name, finds the
    table's rows.

    Args:
        snapshot: The table.
        what: What does, for the error.

    Raises:
        InputError: Rows are deleted by row masks, or files hold columns under other names.
    """
    columns = snapshot.schema.to_arrow(nullable=True)
    found = ["row masks, whose deleted rows would return"] if snapshot.data_files.has_masks else []
    if any(FieldId.of(column) is not None for column in columns):
        found.append("columns that files hold under other names or by ids")
    if found:
        raise InputError(
            f"{redact(snapshot.url)}: {what}: expected data files that say by themselves which "
            f"rows and columns the table has, found {' and '.join(found)}; read it with "
            f"to_arrow(), or with an engine that knows the table's format"
        )


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


def files_digest(files: Iterable[DataFile]) -> str:
    """The sha256, in hex, over the sorted lines `path, size, rows`, tab-separated, each with the
    file's mask if it has one. Files of slot groups are not part of it.
    """
    return (files if isinstance(files, FileList) else FileList.of(files)).digest
