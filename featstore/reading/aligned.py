"""Reads a data file and its slot groups' files, which have the same rows in the same row groups, as
one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from featstore.base.errors import DataFileError
from featstore.reading.buffers import Array, num_chosen
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import Take
from featstore.reading.reader import RowGroupReader, Rows


def aligned_reader(
    file: OpenFile,
    groups: Sequence[OpenFile],
    selection: Selection,
    *,
    num_threads: int | None = None,
    as_values: bool = False,
    most_room_bytes: int | None = None,
    take: Take | None = None,
) -> "RowsReader":
    """A reader that takes each selected column from the last of `groups` that has it, or else from
    the base file.

    Args:
        file: The data file. The caller closes it, and the next ones.
        groups: The files of its slot groups.
        selection: The columns to read.
        num_threads: As of `RowGroupReader`.
        as_values: As of `RowGroupReader`.
        most_room_bytes: As of `RowGroupReader`.
        take: As of `RowGroupReader`.

    Raises:
        DataFileError: A group's file has other row groups than the data file, or a column cannot be
            what was selected.
    """
    make = partial(
        RowGroupReader,
        num_threads=num_threads,
        as_values=as_values,
        most_room_bytes=most_room_bytes,
        take=take,
    )
    return AlignedReader(file, groups, selection, make) if groups else make(file, selection)


class AlignedReader:
    """Reads several open files with the same rows; made by `aligned_reader`."""

    def __init__(
        self,
        file: OpenFile,
        groups: Sequence[OpenFile],
        selection: Selection,
        make: Callable[[OpenFile, Selection], RowGroupReader],
    ) -> None:
        self._file = file
        self._readers: list[RowGroupReader] = []
        for group in reversed(groups):
            _require_same_cuts(file, group)
            found = group.resolve(selection)
            mine = Selection(
                slots=tuple(slot for slot in selection.slots if found.slots[slot.name] is not None),
                others=tuple(
                    field for field in selection.others if found.others[field.name] is not None
                ),
            )
            selection = selection.without(mine)
            self._readers.append(make(group, mine))
        self._readers.append(make(file, selection))
        self.columns = _merged(
            [_renamed(reader.columns, i) for i, reader in enumerate(self._readers)]
        )

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]:
        """The files that are read, each with the columns that are read from it; the data file is
        last.
        """
        return [part for reader in self._readers for part in reader.parts]

    def read(self, row_groups: Iterable[int], chosen: Array | None = None) -> Rows:
        """The rows of these row groups with the columns of all files, as of `RowGroupReader`."""
        row_groups = list(row_groups)
        parts = [
            (i, reader.read(row_groups, chosen))
            for i, reader in enumerate(self._readers)
            if reader.columns.leaves
        ]
        columns = {
            f"{i}/{name}": part.table.column(name)
            for i, part in parts
            for name in part.table.column_names
        }
        num_rows = sum(self._file.row_group_rows[index] for index in row_groups)
        return Rows(
            file_name=self._file.name,
            num_rows=num_rows if chosen is None else num_chosen(chosen),
            arrow=pa.table(columns),
            columns=self.columns,
        )

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """None: several files cannot be read in slices."""
        return None

    def size_bytes(self, row_groups: Iterable[int]) -> int:
        """As of `RowGroupReader`."""
        row_groups = list(row_groups)
        return sum(reader.size_bytes(row_groups) for reader in self._readers)

    def room_bytes(self, row_groups: Iterable[int], *, in_order: bool = False) -> int:
        """As of `RowGroupReader`: the maximum, since the files are read one after the other."""
        row_groups = list(row_groups)
        return max(reader.room_bytes(row_groups, in_order=in_order) for reader in self._readers)


RowsReader: TypeAlias = RowGroupReader | AlignedReader


def _require_same_cuts(base: OpenFile, group: OpenFile) -> None:
    if base.row_group_rows != group.row_group_rows:
        raise DataFileError(
            f"{group.name}: expected the {len(base.row_group_rows)} row groups of {base.name} "
            f"({base.num_rows} rows), found {len(group.row_group_rows)} ({group.num_rows} rows); "
            "write the slot group of this partition again"
        )


def _renamed(columns: FileColumns, i: int) -> FileColumns:
    """The columns under names that are unique among the files."""

    def name(found: str | None) -> str | None:
        return None if found is None else f"{i}/{found}"

    return FileColumns(
        slots={key: name(found) for key, found in columns.slots.items()},
        others={key: name(found) for key, found in columns.others.items()},
        leaves=columns.leaves,
    )


def _merged(parts: Sequence[FileColumns]) -> FileColumns:
    return FileColumns(
        slots={key: found for part in parts for key, found in part.slots.items()},
        others={key: found for part in parts for key, found in part.others.items()},
        leaves=tuple(leaf for part in parts for leaf in part.leaves),
    )
