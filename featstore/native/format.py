"""A description of Parquet's footer: its structs and fields, and what is kept of each; and the walk
that it drives.

It follows `parquet.thrift` of https://github.com/apache/parquet-format. The tests' walk in Python
is driven by it, too. The result of a walk is tables of int64, with a row for the file, each schema
element, row group, column chunk, key-value pair and column order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from featstore.native import kernels

# The types of fields in Thrift's compact protocol, as it numbers them
# (github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
MAX_ITEMS = 1_000_000  # of a list; Arrow has the same bound
# By the numbers that the kernel gives them.
ERRORS = {
    1: "expected a value of Thrift's compact protocol, found none that is complete",
    2: "expected the field's type in the format, found another",
    3: "expected fields in the order of their numbers, found one early or twice",
    4: "expected every field that the format requires, found one missing",
    5: f"expected a list of at most {MAX_ITEMS:,} elements, found more",
}
ABSENT = -(2**63)  # in slots of fields that a footer lacks
Numbers = npt.NDArray[np.int64]


class Keep(IntEnum):
    """What is kept of a field, in one or more slots that begin with the field's name."""

    NOTHING = 0
    VALUE = 1
    LENGTH = 2  # of a binary
    SPAN = 3  # of a binary: first byte and end
    COUNT = 4  # of a list
    MASK = 5  # of a list of numbers: a bit for each, or -1 if one is not in 0 to 62
    END = 6  # of a struct
    ROWS = 7  # of a list of structs: first byte, end, the row of the first, and their number


