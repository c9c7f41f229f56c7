"""Page headers: the size, number of values and checksum of a page, from Parquet's PageHeader struct
in Thrift's compact protocol, in Python.
"""

from featstore.native.bounds import PageHeader, ReadAt
from featstore.native.format import I32, STRUCT
from tests.native.oracles.thrift import ThriftReader

_MAX_BYTES = 256 << 10  # of a header
_TYPE, _UNCOMPRESSED_SIZE, _SIZE, _CRC = 1, 2, 3, 4  # fields of the PageHeader
_DATA_STRUCTS = {0: 5, 3: 8}  # the field that describes a page, by its type: V1 and V2 data pages
_NUM_VALUES = 1  # of each of them
_MAX_SIZE_BYTES = 2**31 - 1


def read_page_header(read_at: ReadAt, first: int, end: int) -> PageHeader | None:
    """Reads a page header.

    Args:
        read_at: Reads bytes of the file.
        first: The byte at which the header begins.
        end: The byte at which the column chunk ends.

    Returns:
        The header, or None if there is no valid one.
    """
    return page_header(read_at(min(_MAX_BYTES, end - first), first))


def page_header(data: bytes) -> PageHeader | None:
    """The header with which these bytes begin, or None if there is no valid one."""
    try:
        return _page_header(ThriftReader(data))
    except (LookupError, ValueError):
        return None


def _page_header(reader: ThriftReader) -> PageHeader:
    """Parses a header. LookupError or ValueError if it is incomplete or invalid."""
    values, levels = dict[int, int](), dict[int, int]()
    number = 0
    while (field := reader.field(number)) is not None:
        type_, number = field
        if number <= _CRC and type_ == I32:
            values[number] = reader.zigzag()
        elif number in _DATA_STRUCTS.values() and type_ == STRUCT:
            levels[number] = _num_values(reader)
        else:
            reader.skip(type_)
    sizes = [values.get(field, -1) for field in (_TYPE, _UNCOMPRESSED_SIZE, _SIZE)]
    if not all(0 <= size <= _MAX_SIZE_BYTES for size in sizes):
        raise ValueError
    crc = values.get(_CRC)
    crc = None if crc is None else crc & 0xFFFFFFFF  # stored as a signed number
    page_type, raw_bytes, size_bytes = sizes
    return PageHeader(
        num_bytes=reader.position,
        size_bytes=size_bytes,
        raw_bytes=raw_bytes,
        num_levels=levels.get(_DATA_STRUCTS.get(page_type, 0), 0),
        crc=crc,
    )


def _num_values(reader: ThriftReader) -> int:
    """Reads the struct that describes a data page, and returns its number of values."""
    num_values = number = 0
    while (field := reader.field(number)) is not None:
        type_, number = field
        if number == _NUM_VALUES and type_ == I32:
            num_values = reader.zigzag()
        else:
            reader.skip(type_)
    return num_values
