"""Bounds on what the pages of a column chunk may claim: levels and bytes, given the footer's number
of values.

A damaged page of a few bytes can claim two billion levels, or half a gigabyte of decompressed data.
Neither the kernels nor Arrow may spend time or memory on such a claim. The kernels check the bounds
while they decode a page; pages that Arrow decodes are checked before.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from featstore.native import kernels
from featstore.native.footers import CheckedFooter
from featstore.native.format import Numbers

CLAIMS_MORE = (
    "expected pages with no more values, and no more bytes, than the footer's number of values "
    "allows, found pages that claim more; the file is damaged: write it again"
)

# The numbers of a column that the kernels plan and decode, in this order: its leaf column in the
# file, the bytes of a value (0: of texts), its maximum levels, the definition level below which a
# row is null, the missing mark's bits, and whether values are whole numbers; the buffer and the
# byte in which its offsets begin, and its values; and how many values it has.
COLUMN = {
    name: number
    for number, name in enumerate(
        (
            *("leaf", "width", "repetition", "definition", "null_below", "mark", "is_whole"),
            *("offsets_in", "offsets_at", "values_in", "values_at", "found"),
        )
    )
}
# Those of a chunk: first byte, number of bytes, codec, number of values, and the most bytes that a
# page may claim to decompress to.
NUMBERS_OF_CHUNK, _CODEC = 5, 2
_HEADER_BYTES = 1 << 20  # the longest page header that is read of a local file
# A header is mostly tens of bytes, but may contain statistics of any length. Of a file that is read
# in place the second size is tried only if the header does not end within the first.
_LIKELY_BYTES, _MAX_BYTES = 4 << 10, 256 << 10
_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "BOOLEAN": 1, "INT96": 12}
_ANY_CODEC, _TEXT = 0, 0  # a number that any codec has here, and a width that no number has

ReadAt = Callable[[int, int], bytes]  # (number of bytes, first byte of the file) -> these bytes


class PageHeader(NamedTuple):
    """The header of a page.

    Attributes:
        num_bytes: The length of the header.
        size_bytes: The stored size of the page that follows.
        raw_bytes: The decompressed size of the page.
        num_levels: The number of levels that a data page claims; 0 for other pages.
        crc: The CRC-32 of the stored bytes; None if the header has none.
    """

    num_bytes: int
    size_bytes: int
    raw_bytes: int
    num_levels: int
    crc: int | None


def first_beyond(
    footer: CheckedFooter,
    row_group: int,
    leaves: Sequence[int],
    file: int | ReadAt,
    stop: bytes | bytearray = b"\0",
) -> int | None:
    """Checks the page headers of column chunks before Arrow reads them.

    Args:
        footer: The file's footer.
        row_group: The row group to read.
        leaves: The indices of the leaf columns to read.
        file: The descriptor of a local file, or a function that reads another one.
        stop: One byte. The check ends early once it is not 0.

    Returns:
        The first leaf column whose pages claim more levels than the footer states, or more bytes
        than its values can need; None if there is none. An invalid page is left for its reader to
        report.
    """
    chunks = _bounds(footer, row_group, leaves)
    if isinstance(file, int):
        buffer = pa.allocate_buffer(_HEADER_BYTES)
        index = kernels.first_beyond(file, chunks, stop, buffer) if len(chunks) else -1
    else:
        beyond = (i for i, chunk in enumerate(chunks.tolist()) if not _is_within(file, chunk, stop))
        index = next(beyond, -1)
    return None if index < 0 else leaves[index]


def read_page_header(read_at: ReadAt, first: int, end: int) -> PageHeader | None:
    """Reads a page header.

    Args:
        read_at: Reads bytes of the file.
        first: The byte at which the header begins.
        end: The byte at which the column chunk ends.

    Returns:
        The header, or None if there is no valid one.
    """
    for max_bytes in (_LIKELY_BYTES, _MAX_BYTES):
        header = kernels.page_header(read_at(min(max_bytes, end - first), first))
        if header is not None:
            return PageHeader(*header)
    return None


def _is_within(read_at: ReadAt, bounds: Sequence[int], stop: bytes | bytearray) -> bool:
    position, num_bytes, _, levels_left, max_bytes = bounds
    end = position + num_bytes
    while levels_left and position < end and not stop[0]:
        header = read_page_header(read_at, position, end)
        if header is None:  # invalid: its reader reports it
            return True
        if header.num_levels > levels_left or header.raw_bytes > max_bytes:
            return False
        levels_left -= header.num_levels
        position += header.num_bytes + header.size_bytes
    return True


def _bounds(footer: CheckedFooter, row_group: int, leaves: Sequence[int]) -> Numbers:
    """The numbers of chunks, of any codec: int64 (num_leaves, `NUMBERS_OF_CHUNK`)."""
    columns = np.zeros((len(leaves), len(COLUMN)), np.int64)
    columns[:, COLUMN["leaf"]] = leaves
    columns[:, COLUMN["width"]] = [
        _WIDTHS.get(footer.leaves[leaf].physical_type, _TEXT) for leaf in leaves
    ]
    chunks = np.empty((len(leaves), NUMBERS_OF_CHUNK), np.int64)
    one, rows = np.array([row_group]), np.zeros(1, np.int64)
    kernels.plan_columns(
        footer.numbers, footer.numbers.shape[1], one, rows, columns, chunks, False, False
    )
    chunks[:, _CODEC] = _ANY_CODEC
    return chunks