_SLOTS = {
    Keep.NOTHING: (),
    Keep.SPAN: ("", ".end"),
    Keep.ROWS: ("", ".end", ".first", ".count"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field of the format.

    Attributes:
        type: Its Thrift type.
        keep: What is kept of its value.
        name: The name of its slot; empty if nothing is kept.
        struct: The struct that it holds, or of which it holds a list.
        item_type: The Thrift type of a list's elements.
        is_required: Whether the format requires it.
    """

    type: int
    keep: Keep = Keep.NOTHING
    name: str = ""
    struct: "Struct | None" = None
    item_type: int = 0
    is_required: bool = False

    @property
    def slots(self) -> list[str]:
        return [self.name + part for part in _SLOTS.get(self.keep, ("",))]


@dataclass(frozen=True, kw_only=True, eq=False)
class Struct:
    """A struct of the format.

    Attributes:
        table: The table whose rows it writes.
        opens_row: Whether it writes a row of its own, or that of the struct around it.
        cut: If not 0: the slot `cut` holds the byte at which the first field with this number or a
            higher one begins, or the stop of the struct.
        fields: The fields by number.
    """

    table: int
    opens_row: bool = False
    cut: int = 0
    fields: Mapping[int, Field] = field(default_factory=dict)

    @property
    def slots(self) -> list[str]:
        """The names of the slots that the struct, and those within its row, write."""
        names = ["begin", "end"] if self.opens_row else []
        names += ["cut"] if self.cut else []
        for one in self.fields.values():
            names += one.slots if one.keep else []
            if one.type == STRUCT and one.struct is not None:
                names += one.struct.slots
        return names


def _number(type_: int, name: str = "", *, required: bool = False) -> Field:
    keep = Keep.VALUE if name else Keep.NOTHING
    return Field(type=type_, keep=keep, name=name, is_required=required)


def _rows(name: str, struct: Struct, *, required: bool = False) -> Field:
    return Field(
        type=LIST,
        keep=Keep.ROWS,
        name=name,
        struct=struct,
        item_type=STRUCT,
        is_required=required,
    )


def _binary(keep: Keep, name: str, *, required: bool = False) -> Field:
    return Field(type=BINARY, keep=keep, name=name, is_required=required)


def _list(item_type: int, keep: Keep = Keep.NOTHING, name: str = "") -> Field:
    return Field(type=LIST, keep=keep, name=name, item_type=item_type)


FILE, ELEMENTS, ROW_GROUPS, CHUNKS, KEY_VALUES, ORDERS = range(6)

_STATISTICS = Struct(
    table=CHUNKS,
    fields={
        1: _binary(Keep.LENGTH, "old_max"),
        2: _binary(Keep.LENGTH, "old_min"),
        3: _number(I64, "num_nulls"),
        4: _number(I64, "num_distinct"),
        5: _binary(Keep.LENGTH, "max"),
        6: _binary(Keep.LENGTH, "min"),
        7: _number(TRUE),
        8: _number(TRUE),
    },
)
_SIZE_STATISTICS = Struct(
    table=CHUNKS,
    fields={
        1: _number(I64, "text_bytes"),
        2: _list(I64, Keep.COUNT, "num_repetition_counts"),
        3: _list(I64, Keep.COUNT, "num_definition_counts"),
    },
)
_COLUMN = Struct(
    table=CHUNKS,
    cut=12,
    fields={
        1: _number(I32, "type", required=True),
        2: Field(type=LIST, keep=Keep.MASK, name="encodings", item_type=I32, is_required=True),
        3: Field(type=LIST, item_type=BINARY, is_required=True),
        4: _number(I32, "codec", required=True),
        5: _number(I64, "num_values", required=True),
        6: _number(I64, "raw_bytes", required=True),
        7: _number(I64, "stored_bytes", required=True),
        8: _list(STRUCT),
        9: _number(I64, "data_page", required=True),
        10: _number(I64, "index_page"),
        11: _number(I64, "dictionary_page"),
        12: Field(type=STRUCT, keep=Keep.END, name="statistics_end", struct=_STATISTICS),
        13: _list(STRUCT),
        14: _number(I64),
        15: _number(I32),
        16: Field(type=STRUCT, struct=_SIZE_STATISTICS),
        17: Field(type=STRUCT),
    },
)
_CHUNK = Struct(
    table=CHUNKS,
    opens_row=True,
    fields={
        1: _binary(Keep.LENGTH, "file_path"),
        2: _number(I64, required=True),
        3: Field(type=STRUCT, keep=Keep.END, name="column_end", struct=_COLUMN),
        4: _number(I64),
        5: _number(I32),
        6: _number(I64),
        7: _number(I32),
        8: Field(type=STRUCT, keep=Keep.END, name="encryption"),
        9: _binary(Keep.LENGTH, "encrypted_bytes"),
    },
)
_ROW_GROUP = Struct(
    table=ROW_GROUPS,
    opens_row=True,
    fields={
        1: _rows("columns", _CHUNK, required=True),
        2: _number(I64, "raw_bytes", required=True),
        3: _number(I64, "num_rows", required=True),
        4: _list(STRUCT),
        5: _number(I64),
        6: _number(I64),
        7: _number(I16),
    },
)
_ELEMENT = Struct(
    table=ELEMENTS,
    opens_row=True,
    fields={
        1: _number(I32, "type"),
        2: _number(I32, "type_length"),
        3: _number(I32, "repetition"),
        4: _binary(Keep.SPAN, "name", required=True),
        5: _number(I32, "num_children"),
        6: _number(I32, "converted"),
        7: _number(I32, "scale"),
        8: _number(I32, "precision"),
        9: _number(I32),
        10: Field(type=STRUCT),
    },
)
_KEY_VALUE = Struct(
    table=KEY_VALUES,
    opens_row=True,
    fields={1: _binary(Keep.SPAN, "key", required=True), 2: _binary(Keep.SPAN, "value")},
)
_ORDER = Struct(table=ORDERS, opens_row=True)
_FILE = Struct(
    table=FILE,
    opens_row=True,
    fields={
        1: _number(I32, "version", required=True),
        2: _rows("elements", _ELEMENT, required=True),
        3: _number(I64, "num_rows", required=True),
        4: _rows("row_groups", _ROW_GROUP, required=True),
        5: _rows("key_values", _KEY_VALUE),
        6: _binary(Keep.SPAN, "created_by"),
        7: _rows("orders", _ORDER),
        8: Field(type=STRUCT, keep=Keep.END, name="encryption"),
        9: _binary(Keep.LENGTH, "signing_key"),
    },
)
# The file first, and each struct before those inside it, so that no struct can contain itself.
STRUCTS = (
    _FILE,
    _ELEMENT,
    _ROW_GROUP,
    _KEY_VALUE,
    _ORDER,
    _CHUNK,
    _COLUMN,
    _STATISTICS,
    _SIZE_STATISTICS,
)
# For each table: the index of each slot by name.
SLOTS = tuple(
    {name: slot for slot, name in enumerate(one.slots)}
    for one in sorted((one for one in STRUCTS if one.opens_row), key=lambda one: one.table)
)


def _struct_numbers(struct: Struct, first_field: int) -> list[int]:
    """A struct's row of the plan, as `native/footer.h` reads it."""
    required = sum(1 << number for number, one in struct.fields.items() if one.is_required)
    cut_slot = SLOTS[struct.table]["cut"] if struct.cut else 0
    last = max(struct.fields, default=0)
    return [struct.table, struct.opens_row, first_field, last, required, struct.cut, cut_slot]


def _field_numbers(struct: Struct, number: int) -> list[int]:
    one = struct.fields.get(number)
    if one is None:
        return [0, 0, 0, -1, 0]
    slot = SLOTS[struct.table][one.slots[0]] if one.keep else 0
    index = -1 if one.struct is None else STRUCTS.index(one.struct)
    return [one.type, one.keep, slot, index, one.item_type]


def _plan() -> tuple[Numbers, Numbers, Numbers]:
    structs, fields = list[list[int]](), list[list[int]]()
    for struct in STRUCTS:
        structs.append(_struct_numbers(struct, len(fields)))
        fields += [_field_numbers(struct, i + 1) for i in range(max(struct.fields, default=0))]
    widths = [len(slots) for slots in SLOTS]
    return np.array(widths, np.int64), np.array(structs, np.int64), np.array(fields, np.int64)


# The description as numbers, as the kernels read it: the widths of the tables, the structs, and the
# fields.
PLAN = _plan()

_WIDTHS: list[int] = PLAN[0].tolist()


class FooterError(ValueError):
    """A footer is invalid. The message says what was expected and found, without the file's
    name.
    """


def walk(footer: bytes) -> tuple[Numbers, ...]:
    """Walks a footer.

    Returns:
        The rows of each table, int64 (num_rows, num_slots), in the order of `SLOTS`.

    Raises:
        FooterError: The bytes are not a footer.
    """
    error, position, *tables = kernels.walk_footer(footer, *PLAN)
    if error:
        raise FooterError(f"byte {position} of the footer: {ERRORS[error]}")
    return tuple(
        [
            np.frombuffer(table, np.int64).reshape(-1, width)
            for table, width in zip(tables, _WIDTHS, strict=True)
        ]
    )
