"""Slots and their columns: the only mapping between a slot and an Arrow type.

An Arrow field describes a slot's column: its type gives kind and shape, its metadata slot number
and operator. The same fields are written to data files (`required`, no nulls) and to the table's
schema (nullable).
"""

import enum
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from featstore.base.errors import SelectionError, nearest
from featstore.base.processes import cached_property

# Keys of a field's metadata. They are part of the file format.
ROLE = b"featstore.role"
SLOT = b"featstore.slot"
KIND = b"featstore.kind"
SHAPE = b"featstore.shape"
OPERATOR = b"featstore.op"
OPERATOR_PATH = b"featstore.op_path"
MEANING = b"featstore.meaning"
NUM_INDICES = b"featstore.num_indices"
SHARE_SLOT = b"featstore.share_slot"
TRUNCATE = b"featstore.truncate"
HISTORY = b"featstore.history"  # of a column with ranges: how the history is stored
SEQUENCE = b"featstore.sequence"
FIELD_ID = b"PARQUET:field_id"  # of a column in a data file
BY_ID = b"featstore.by_id"  # only in memory: of a column that is found in data files by its id
# Delta's key: the name that data files have for a column, or for a member of a struct.
STORED_NAME = b"delta.columnMapping.physicalName"
# Only in memory: some files of a directory hold the column with values of another kind.
OF_TWO_KINDS = b"featstore.of_two_kinds"


class SlotKind(enum.StrEnum):
    """The values of a slot: `id` is int64 (a sign or an index, 0 if missing), `float` is float32
    (NaN if missing).
    """

    ID = "id"
    FLOAT = "float"


class Role(enum.StrEnum):
    """The role of a column. All roles share one namespace of column names in a table. Columns of
    histories are in data files only.
    """

    SLOT = "slot"
    LABEL = "label"
    WEIGHT = "weight"
    KEPT = "kept"
    PARTITION = "partition"
    HISTORY = "history"


