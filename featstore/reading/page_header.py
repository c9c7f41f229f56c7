"""What the header of a page says of its size and checksum: Parquet's PageHeader in Thrift's compact
protocol.

The kernels read headers themselves (`_native/pages.h`); this is for machines without a compiler, and
what tests compare the kernels with.
"""

import os
from dataclasses import dataclass

from featstore.parquet.thrift import I32, Reader

_LIKELY_BYTES, _MOST_BYTES = 4 << 10, 256 << 10
_TYPE, _UNCOMPRESSED_SIZE, _SIZE, _CRC = 1, 2, 3, 4  # fields of the PageHeader
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
            return _page_header(Reader(os.pread(file, min(most, end - first), first)))
        except (LookupError, ValueError):
            continue
    return None


def _page_header(reader: Reader) -> PageHeader:
    """LookupError or ValueError for what is no whole header."""
    found: dict[int, int] = {}
    number = 0
    while (field := reader.field(number)) is not None:
        type_, number = field
        if number <= _CRC and type_ == I32:
            found[number] = reader.zigzag()
        else:
            reader.skip(type_)
    sizes = [found.get(field, -1) for field in (_TYPE, _UNCOMPRESSED_SIZE, _SIZE)]
    if not all(0 <= size <= _MOST for size in sizes):
        raise ValueError
    crc = found.get(_CRC)
    crc = None if crc is None else crc & 0xFFFFFFFF  # stored as a signed number
    return PageHeader(num_bytes=reader.at, size_bytes=sizes[-1], crc=crc)
