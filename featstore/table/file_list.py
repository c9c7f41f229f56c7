"""The data files of a snapshot in columns, since millions of objects would take a gigabyte."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from featstore.base.errors import DataFileError
from featstore.table.snapshot import DataFile, GroupFile, TableFile

_UNKNOWN = -1
_MAX_DIGITS = 18  # of a number that is certain to fit 64 bits


class Place(NamedTuple):
    """What files of one directory have in common.

    Attributes:
        root: The URL of a file without its path.
        directory: The path of a file without its name.
        partition: The values of the partition keys.
    """

    root: str
    directory: str
    partition: Mapping[str, str | None]


class FileList(Sequence[DataFile]):
    """Data files, sorted by path. Immutable; an item is made when it is asked for.

    A file takes the bytes of its name and 32 more, and 8 for its CRC-32 if one of them is known.
    Files whose URL does not end in their path, and versions that are not numbers, take more.

    Args:
        files: The files, sorted by path.

    Raises:
        DataFileError: They are not sorted, or two have the same path.
    """

    def __init__(self, files: Iterable[DataFile] = ()) -> None:
        self._rows = _TableFiles()
        self._groups: dict[str, _GroupFiles] = {}
        before = ""
        for index, file in enumerate(files):
            if index and file.path <= before:
                raise DataFileError(
                    f"{file.path!r}: expected files in the order of their paths, found it after "
                    f"{before!r}"
                )
            before = file.path
            self._rows.add(file, file.partition)
            for group_file in file.groups:
                self._groups.setdefault(group_file.group, _GroupFiles()).add(index, group_file)
        self._rows.shrink()
        for rows in self._groups.values():
            rows.files.shrink()

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> DataFile: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DataFile, ...]: ...
    def __getitem__(self, index: int | slice) -> DataFile | tuple[DataFile, ...]:
        if isinstance(index, slice):
            return tuple(self._file(row) for row in range(*index.indices(len(self))))
        return self._file(range(len(self))[index])

    def __iter__(self) -> Iterator[DataFile]:
        return map(self._file, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Whether the other one is a sequence of the same files."""
        if not isinstance(other, FileList | tuple):
            return NotImplemented
        return len(self) == len(other) and all(
            one == another for one, another in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FileList({len(self)} files)"

    @property
    def places(self) -> Sequence[Place]:
        """The directories, in the order of their first file."""
        return self._rows.places

    @property
    def groups(self) -> frozenset[str]:
        """The slot groups of which it has files."""
        return frozenset(self._groups)

    def place(self, index: int) -> int:
        """The place of a file, as an index of `places`."""
        return self._rows.place_of[index]

    def path(self, index: int) -> str:
        """The path of a file."""
        return self._rows.path(index)

    def num_rows(self, index: int) -> int:
        """The number of rows of a file."""
        return self._rows.num_rows[index]

    def find(self, path: str) -> int:
        """The index of the file with this path. KeyError if there is none."""
        index = bisect_left(range(len(self)), path, key=self.path)
        if index == len(self) or self.path(index) != path:
            raise KeyError(path)
        return index

    def _file(self, index: int) -> DataFile:
        groups: tuple[GroupFile, ...] = ()
        if self._groups:
            found = (rows.file(name, index) for name, rows in sorted(self._groups.items()))
            groups = tuple(file for file in found if file is not None)
        rows = self._rows
        return DataFile(
            path=rows.path(index),
            url=rows.url(index),
            size_bytes=rows.size_bytes[index],
            num_rows=rows.num_rows[index],
            version=rows.version(index),
            crc32=rows.crc32(index),
            partition=rows.places[rows.place_of[index]].partition,
            groups=groups,
        )


class _TableFiles:
    """Table files as columns.

    Attributes:
        places: The directories.
        place_of: The place of each file.
        size_bytes: The size of each file.
        num_rows: The rows of each file.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._known_places: dict[tuple[object, ...], int] = {}
        self.place_of, self.size_bytes, self.num_rows = array("I"), array("q"), array("q")
        # Names in UTF-8, one after the other, and the end of each.
        self._names: bytes | bytearray = bytearray()
        self._ends = array("Q")
        self._versions = array("q")
        # Empty as long as no CRC-32 is known.
        self._crc32s = array("q")
        self._odd_versions: dict[int, str] = {}
        self._odd_urls: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.size_bytes)

    def add(self, file: TableFile, partition: Mapping[str, str | None]) -> None:
        directory, slash, name = file.path.rpartition("/")
        is_plain = file.url.endswith(file.path)
        root = file.url[: len(file.url) - len(file.path)] if is_plain else ""
        if not is_plain:
            self._odd_urls[len(self)] = file.url
        self.place_of.append(self._place(root, f"{directory}{slash}", partition))
        assert isinstance(self._names, bytearray)
        self._names += name.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._names))
        number = _number(file.version)
        if number == _UNKNOWN:
            self._odd_versions[len(self)] = file.version
        self._versions.append(number)
        if file.crc32 is not None or self._crc32s:
            self._crc32s.extend([_UNKNOWN] * (len(self) - len(self._crc32s)))
            self._crc32s.append(_UNKNOWN if file.crc32 is None else file.crc32)
        self.size_bytes.append(file.size_bytes)
        self.num_rows.append(file.num_rows)

    def shrink(self) -> None:
        """Gives back the room for further files."""
        self._names = bytes(self._names)
        self._known_places.clear()
        for name in ("place_of", "size_bytes", "num_rows", "_ends", "_versions", "_crc32s"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, column.tobytes()))

    def path(self, index: int) -> str:
        begin = self._ends[index - 1] if index else 0
        name = self._names[begin : self._ends[index]].decode("utf-8", "surrogateescape")
        return f"{self.places[self.place_of[index]].directory}{name}"

    def url(self, index: int) -> str:
        odd = self._odd_urls.get(index)
        return f"{self.places[self.place_of[index]].root}{self.path(index)}" if odd is None else odd

    def version(self, index: int) -> str:
        number = self._versions[index]
        return self._odd_versions[index] if number == _UNKNOWN else str(number)

    def crc32(self, index: int) -> int | None:
        number = self._crc32s[index] if self._crc32s else _UNKNOWN
        return None if number == _UNKNOWN else number

    def _place(self, root: str, directory: str, partition: Mapping[str, str | None]) -> int:
        key = (root, directory, *partition.items())
        found = self._known_places.setdefault(key, len(self.places))
        if found == len(self.places):
            self.places.append(Place(root, directory, partition))
        return found


def _number(text: str) -> int:
    """The number that is written as this text; `_UNKNOWN` for a text that is no such number."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    number = int(text) if is_number else _UNKNOWN
    return number if str(number) == text and is_number else _UNKNOWN


@dataclass(frozen=True, kw_only=True)
class _GroupFiles:
    """The files of one slot group.

    Attributes:
        files: The files.
        base: The index of the base file of each, ascending.
    """

    files: _TableFiles = field(default_factory=_TableFiles)
    base: "array[int]" = field(default_factory=lambda: array("I"))

    def add(self, index: int, file: GroupFile) -> None:
        self.base.append(index)
        self.files.add(file, {})

    def file(self, name: str, index: int) -> GroupFile | None:
        """The group's file for a base file, if there is one."""
        row = bisect_left(self.base, index)
        if row == len(self.base) or self.base[row] != index:
            return None
        return GroupFile(
            group=name,
            path=self.files.path(row),
            url=self.files.url(row),
            size_bytes=self.files.size_bytes[row],
            num_rows=self.files.num_rows[row],
            version=self.files.version(row),
            crc32=self.files.crc32(row),
        )
