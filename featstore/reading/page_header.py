"""What the header of a page says of its size and checksum: Parquet's PageHeader in Thrift's compact
protocol.

The kernels read headers themselves (`_native/pages.h`); this is for machines without a compiler, and
what tests compare the kernels with.
"""

import os
from dataclasses import dataclass

_LIKELY_BYTES, _MOST_BYTES = 4 << 10, 256 << 10
_TYPE, _UNCOMPRESSED_SIZE, _SIZE, _CRC = 1, 2, 3, 4  # fields of the PageHeader
_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAX_DEPTH = 16
_MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PageHeader:
    """`num_bytes` of the header, `size_bytes` of the page behind it as it is stored, and their `crc`,
    None where the header has none."""

    num_bytes: int
    size_bytes: int
    crc: int | None


def read_page_header(file: int, first: int, end: int) -> PageHeader | None:
    """The header that begins at byte `first` of an open file and ends before byte `end`, None where
    there is none."""
    for most in (_LIKELY_BYTES, _MOST_BYTES):
        try:
            return _Reader(os.pread(file, min(most, end - first), first)).page_header()
        except (LookupError, ValueError):
            continue
    return None


class _Reader:
    """Reads values one after the other. LookupError or ValueError for what is no whole header."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def page_header(self) -> PageHeader:
        found: dict[int, int] = {}
        number = 0
        while (field := self._field(number)) is not None:
            type_, number = field
            if number <= _CRC and type_ == _I32:
                found[number] = self._zigzag()
            else:
                self._skip(type_, 0)
        sizes = [found.get(field, -1) for field in (_TYPE, _UNCOMPRESSED_SIZE, _SIZE)]
        if not all(0 <= size <= _MOST for size in sizes):
            raise ValueError
        crc = found.get(_CRC)
        crc = None if crc is None else crc & 0xFFFFFFFF  # stored as a signed number
        return PageHeader(num_bytes=self._at, size_bytes=sizes[-1], crc=crc)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _field(self, before: int) -> tuple[int, int] | None:
        """The next field's type and number, None at the end of its struct."""
        byte = self._byte()
        if not byte & 0xF:
            return None
        return byte & 0xF, (before + (byte >> 4) if byte >> 4 else self._zigzag())

    def _skip(self, type_: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError
        if type_ in (_I16, _I32, _I64):
            self._varint()
        elif type_ in (_LIST, _SET):
            self._skip_list(depth + 1)
        elif type_ == _STRUCT:
            number = 0
            while (field := self._field(number)) is not None:
                number = field[1]
                self._skip(field[0], depth + 1)
        elif type_ not in (_TRUE, _FALSE):
            self._pass({_I8: 1, _DOUBLE: 8}[type_] if type_ != _BINARY else self._varint())

    def _skip_list(self, depth: int) -> None:
        byte = self._byte()
        count, type_ = byte >> 4, byte & 0xF
        for _ in range(self._varint() if count == 15 else count):
            if type_ <= _FALSE:
                self._byte()
            else:
                self._skip(type_, depth)

    def _pass(self, num_bytes: int) -> None:
        if num_bytes > len(self._data) - self._at:
            raise IndexError
        self._at += num_bytes