@dataclass(frozen=True, kw_only=True)
class FieldId:
    """How data files hold a column of a table whose columns have permanent ids. Its text is JSON.

    Attributes:
        number: The id; None if names alone count, whatever ids files have.
        names: The names of the column in files that have no ids at all. Such files cannot be read
            if it has none.
        default: The value in files without the column, as text that Arrow casts to the column's
            type; None for null.
    """

    number: int | None = None
    names: tuple[str, ...] = ()
    default: str | None = None

    def __str__(self) -> str:
        return json.dumps([self.number, self.names, self.default])

    @classmethod
    def parse(cls, text: str) -> "FieldId":
        """That of which this is the text."""
        number, names, default = json.loads(text)
        return cls(number=number, names=tuple(names), default=default)

    @classmethod
    def of(cls, field: pa.Field) -> "FieldId | None":
        """That of a column of a table, by its metadata."""
        text = (field.metadata or {}).get(BY_ID)
        return None if text is None else cls.parse(text.decode())


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A named feature column with a permanent number.

    Attributes:
        name: The column's name.
        kind: Ids or floats.
        shape: The shape of one row: `()` for a scalar, `(width,)` for a fixed width, `(None,)` for
            a list.
        number: The permanent slot number. None in a file that featstore did not write.
        op: The operator's name. None in a file that featstore did not write.
        num_indices: Set if the slot holds indices in `[0, num_indices)` instead of signs; 0 is
            missing there too.
        share_slot: The number of another slot whose signs this one uses.
        op_path: The expression of operators from the raw columns to the slot. None in files of
            earlier versions.
        meaning: The first 16 hex digits of the slot's hash in the spec's lock file. None in files
            of earlier versions.
        truncate: Which end of longer lists the spec keeps, `head` or `tail`. None if it cuts none.
        sequence: The sequence of whose events the lists have an element each, with the slices of it
            that were taken: `clicks`, `clicks[-5:]`. None if there is none, and in files of earlier
            versions.
        field_id: Set if data files hold the column under a permanent id.

    Raises:
        ValueError: The shape has more than one dimension, or a width below 1.
    """

    name: str
    kind: SlotKind
    shape: tuple[int | None, ...] = ()
    number: int | None = None
    op: str | None = None
    num_indices: int | None = None
    share_slot: int | None = None
    op_path: str | None = None
    meaning: str | None = None
    truncate: str | None = None
    sequence: str | None = None
    field_id: FieldId | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > 1 or any(width is not None and width < 1 for width in self.shape):
            raise ValueError(
                f"slot {self.name!r}: expected shape (), (width,) or (None,), found {self.shape}"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached field, which is larger than the slot.
        return {name: value for name, value in vars(self).items() if name != "_field"}

    @property
    def is_list(self) -> bool:
        """Whether rows are lists of variable length."""
        return self.shape == (None,)

    @property
    def width(self) -> int | None:
        """Values per row of a fixed-width slot, else None."""
        return self.shape[0] if self.shape else None

    @property
    def shape_text(self) -> str:
        """`scalar`, `list` or the width: the text in metadata and in what users see."""
        return "scalar" if not self.shape else "list" if self.is_list else str(self.width)

    @property
    def is_declared(self) -> bool:
        """Whether a spec declared the slot, and featstore extracted it. Columns of other writers,
        of imports and of joins were not.
        """
        return self.number is not None

    @property
    def has_marks(self) -> bool:
        """Whether `missing` stands for missing values in data files. It does in declared slots, and
        NaN does in all. In other columns of ids 0 and `[0]` are values, and only null is missing.
        """
        return self.is_declared or self.kind is SlotKind.FLOAT

    @property
    def holds_signs(self) -> bool:
        """Whether values are signs, which are hashes, and not indices or plain numbers."""
        return self.kind is SlotKind.ID and self.is_declared and self.num_indices is None

    @property
    def missing(self) -> int | float:
        """The mark of a missing value: 0 for ids, NaN for floats.

        A missing list has the mark as its single element.
        """
        return 0 if self.kind is SlotKind.ID else math.nan

    @property
    def absent(self) -> int | float:
        """The value in files without the column: the mark of a missing one unless the table has a
        default.
        """
        if self.field_id is None or self.field_id.default is None:
            return self.missing
        value: int | float = pa.scalar(self.field_id.default).cast(self.arrow_type()).as_py()
        return value

    @property
    def comment(self) -> str:
        """What the column is and which value is missing, for readers of other engines."""
        mark = "0" if self.kind is SlotKind.ID else "NaN"
        shown = (
            "null"
            if not self.has_marks
            else mark
            if not self.shape
            else f"[{mark}]"
            if self.is_list
            else f"{self.width} times {mark}"
        )
        number = "slot" if self.number is None else f"slot {self.number}"
        return f"{number}, {self.kind}, {self.shape_text}; missing is {shown}"

    def arrow_type(self, *, nullable: bool = False) -> pa.DataType:
        """The column's Arrow type.

        Args:
            nullable: Whether list elements may be null.
        """
        value = pa.int64() if self.kind is SlotKind.ID else pa.float32()
        if not self.shape:
            return value
        element = pa.field("element", value, nullable=nullable)
        return pa.list_(element) if self.width is None else pa.list_(element, self.width)

    def to_field(self, *, nullable: bool = False) -> pa.Field:
        """The Arrow field of the slot's column, with slot metadata.

        Args:
            nullable: False for a `required` field, as in data files; True for a nullable one, as in
                the table's schema.
        """
        if nullable:
            return self._field.with_type(self.arrow_type(nullable=True)).with_nullable(True)
        return self._field

    # Schemas of thousands of slots are converted for every file.
    @cached_property
    def _field(self) -> pa.Field:
        metadata = {
            ROLE: Role.SLOT.encode(),
            KIND: self.kind.encode(),
            SHAPE: self.shape_text.encode(),
        }
        if self.number is not None:
            metadata[SLOT] = str(self.number).encode()
        metadata |= {
            key: str(value).encode()
            for name, (key, _) in _OPTIONS.items()
            if (value := getattr(self, name)) is not None
        }
        return pa.field(self.name, self.arrow_type(), nullable=False, metadata=metadata)

    @classmethod
    def from_field(cls, field: pa.Field) -> "Slot | None":
        """The slot that a field describes.

        Fields of files that featstore did not write are judged by their type alone: integers and
        booleans are ids, floating point numbers are floats, and lists of either are lists.

        Returns:
            The slot, or None if no slot can have the field's type.
        """
        metadata = field.metadata or {}
        value, shape = _value_and_shape(field.type)
        if SHAPE in metadata and (text := metadata[SHAPE].decode()).isdecimal():
            shape = (int(text),)
        kind = _kind(value)
        if kind is None:
            return None
        options = {
            name: type_(metadata[key].decode())
            for name, (key, type_) in _OPTIONS.items()
            if key in metadata
        }
        number = slot_number(field)
        return cls(name=field.name, kind=kind, shape=shape, number=number, **options)


# What a column's metadata says of its slot besides kind, shape and number: key and type by field.
_OPTIONS: Mapping[str, tuple[bytes, Callable[[str], Any]]] = {
    "op": (OPERATOR, str),
    "op_path": (OPERATOR_PATH, str),
    "meaning": (MEANING, str),
    "num_indices": (NUM_INDICES, int),
    "share_slot": (SHARE_SLOT, int),
    "truncate": (TRUNCATE, str),
    "sequence": (SEQUENCE, str),
    "field_id": (BY_ID, FieldId.parse),
}


def slot_number(field: pa.Field) -> int | None:
    """The slot number that a column's metadata says, if any."""
    metadata = field.metadata or {}
    number = metadata.get(SLOT)
    if number is None and metadata.get(ROLE) == Role.SLOT.encode():
        number = metadata.get(FIELD_ID)
    return None if number is None else int(number)


