"""The walk through a footer in Python: the same rows as by the kernel, or the same error at the same
byte.
"""

from collections.abc import Sequence

import numpy as np

from featstore.native.format import (
    ABSENT,
    BINARY,
    ERRORS,
    FALSE,
    I8,
    I16,
    I32,
    LIST,
    MAX_ITEMS,
    SLOTS,
    STRUCT,
    STRUCTS,
    TRUE,
    Field,
    FooterError,
    Keep,
    Numbers,
    Struct,
)
from tests.native.oracles.thrift import ThriftReader

_MALFORMED, _OTHER_TYPE, _OTHER_ORDER, _MISSING, _TOO_MANY = range(1, 6)
_BITS = {I16: 16, I32: 32}


def walk_in_python(footer: bytes) -> tuple[Numbers, ...]:
    """As `walk`, without the kernels."""
    return _Walk(footer).tables()


def _error(error: int, position: int) -> FooterError:
    return FooterError(f"byte {position} of the footer: {ERRORS[error]}")


class _WalkError(Exception):
    """Ends a walk. Its argument is a key of `ERRORS`."""


class _Walk:
    """One walk. `_position` is the byte of the field that is read, for errors."""

    def __init__(self, footer: bytes) -> None:
        self._reader, self._position = ThriftReader(footer), 0
        self._rows: list[list[list[int]]] = [[] for _ in SLOTS]

    def tables(self) -> tuple[Numbers, ...]:
        try:
            self._struct(STRUCTS[0], [])
        except _WalkError as error:
            raise _error(error.args[0], self._position) from None
        except (LookupError, ValueError):
            raise _error(_MALFORMED, self._position) from None
        return tuple(
            np.array(rows, np.int64).reshape(-1, len(slots))
            for rows, slots in zip(self._rows, SLOTS, strict=True)
        )

    def _struct(self, struct: Struct, row: list[int]) -> None:
        """Reads a struct, into `row`, that of the struct around it, or into a new row."""
        begin, slots, reader = self._reader.position, SLOTS[struct.table], self._reader
        if struct.opens_row:
            row = [ABSENT] * len(slots)
            self._rows[struct.table].append(row)
        seen, before, cut = set[int](), 0, ABSENT
        while (field := self._field(before)) is not None:
            type_, number = field
            cut = self._position if cut == ABSENT and struct.cut and number >= struct.cut else cut
            # Readers differ in which of two equal fields they take, and a cut relies on the order.
            if number <= before:
                raise _WalkError(_OTHER_ORDER)
            known = struct.fields.get(number)
            if known is None or not (known.is_required or _is_of(known, type_)):
                reader.skip(type_)
            else:
                self._value(known, type_, row, slots)
            seen.add(number)
            before = number
        if any(one.is_required and number not in seen for number, one in struct.fields.items()):
            raise _WalkError(_MISSING)
        if struct.cut:
            row[slots["cut"]] = self._position if cut == ABSENT else cut
        if struct.opens_row:
            row[:2] = begin, reader.position

    def _field(self, before: int) -> tuple[int, int] | None:
        self._position = self._reader.position
        return self._reader.field(before)

    def _value(self, field: Field, type_: int, row: list[int], slots: dict[str, int]) -> None:
        if not _is_of(field, type_):
            raise _WalkError(_OTHER_TYPE)
        kept = self._kept(field, row) if field.type != TRUE else [int(type_ == TRUE)]
        if field.keep:
            first = slots[field.slots[0]]
            row[first : first + len(field.slots)] = kept

    def _kept(self, field: Field, row: list[int]) -> Sequence[int]:
        """Reads a field's value, and returns what its slots hold."""
        if field.type == LIST:
            return self._list(field)
        if field.type == BINARY:
            length = self._reader.varint()
            begin = self._reader.position
            self._reader.skip_bytes(length)
            return (begin, self._reader.position) if field.keep == Keep.SPAN else (length,)
        if field.type == STRUCT:
            return self._nested(field, row)
        return (self._number(field.type),)

    def _nested(self, field: Field, row: list[int]) -> Sequence[int]:
        if field.struct is not None:
            self._struct(field.struct, row)
        else:
            self._reader.skip(STRUCT)
        return (self._reader.position,)

    def _list(self, field: Field) -> Sequence[int]:
        begin = self._reader.position
        type_, count = self._reader.list_head()
        if count > MAX_ITEMS:
            raise _WalkError(_TOO_MANY)
        if count and type_ != field.item_type:
            raise _WalkError(_OTHER_TYPE)
        first = 0 if field.struct is None else len(self._rows[field.struct.table])
        numbers = [self._item(field) for _ in range(count)]
        if field.keep == Keep.ROWS:
            return begin, self._reader.position, first, count
        return (_mask(numbers),) if field.keep == Keep.MASK else (count,)

    def _item(self, field: Field) -> int:
        if field.struct is not None:
            self._struct(field.struct, [])
        elif field.keep == Keep.MASK:
            return self._number(field.item_type)
        else:
            self._reader.skip(field.item_type)
        return 0

    def _number(self, type_: int) -> int:
        if type_ == I8:
            byte = self._reader.byte()
            return byte - 256 if byte > 127 else byte
        value = self._reader.zigzag()
        bits = _BITS.get(type_, 64)
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError
        return value


def _is_of(field: Field, type_: int) -> bool:
    """Whether a field has its type in the format. Of an optional field with another type readers
    that Thrift generates take no notice.
    """
    # In Thrift's compact protocol a boolean's type is its value.
    return (TRUE if type_ == FALSE else type_) == field.type


def _mask(numbers: Sequence[int]) -> int:
    mask = 0
    for number in numbers:
        if not 0 <= number <= 62:
            return -1
        mask |= 1 << number
    return mask
