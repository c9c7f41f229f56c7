"""Thrift's compact protocol, in which Parquet's page headers and footers are encoded, in Python."""

from featstore.native.format import (
    BINARY,
    DOUBLE,
    FALSE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    SET,
    STRUCT,
    TRUE,
)

_MAX_DEPTH = 16  # Footers nest less deep; damaged bytes could nest without end.
_FIELD_NUMBERS = range(-(2**15), 2**15)
_WORD = 2**64 - 1


class ThriftReader:
    """Reads values in order. Methods raise LookupError or ValueError for incomplete or invalid
    values.

    Attributes:
        position: The index of the next byte.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0

    def byte(self) -> int:
        """Reads a byte."""
        self.position += 1
        return self._data[self.position - 1]

    def varint(self) -> int:
        """Reads an unsigned integer: 7 bits per byte, the lowest first, the top bit set in all
        bytes but the last.
        """
        value = 0
        for shift in range(0, 64, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _WORD
        raise ValueError

    def zigzag(self) -> int:
        """Reads a signed integer, stored as 0, -1, 1, -2, ... counted from 0."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def field(self, before: int) -> tuple[int, int] | None:
        """Reads a field's head: its type and number; None at the end of the struct.

        Args:
            before: The number of the preceding field of the struct, 0 for the first.
        """
        byte = self.byte()
        # The high four bits are the difference to the preceding number, or 0 if the number follows.
        if not byte & 0xF:
            return None
        number = before + (byte >> 4) if byte >> 4 else self.zigzag()
        if number not in _FIELD_NUMBERS:
            raise ValueError
        return byte & 0xF, number

    def list_head(self) -> tuple[int, int]:
        """Reads a list's head: the type and the number of its elements."""
        byte = self.byte()
        return byte & 0xF, (self.varint() if byte >> 4 == 15 else byte >> 4)

    def skip(self, type_: int, depth: int = 0) -> None:
        """Skips a value."""
        if depth > _MAX_DEPTH:
            raise ValueError
        if type_ in (I16, I32, I64):
            self.varint()
        elif type_ in (LIST, SET):
            self._skip_list(depth + 1)
        elif type_ == STRUCT:
            self._skip_struct(depth + 1)
        elif type_ not in (TRUE, FALSE):
            self.skip_bytes({I8: 1, DOUBLE: 8}[type_] if type_ != BINARY else self.varint())

    def skip_bytes(self, num_bytes: int) -> None:
        """Skips bytes."""
        if num_bytes > len(self._data) - self.position:
            raise IndexError
        self.position += num_bytes

    def _skip_struct(self, depth: int) -> None:
        number = 0
        while (field := self.field(number)) is not None:
            number = field[1]
            self.skip(field[0], depth)

    def _skip_list(self, depth: int) -> None:
        type_, count = self.list_head()
        for _ in range(count):
            if type_ in (TRUE, FALSE, 0):
                self.byte()
            else:
                self.skip(type_, depth)
