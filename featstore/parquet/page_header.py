"""What the header of a page says of its size, its values and its checksum: Parquet's PageHeader in
Thrift's compact protocol.

The kernels read headers themselves (`_native/pages.h`); this is for machines without a compiler,
for files that are read in place, and what tests compare the kernels with.
"""

from collections.abc import Callable
from dataclasses import dataclass

from featstore.parquet.thrift import I32, STRUCT, Reader

ReadAt = Callable[[int, int], bytes]  # so many bytes, from this byte of the file on

_LIKELY_BYTES, _MOST_BYTES = 4 << 10, 256 << 10
_TYPE, _UNCOMPRESSED_SIZE, _SIZE, _CRC = 1, 2, 3, 4  # fields of the PageHeader
_DATA_STRUCTS = {0: 5, 3: 8}  # the field that describes a page, by its type: V1 and V2 data pages
_NUM_VALUES = 1  # of each of them
_MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PageHeader:
    """`num_bytes` of the header, `size_bytes` of the page behind it as it is stored, and their
    `crc`, None where the header has none. `raw_bytes` of the page as decompressed; `num_levels`
    that a page of data claims, 0 of any other."""

    num_bytes: int
    size_bytes: int
    raw_bytes: int
    num_levels: int
    crc: int | None


def read_page_header(read_at: ReadAt, first: int, end: int) -> PageHeader | None:
    """The header that begins at byte `first` of a file and ends before byte `end`, None where there
    is none."""
    for most in (_LIKELY_BYTES, _MOST_BYTES):
        try:
            return _page_header(Reader(read_at(min(most, end - first), first)))
        except (LookupError, ValueError):
            continue
    return None


def _page_header(reader: Reader) -> PageHeader:
    """LookupError or ValueError for what is no whole header."""
    found, levels = dict[int, int](), dict[int, int]()
    number = 0
    while (field := reader.field(number)) is not None:
        type_, number = field
        if number <= _CRC and type_ == I32:
            found[number] = reader.zigzag()
        elif number in _DATA_STRUCTS.values() and type_ == STRUCT:
            levels[number] = _num_values(reader)
        else:
            reader.skip(type_)
    sizes = [found.get(field, -1) for field in (_TYPE, _UNCOMPRESSED_SIZE, _SIZE)]
    if not all(0 <= size <= _MOST for size in sizes):
        raise ValueError
    crc = found.get(_CRC)
    crc = None if crc is None else crc & 0xFFFFFFFF  # stored as a signed number
    page_type, raw_bytes, size_bytes = sizes
    return PageHeader(
        num_bytes=reader.at,
        size_bytes=size_bytes,
        raw_bytes=raw_bytes,
        num_levels=levels.get(_DATA_STRUCTS.get(page_type, 0), 0),
        crc=crc,
    )


def _num_values(reader: Reader) -> int:
    """What the struct of a data page says of its levels; passes over the rest of it."""
    found = number = 0
    while (field := reader.field(number)) is not None:
        type_, number = field
        if number == _NUM_VALUES and type_ == I32:
            found = reader.zigzag()
        else:
            reader.skip(type_)
    return found
