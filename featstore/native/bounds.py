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
from featstore.native.footers import CheckedFooter, Chunks
from featstore.native.format import Numbers

CLAIMS_MORE = (
    "expected pages with no more values, and no more bytes, than the footer's number of values "
    "allows, found pages that claim more; the file is damaged: write it again"
)

# The worst case of the RLE hybrid encoding is a run for each value: 5 bytes for a dictionary index,
# and 4 for its two levels.
_LEVEL_BYTES, _INDEX_BYTES = 4, 5
# A page may claim this much however few values there are: writers round up, and a dictionary may be
# shared by the row groups of a file.
_MIN_PAGE_BYTES = 2 << 20
_MAX_RATIO = 24  # more than snappy can compress by, which is 64 bytes to 3
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


def max_page_bytes(chunks: Chunks, widths: Numbers) -> Numbers:
    """The most bytes that a page of each chunk may claim to decompress to: int64 (num_row_groups,
    num_leaves).

    That is what its values can need in the worst case, or, since a dictionary may have more values
    than the chunk, what the stored bytes can decompress to.

    Args:
        chunks: The column chunks.
        widths: The bytes of a value of each leaf column: int64 (num_leaves,).
    """
    needed = chunks.num_values * (widths.clip(min=_INDEX_BYTES) + _LEVEL_BYTES)
    decompressed = np.minimum(chunks.raw_bytes, _MAX_RATIO * chunks.stored_bytes)
    most: Numbers = np.maximum(np.maximum(needed, decompressed), _MIN_PAGE_BYTES)
    return most


def kernel_chunks(chunks: Chunks, max_bytes: Numbers) -> Numbers:
    """The chunks as the kernels take them: int64 (num_leaves, num_row_groups, 5), which are the
    first byte, number of bytes, codec, number of values, and the most bytes that a page may claim.
    """
    numbers = (chunks.first, chunks.stored_bytes, chunks.codec, chunks.num_values, max_bytes)
    return np.ascontiguousarray(np.stack(numbers, axis=-1).swapaxes(0, 1))


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
    """The bounds of chunks, as of `kernel_chunks`, of any codec. The footer's sizes bound values of
    variable length (texts).
    """
    chunks = footer.chunks_of([row_group], leaves)
    widths = np.array(
        [_WIDTHS.get(footer.leaves[leaf].physical_type, _TEXT) for leaf in leaves], np.int64
    )
    text_bytes = np.maximum(np.maximum(chunks.raw_bytes, chunks.stored_bytes), _MIN_PAGE_BYTES)
    max_bytes = np.where(widths == _TEXT, text_bytes, max_page_bytes(chunks, widths))
    of_any_codec = chunks._replace(codec=np.full_like(chunks.codec, _ANY_CODEC))
    return kernel_chunks(of_any_codec, max_bytes)[:, 0]
