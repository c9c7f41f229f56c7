"""Thrift's compact protocol, which Parquet's page headers and footers are written in.

The kernels have a reader of their own (`_native/thrift.h`); this one is for machines without a
compiler, and what tests compare the kernels with.
"""

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_MAX_DEPTH = 16
_FIELD_NUMBERS = range(-(2**15), 2**15)
_WORD = 2**64 - 1


class Reader:
    """Reads values one after the other. LookupError or ValueError for what is not there whole."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _WORD
        raise ValueError

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def field(self, before: int) -> tuple[int, int] | None:
        """The next field's type and number, None at the end of its struct."""
        byte = self.byte()
        if not byte & 0xF:
            return None
        number = before + (byte >> 4) if byte >> 4 else self.zigzag()
        if number not in _FIELD_NUMBERS:
            raise ValueError
        return byte & 0xF, number

    def list_head(self) -> tuple[int, int]:
        """The type and the number of a list's elements, which follow."""
        byte = self.byte()
        return byte & 0xF, (self.varint() if byte >> 4 == 15 else byte >> 4)

    def skip(self, type_: int, depth: int = 0) -> None:
        """Passes over a value."""
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
        if num_bytes > len(self._data) - self.at:
            raise IndexError
        self.at += num_bytes

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