def without_places(columns: pa.Schema) -> pa.Schema:
    """The columns without what says where data files of a table hold them: other files that are
    written of their rows have their names.
    """
    return pa.schema([_without_place(column) for column in columns])


def _without_place(column: pa.Field) -> pa.Field:
    type_, metadata = column.type, column.metadata or {}
    if pa.types.is_struct(type_):
        type_ = pa.struct(map(_without_place, type_))
    elif pa.types.is_map(type_):
        type_ = pa.map_(_without_place(type_.key_field), _without_place(type_.item_field))
    elif pa.types.is_list(type_):
        type_ = pa.list_(_without_place(type_.value_field))
    left = {key: text for key, text in metadata.items() if key not in (BY_ID, STORED_NAME)}
    return column.with_type(type_).with_metadata(left or None)


def stored_name(member: pa.Field) -> str:
    """The name that data files have for a member of a struct."""
    stored = (member.metadata or {}).get(STORED_NAME)
    return str(member.name if stored is None else stored.decode())


def _value_and_shape(type_: pa.DataType) -> tuple[pa.DataType, tuple[int | None, ...]]:
    if pa.types.is_fixed_size_list(type_):
        return type_.value_type, (type_.list_size,)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return type_.value_type, (None,)
    return type_, ()


def _kind(value: pa.DataType) -> SlotKind | None:
    if pa.types.is_integer(value) or pa.types.is_boolean(value):
        return SlotKind.ID
    return SlotKind.FLOAT if pa.types.is_floating(value) else None


