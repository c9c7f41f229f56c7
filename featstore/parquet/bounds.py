"""What the pages of a column chunk may claim: levels and bytes, by the footer's number of values.

A page of a few bytes can claim two billion levels, or half a gigabyte of decompressed data. Neither
the kernels nor Arrow may spend time or memory on such a claim: a chunk that makes one is damaged.
The pages that the kernels decode are bounded as they decode them; those that Arrow is to decode are
looked through before.
"""

import os
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from featstore._native.loading import KERNELS
from featstore.parquet.footers import CheckedFooter, Chunk
from featstore.parquet.page_header import ReadAt, read_page_header

CLAIMS_MORE = (
    "expected pages with no more values, and no more bytes, than the footer's number of values "
    "allows, "
    "found pages that claim more; the file is damaged: write it again"
)

# A value by its index takes at most 5 bytes, a run of one; its two levels take 4, runs of one too.
_LEVEL_BYTES, _INDEX_BYTES = 4, 5
# Pages may claim so many bytes however few values there are: writers round up, and a dictionary may
# be shared by the row groups of a file.
_LEAST_PAGE_BYTES = 2 << 20
_MOST_RATIO = 24  # above what snappy can compress by: 64 bytes to 3
_HEADER_BYTES = 1 << 20  # a page's header may take so many
_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "BOOLEAN": 1, "INT96": 12}
_ANY_CODEC = 0

# A chunk as the kernels take it: first byte, bytes, codec, values, and the bytes that a page may
# claim.
Bounds = tuple[int, int, int, int, int]


def most_page_bytes(chunk: Chunk, width: int) -> int:
    """The bytes that a page may claim of a chunk of values of `width` bytes: what they can need, or
    what so many stored bytes may well be, as a dictionary may have more values than the chunk."""
    needed = chunk.num_values * (max(width, _INDEX_BYTES) + _LEVEL_BYTES)
    return max(needed, _LEAST_PAGE_BYTES, min(chunk.raw_bytes, _MOST_RATIO * chunk.stored_bytes))


def first_beyond(
    footer: CheckedFooter,
    row_group: int,
    places: Sequence[int],
    file: int | ReadAt,
    stop: bytes | bytearray = b"\0",
) -> int | None:
    """Looks through the page headers of column chunks before Arrow reads them.

    Args:
        footer: The file's footer.
        row_group: The row group that is read.
        places: The numbers of its leaf columns that are.
        file: The descriptor of a local file, or what reads any other.
        stop: A byte: once it is not 0, nobody wants to know any more.

    Returns:
        The first of the leaf columns whose pages claim more levels than the footer says, or more
        bytes than so many values can need; None where there is none. Of what is no page its reader
        will tell.
    """
    chunks = [_bounds(footer, row_group, place) for place in places]
    if KERNELS is None or not isinstance(file, int):
        read_at = partial(_pread, file) if isinstance(file, int) else file
        found = (i for i, chunk in enumerate(chunks) if not _is_within(read_at, chunk, stop))
        index = next(found, -1)
    else:
        numbers, room = np.array(chunks, np.int64), pa.allocate_buffer(_HEADER_BYTES)
        index = KERNELS.first_beyond(file, numbers, stop, room) if chunks else -1
    return None if index < 0 else places[index]


def _pread(file: int, num_bytes: int, first: int) -> bytes:
    return os.pread(file, num_bytes, first)


def _is_within(read_at: ReadAt, bounds: Bounds, stop: bytes | bytearray) -> bool:
    at, num_bytes, _, levels_left, most_bytes = bounds
    end = at + num_bytes
    while levels_left and at < end and not stop[0]:
        header = read_page_header(read_at, at, end)
        if header is None:
            return True
        if header.num_levels > levels_left or header.raw_bytes > most_bytes:
            return False
        levels_left -= max(0, header.num_levels)
        at += header.num_bytes + header.size_bytes
    return True


def _bounds(footer: CheckedFooter, row_group: int, place: int) -> Bounds:
    """Of texts the footer says how many bytes there are."""
    chunk = footer.chunk(row_group, place)
    width = _WIDTHS.get(footer.leaves[place].physical_type)
    of_texts = max(chunk.raw_bytes, chunk.stored_bytes, _LEAST_PAGE_BYTES)
    most = of_texts if width is None else most_page_bytes(chunk, width)
    return chunk.first, chunk.stored_bytes, _ANY_CODEC, chunk.num_values, most
