"""Where the columns that a job selects are in one Parquet file."""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from featstore.errors import DataFileError, not_once
from featstore.parquet.file_schema import FileSchema
from featstore.schema import FIELD_ID, ROLE, SLOT, Role, Slot

_MAX_CACHED = 4  # A reader has at most two selections, and a table seldom more than two schemas.


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The columns that a job reads: slots, found by number and then by name, and other columns,
    found by name.
    """

    slots: tuple[Slot, ...] = ()
    others: tuple[pa.Field, ...] = ()

    def without(self, other: "Selection") -> "Selection":
        """The columns that another selection does not have."""
        slots, others = {slot.name for slot in other.slots}, {field.name for field in other.others}
        return Selection(
            slots=tuple(slot for slot in self.slots if slot.name not in slots),
            others=tuple(field for field in self.others if field.name not in others),
        )


@dataclass(frozen=True, kw_only=True)
class FileColumns:
    """A selection in one file: for each selected name the file's column, or None where the file has
    none.

    `places`: the numbers of the leaf columns below each column of the file that is read.
    """

    slots: Mapping[str, str | None]
    others: Mapping[str, str | None]
    leaves: tuple[str, ...]
    places: Mapping[str, range] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The file's columns that are read, in the file's order."""
        return tuple(self.places)

    def column_of(self, leaf: str) -> str:
        """The column that a leaf column is below."""
        leaves = iter(self.leaves)
        return next(
            (name for name, found in self.places.items() if leaf in islice(leaves, len(found))),
            leaf,
        )

    def places_of(self, leaves: Collection[str]) -> list[tuple[int, str]]:
        """The numbers of these leaf columns, and the column that each is below."""
        numbered = ((place, name) for name, places in self.places.items() for place in places)
        wanted = set(leaves)
        return [found for found, leaf in zip(numbered, self.leaves, strict=True) if leaf in wanted]

    def leaves_besides(self, names: Collection[str]) -> list[str]:
        """The leaf columns but those below columns of these names."""
        leaves = iter(self.leaves)
        return [
            leaf
            for name, found in self.places.items()
            for leaf in islice(leaves, len(found))
            if name not in names
        ]


class ColumnCache:
    """The last results of `find_columns`. The files of a table mostly share one schema, so the same
    selection is looked for once and not in each file. Not thread-safe.
    """

    def __init__(self) -> None:
        self._cached: deque[tuple[Selection, FileSchema, FileColumns]] = deque(maxlen=_MAX_CACHED)

    def of(self, file_schema: FileSchema, selection: Selection, file_name: str) -> FileColumns:
        """As `find_columns`. A selection is recognized by its identity, and so is a schema, which
        files that have it share.
        """
        for known, known_schema, columns in self._cached:
            if known is selection and file_schema is known_schema:
                return columns
        columns = find_columns(file_schema, selection, file_name)
        self._cached.append((selection, file_schema, columns))
        return columns


def find_columns(file_schema: FileSchema, selection: Selection, file_name: str) -> FileColumns:
    """Finds the selected columns in a file of this schema: slots by number and then by name, other
    columns by name.

    Raises:
        DataFileError: A column has a type that cannot be what was selected, or two columns have its
            name or its number, so that nothing says which of them is meant.
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
    places = {file_schema.roots[place].name: file_schema.roots[place].leaves for place in chosen}
    leaves = tuple(file_schema.leaves[i].path for found in places.values() for i in found)
    return FileColumns(slots=slots, others=others, leaves=leaves, places=places)


def _by_number(
    file_schema: FileSchema, numbers: Collection[int | None], file_name: str
) -> dict[int | None, pa.Field]:
    """The slot columns of these numbers. Few of a file's columns are among them, so a column's
    number is looked at before the rest of its description, which takes longer.
    """
    wanted = dict[int | None, pa.Field]()
    for column in file_schema.schema:
        number = _slot_number(column)
        if number is None or number not in numbers or Slot.from_field(column) is None:
            continue
        if number in wanted:
            raise DataFileError(
                f"{file_name}: expected one column of slot number {number}, found "
                f"{wanted[number].name!r} and {column.name!r}; write the file anew without one of "
                "them"
            )
        wanted[number] = column
    return wanted


def _slot_column(
    file_schema: FileSchema, slot: Slot, numbered: pa.Field | None, file_name: str
) -> str | None:
    field = _field(file_schema, slot.name if numbered is None else numbered.name, file_name)
    if field is None or pa.types.is_null(field.type):
        return None
    found = Slot.from_field(field)
    has_numbers = found is not None and None not in (found.number, slot.number)
    if found is not None and has_numbers and found.number != slot.number:
        return None
    if found is None or found.kind is not slot.kind or not _fits(found, slot):
        raise DataFileError(
            f"{file_name}: column {field.name!r}: expected {slot.arrow_type()}, found {field.type}"
        )
    return str(field.name)


def _other_column(file_schema: FileSchema, expected: pa.Field, file_name: str) -> str | None:
    field = _field(file_schema, expected.name, file_name)
    if field is None or pa.types.is_null(field.type) or _is_slot(field):
        return None
    if field.type != expected.type and not (_is_number(field.type) and _is_number(expected.type)):
        raise DataFileError(
            f"{file_name}: column {field.name!r}: expected {expected.type}, found {field.type}"
        )
    return str(field.name)


def _field(file_schema: FileSchema, name: str, file_name: str) -> pa.Field | None:
    """The column of this name, None where there is none."""
    found = file_schema.by_name.get(name, ())
    if len(found) > 1:
        raise DataFileError(f"{file_name}: {not_once(name, len(found))}")
    return file_schema.schema.field(found[0]) if found else None


def _fits(found: Slot, expected: Slot) -> bool:
    """Whether values of the found shape can be delivered in the expected one."""
    if not found.shape or not expected.shape:
        return found.shape == expected.shape
    return expected.is_list or found.is_list or found.width == expected.width


def _slot_number(field: pa.Field) -> int | None:
    metadata = field.metadata or {}
    number = metadata.get(SLOT, metadata.get(FIELD_ID) if ROLE in metadata else None)
    return None if number is None else int(number)


def _is_slot(field: pa.Field) -> bool:
    """Whether the file says so: a slot that has since been renamed is not the label or kept column
    that took its name.
    """
    return (field.metadata or {}).get(ROLE) == Role.SLOT.encode()


def _is_number(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_kind(type_) for is_kind in kinds)