@dataclass(frozen=True, kw_only=True)
class SlotSchema:
    """The columns of a table by role. Iterating yields the slots.

    Attributes:
        slots: The slots in declared order, which is also their order in data files.
        labels: Label columns.
        weight: The column of sample weights, or None.
        kept: Raw columns that are carried through unchanged.
        partition_keys: Partition columns, which data files do not hold.
        foreign: The columns of other writers by name, as they declared them. They are among the
            slots if slots can have their type, and among the kept columns otherwise.
    """

    slots: tuple[Slot, ...] = ()
    labels: tuple[pa.Field, ...] = ()
    weight: pa.Field | None = None
    kept: tuple[pa.Field, ...] = ()
    partition_keys: tuple[pa.Field, ...] = ()
    foreign: Mapping[str, pa.Field] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def _by_name(self) -> Mapping[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    def __getitem__(self, name: str) -> Slot:
        """The slot of that name.

        Raises:
            SelectionError: There is none. The message suggests the nearest names.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise SelectionError(
                f"no slot {name!r} in the table{nearest(name, self._by_name)}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    @property
    def names(self) -> tuple[str, ...]:
        """The slots' names, in declared order."""
        return tuple(self._by_name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of all columns of data files, in their order."""
        return (*(slot.name for slot in self.slots), *(column.name for column in self.others))

    @cached_property
    def others(self) -> tuple[pa.Field, ...]:
        """The fields of labels, weight and kept columns, in the order of data files."""
        fields = [_with_role(column, Role.LABEL) for column in self.labels]
        fields += [_with_role(self.weight, Role.WEIGHT)] if self.weight is not None else []
        return (*fields, *(_with_role(column, Role.KEPT) for column in self.kept))

    def only(self, names: Collection[str]) -> "SlotSchema":
        """The schema of the slots and other columns with these names, and the partition keys."""
        return replace(
            self,
            slots=tuple(slot for slot in self.slots if slot.name in names),
            labels=tuple(column for column in self.labels if column.name in names),
            weight=self.weight if self.weight is not None and self.weight.name in names else None,
            kept=tuple(column for column in self.kept if column.name in names),
        )

    def to_arrow(self, *, nullable: bool = False, partition_keys: bool = False) -> pa.Schema:
        """The Arrow schema: slots, labels, weight, kept columns, and optionally partition keys.

        Args:
            nullable: Whether slots are nullable. They are in the table's schema, and not in data
                files.
            partition_keys: Whether to append the partition keys, as in the table's schema.
        """
        fields = [*(slot.to_field(nullable=nullable) for slot in self.slots), *self.others]
        if partition_keys:
            fields += [_with_role(column, Role.PARTITION) for column in self.partition_keys]
        return pa.schema(fields)

    @classmethod
    def from_arrow(cls, schema: pa.Schema, partition_keys: Iterable[str] = ()) -> "SlotSchema":
        """The schema that Arrow fields describe.

        Args:
            schema: Fields with the role in their metadata. A field without one is a slot if a slot
                can have its type, else a kept column.
            partition_keys: Names of the columns that are partition keys.
        """
        keys = set(partition_keys)
        roles = [(_role(column, keys), column) for column in schema]
        by_role = {role: tuple(c for r, c in roles if r is role) for role in Role}
        slots = tuple(
            slot for column in by_role[Role.SLOT] if (slot := Slot.from_field(column)) is not None
        )
        return cls(
            slots=slots,
            labels=by_role[Role.LABEL],
            weight=next(iter(by_role[Role.WEIGHT]), None),
            kept=by_role[Role.KEPT],
            partition_keys=by_role[Role.PARTITION],
            foreign={
                column.name: column
                for role, column in roles
                if role is not Role.PARTITION and ROLE not in (column.metadata or {})
            },
        )

    @cached_property
    def seen(self) -> "SlotSchema":
        """A copy with the columns as predicates see them, everywhere: slots without marks, and
        doubles of other writers, are kept columns with the values of the files, integers and
        booleans as int64. Tensors have such doubles as float32.
        """
        doubles = {name for name, column in self.foreign.items() if column.type == pa.float64()}
        plain = {
            slot.name: slot.to_field(nullable=True)
            for slot in self.slots
            if not slot.has_marks or slot.name in doubles
        }
        columns = (c.with_type(pa.float64()) if c.name in doubles else c for c in plain.values())
        return replace(
            self,
            slots=tuple(slot for slot in self.slots if slot.name not in plain),
            kept=(*self.kept, *columns),
        )

    def with_foreign_kept(self) -> "SlotSchema":
        """A copy in which columns of other writers are kept columns of the types that these
        declared, for files whose values are to stay as they are.
        """
        return replace(
            self,
            slots=tuple(slot for slot in self.slots if slot.name not in self.foreign),
            kept=(
                *(c for c in self.kept if c.name not in self.foreign),
                *self.foreign.values(),
            ),
        )


def _with_role(column: pa.Field, role: Role) -> pa.Field:
    metadata = column.metadata or {}
    own = {key: text for key, text in metadata.items() if key in (BY_ID, HISTORY)}
    return column.with_nullable(True).with_metadata({ROLE: role.encode(), **own})


def _role(column: pa.Field, partition_keys: set[str]) -> Role:
    if column.name in partition_keys:
        return Role.PARTITION
    declared = (column.metadata or {}).get(ROLE)
    if declared is not None:
        return Role(declared.decode())
    return Role.SLOT if Slot.from_field(column) is not None else Role.KEPT
