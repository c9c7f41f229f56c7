"""Finds selected columns in a Parquet file."""

import logging
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from featstore.base.errors import DataFileError, not_once
from featstore.base.processes import cached_property
from featstore.base.schema import ROLE, FieldId, Role, Slot, SlotKind, slot_number
from featstore.native.column_types import is_list, is_of_kind
from featstore.native.file_schema import FileSchema
from featstore.reading.field_ids import column_of_id

_LOG = logging.getLogger(__name__)
# A reader has at most two selections, and the files of a table seldom more than two schemas.
_MAX_CACHED = 4


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The columns to read.

    Attributes:
        slots: Found in a file by field id if they have one, or else by number, or else by name.
        others: Other columns, found by field id if they have one, or else by name.
    """

    slots: tuple[Slot, ...] = ()
    others: tuple[pa.Field, ...] = ()

    def without(self, other: "Selection") -> "Selection":
        """The columns that are not in `other`."""
        slots, others = {slot.name for slot in other.slots}, {field.name for field in other.others}
        return Selection(
            slots=tuple(slot for slot in self.slots if slot.name not in slots),
            others=tuple(field for field in self.others if field.name not in others),
        )


class FileLeaf(NamedTuple):
    """A leaf column of a file: its number, its path, and the column to which it belongs."""

    place: int
    path: str
    column: str


@dataclass(frozen=True, kw_only=True)
class FileColumns:
    """The columns of one file that a selection reads.

    Attributes:
        slots: For each selected slot, the name of the file's column; None: the file has none.
        others: The same for other columns.
        leaves: The leaf columns to read, in the file's order.
    """

    slots: Mapping[str, str | None]
    others: Mapping[str, str | None]
    leaves: tuple[FileLeaf, ...]

    @cached_property
    def leaf_places(self) -> tuple[int, ...]:
        """The numbers of all leaf columns that are read, in the file's order."""
        return tuple(leaf.place for leaf in self.leaves)

    @cached_property
    def plans(self) -> dict[tuple[str, ...], Any]:
        """How readers decode some of these columns, by their names: made once for all files that
        share this object.
        """
        return {}

    @cached_property
    def leaves_read(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """For each selected column that the file has, and each of its leaf columns: the name under
        which it is selected, and the leaf's number.
        """
        found = [
            (name, place)
            for name, column in {**self.slots, **self.others}.items()
            if column is not None
            for place in self.places[column]
        ]
        return tuple(name for name, _ in found), tuple(place for _, place in found)

    @cached_property
    def places(self) -> Mapping[str, tuple[int, ...]]:
        """For each column that is read, in the file's order, the numbers of its leaf columns."""
        columns = groupby(self.leaves, key=attrgetter("column"))
        return {name: tuple(leaf.place for leaf in leaves) for name, leaves in columns}


class ColumnCache:
    """Caches the last results of `find_columns`. Most files of a table have the same schema, so a
    selection is resolved once instead of once per file. Not thread-safe.
    """

    def __init__(self) -> None:
        self._cached: deque[tuple[Selection, FileSchema, FileColumns]] = deque(maxlen=_MAX_CACHED)
        self._asked, self._has_found = dict[str, None](), False

    def of(self, file_schema: FileSchema, selection: Selection, file_name: str) -> FileColumns:
        """Like `find_columns`. Selections and schemas are compared by identity: files with the same
        schema share one object.
        """
        for known, known_schema, columns in self._cached:
            if known is selection and file_schema is known_schema:
                return columns
        columns = find_columns(file_schema, selection, file_name)
        self._cached.append((selection, file_schema, columns))
        self.note(selection, has_found=bool(columns.leaves))
        return columns

    def note(self, selection: Selection, *, has_found: bool) -> None:
        """Notes for `warn_if_none` whether a file had any of the selected columns."""
        self._asked |= dict.fromkeys(each.name for each in (*selection.slots, *selection.others))
        self._has_found |= has_found

    def warn_if_none(self, where: str) -> None:
        """Warns if no file had any of the columns that were asked for, so that every value of them
        is missing: the table's schema names columns that its files do not have.

        Args:
            where: The table.
        """
        if self._asked and not self._has_found:
            _LOG.warning(
                "%s: none of the selected columns (%s) is in any file that was read: all their "
                "values are missing; were they renamed? compare the table's schema with the "
                "columns of its files",
                where,
                ", ".join(self._asked),
            )


def find_columns(file_schema: FileSchema, selection: Selection, file_name: str) -> FileColumns:
    """Finds the selected columns in a file of this schema, see `Selection`.

    Raises:
        DataFileError: A column has a type that cannot be read as what was selected, two columns
            have the same name, slot number or field id, or a file has no field ids where a column
            has no name without one.
    """
    by_number = _by_number(file_schema, {slot.number for slot in selection.slots}, file_name)
    slots = {
        slot.name: _slot_column(file_schema, slot, by_number.get(slot.number), file_name)
        for slot in selection.slots
    }
    others = {
        field.name: _other_column(file_schema, field, file_name) for field in selection.others
    }
    wanted = {name for name in (*slots.values(), *others.values()) if name is not None}
    chosen = sorted(file_schema.by_name[name][0] for name in wanted)
    leaves = tuple(
        FileLeaf(place, file_schema.leaves[place].path, file_schema.roots[i].name)
        for i in chosen
        for place in file_schema.roots[i].leaves
    )
    return FileColumns(slots=slots, others=others, leaves=leaves)


def _by_number(
    file_schema: FileSchema, numbers: Collection[int | None], file_name: str
) -> dict[int | None, pa.Field]:
    """The slot columns with these numbers. Few of a file's columns have one of them, so the number
    is looked at first: parsing the rest of a column's metadata takes longer.
    """
    wanted = dict[int | None, pa.Field]()
    for column in file_schema.schema:
        number = slot_number(column)
        if number is None or number not in numbers or Slot.from_field(column) is None:
            continue
        if number in wanted:
            raise DataFileError(
                f"{file_name}: expected one column of slot number {number}, found "
                f"{wanted[number].name!r} and {column.name!r}; write the file again without one of "
                "them"
            )
        wanted[number] = column
    return wanted


def _slot_column(
    file_schema: FileSchema, slot: Slot, numbered: pa.Field | None, file_name: str
) -> str | None:
    if slot.field_id is not None:
        field = column_of_id(file_schema, slot.field_id, slot.to_field(nullable=True), file_name)
    else:
        field = _field(file_schema, slot.name if numbered is None else numbered.name, file_name)
    if field is None or pa.types.is_null(field.type):
        return None
    found = Slot.from_field(field)
    has_numbers = found is not None and None not in (found.number, slot.number)
    if found is not None and has_numbers and found.number != slot.number:
        return None
    if not _is_without_values(field.type, slot) and (
        found is None or not _fits(found, field, slot)
    ):
        raise DataFileError(
            f"{file_name}: column {field.name!r}: expected {slot.arrow_type()}, found {field.type}"
        )
    return str(field.name)


def _other_column(file_schema: FileSchema, expected: pa.Field, file_name: str) -> str | None:
    if (field_id := FieldId.of(expected)) is not None:
        field = column_of_id(file_schema, field_id, expected, file_name)
    else:
        field = _field(file_schema, expected.name, file_name)
    if field is None or pa.types.is_null(field.type):
        return None
    # A slot that was renamed since must not be read as the column that took its name.
    is_slot = field_id is None and (field.metadata or {}).get(ROLE) == Role.SLOT.encode()
    if is_slot and slot_number(field) != slot_number(expected):
        return None
    if not is_of_kind(field.type, expected.type):
        raise DataFileError(
            f"{file_name}: column {field.name!r}: expected {expected.type}, found {field.type}"
        )
    return str(field.name)


def _field(file_schema: FileSchema, name: str, file_name: str) -> pa.Field | None:
    """The column of this name; None: there is none. DataFileError if there are several."""
    found = file_schema.by_name.get(name, ())
    if len(found) > 1:
        raise DataFileError(f"{file_name}: {not_once(name, len(found))}")
    return file_schema.schema.field(found[0]) if found else None


def _is_without_values(type_: pa.DataType, slot: Slot) -> bool:
    """Whether the type is of lists without a value: of a file in which all are empty, or null."""
    return bool(slot.shape and is_list(type_) and pa.types.is_null(type_.value_type))


def _fits(found: Slot, field: pa.Field, expected: Slot) -> bool:
    """Whether values of the found kind and shape can be delivered in the expected ones."""
    value = field.type.value_type if is_list(field.type) else field.type
    # Other engines widen these integers to `double`.
    is_short = value in (pa.int8(), pa.int16(), pa.int32())
    is_widened = expected.kind is SlotKind.FLOAT and is_short
    if found.kind is not expected.kind and not is_widened:
        return False
    if not found.shape or not expected.shape:
        return found.shape == expected.shape
    return expected.is_list or found.is_list or found.width == expected.width
