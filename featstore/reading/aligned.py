"""Files with the same rows in the same row groups, read as one: a base data file and its slot
groups' files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from featstore.errors import DataFileError
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader, Rows


class RowsReader(Protocol):
    """Rows of row groups, under the names of a selection."""

    columns: FileColumns

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]: ...

    def read(self, row_groups: Iterable[int]) -> Rows: ...

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None: ...

    def size_bytes(self, row_groups: Iterable[int]) -> int: ...

    def room_bytes(self, row_groups: Iterable[int]) -> int: ...


def aligned_reader(
    file: OpenFile,
    groups: Sequence[OpenFile],
    selection: Selection,
    *,
    use_threads: bool = True,
    as_values: bool = False,
    most_room_bytes: int | None = None,
) -> RowsReader:
    """Reads each selected column from the last of `groups` that has it, else from the base file;
    options as `RowGroupReader`.

    The caller closes the files. DataFileError where a group's file is not cut into row groups as
    the base file is.
    """
    make = partial(
        RowGroupReader,
        use_threads=use_threads,
        as_values=as_values,
        most_room_bytes=most_room_bytes,
    )
    return AlignedReader(file, groups, selection, make) if groups else make(file, selection)


class AlignedReader:
    """Several open files of the same rows; made by `aligned_reader`."""

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
            selection = _without(selection, mine)
            self._readers.append(make(group, mine))
        self._readers.append(make(file, selection))
        self.columns = _united(
            [_renamed(reader.columns, i) for i, reader in enumerate(self._readers)]
        )

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]:
        """Each file that is read, and the columns that are read of it; the base file last."""
        return [part for reader in self._readers for part in reader.parts]

    def read(self, row_groups: Iterable[int]) -> Rows:
        """The rows of these row groups, in order, with the columns of all files."""
        row_groups = list(row_groups)
        parts = [(i, r.read(row_groups)) for i, r in enumerate(self._readers) if r.columns.leaves]
        columns = {
            f"{i}/{name}": part.table.column(name)
            for i, part in parts
            for name in part.table.column_names
        }
        num_rows = sum(self._file.row_group_rows[index] for index in row_groups)
        return Rows(
            file_name=self._file.name,
            num_rows=num_rows,
            table=pa.table(columns),
            columns=self.columns,
        )

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """None: several files are not read slice by slice."""
        return None

    def size_bytes(self, row_groups: Iterable[int]) -> int:
        """As of `RowGroupReader`."""
        row_groups = list(row_groups)
        return sum(reader.size_bytes(row_groups) for reader in self._readers)

    def room_bytes(self, row_groups: Iterable[int]) -> int:
        """As of `RowGroupReader`: files are read one after the other."""
        row_groups = list(row_groups)
        return max(reader.room_bytes(row_groups) for reader in self._readers)


def _require_same_cuts(base: OpenFile, group: OpenFile) -> None:
    if base.row_group_rows != group.row_group_rows:
        raise DataFileError(
            f"{group.name}: expected the {len(base.row_group_rows)} row groups of {base.name} "
            f"({base.num_rows} rows), found {len(group.row_group_rows)} ({group.num_rows} rows); "
            "write the slot group of this partition again"
        )


def _without(selection: Selection, taken: Selection) -> Selection:
    names = {slot.name for slot in taken.slots} | {field.name for field in taken.others}
    return replace(
        selection,
        slots=tuple(slot for slot in selection.slots if slot.name not in names),
        others=tuple(field for field in selection.others if field.name not in names),
    )


def _renamed(columns: FileColumns, i: int) -> FileColumns:
    """Columns under names that no two files share."""

    def name(found: str | None) -> str | None:
        return None if found is None else f"{i}/{found}"

    return FileColumns(
        slots={key: name(found) for key, found in columns.slots.items()},
        others={key: name(found) for key, found in columns.others.items()},
        leaves=columns.leaves,
    )


def _united(parts: Sequence[FileColumns]) -> FileColumns:
    return FileColumns(
        slots={key: found for part in parts for key, found in part.slots.items()},
        others={key: found for part in parts for key, found in part.others.items()},
        leaves=tuple(leaf for part in parts for leaf in part.leaves),
    )
