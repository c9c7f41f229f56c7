"""What the pages of a column chunk may claim: levels and bytes, by the footer's number of values.

A page of a few bytes can claim two billion levels, or half a gigabyte of decompressed data. Neither
the kernels nor Arrow may spend time or memory on such a claim: a chunk that makes one is damaged.
The pages that the kernels decode are bounded as they decode them; those that Arrow is to decode are
looked through before.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from featstore._native.loading import KERNELS
from featstore.errors import DataFileError
from featstore.parquet.footers import Chunk
from featstore.reading.footer import Footer
from featstore.reading.page_header import read_page_header

# A value by its index takes at most 5 bytes, a run of one; its two levels take 4, runs of one too.
_LEVEL_BYTES, _INDEX_BYTES = 4, 5
# Pages may claim so many bytes however few values there are: writers round up, and a dictionary may
# be shared by the row groups of a file.
_LEAST_PAGE_BYTES = 2 << 20
_MOST_RATIO = 24  # above what snappy can compress by: 64 bytes to 3
_HEADER_BYTES = 1 << 20  # a page's header may take so many
_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "BOOLEAN": 1, "INT96": 12}
_ANY_CODEC = 0


def most_page_bytes(chunk: Chunk, width: int) -> int:
    """The bytes that a page may claim of a chunk of values of `width` bytes: what they can need, or
    what so many stored bytes may well be, as a dictionary may have more values than the chunk."""
    needed = chunk.num_values * (max(width, _INDEX_BYTES) + _LEVEL_BYTES)
    return max(needed, _LEAST_PAGE_BYTES, min(chunk.raw_bytes, _MOST_RATIO * chunk.stored_bytes))


def beyond_bounds(footer: Footer, row_group: int, column: str) -> DataFileError:
    """The error of a chunk whose pages claim more than they may."""
    return DataFileError(
        f"{footer.name}: column {column!r}: row group {row_group} cannot be read: expected pages with "
        "no more values, and no more bytes, than the footer's number of values allows, found pages "
        "that claim more; the file is damaged: write it again"
    )


def require_within(footer: Footer, row_group: int, places: Iterable[tuple[int, str]]) -> None:
    """Looks through the page headers of column chunks before Arrow reads them.

    Args:
        footer: The open file.
        row_group: The row group that is read.
        places: The numbers of its leaf columns that are, and what errors call each column.

    Raises:
        DataFileError: The pages of a chunk claim more levels than the footer says, or more bytes
            than so many values can need.
    """
    wanted = list(places)
    if not wanted:
        return
    chunks = [_bounds(footer, row_group, place) for place, _ in wanted]
    if KERNELS is None or not footer.is_local:
        found = next((i for i, chunk in enumerate(chunks) if not _is_within(footer, *chunk)), -1)
    else:
        room = pa.allocate_buffer(_HEADER_BYTES)
        numbers = np.array(chunks, np.int64)
        found = KERNELS.first_beyond(footer.descriptor, numbers, footer.stop, room)
    footer.require_wanted()
    if found >= 0:
        raise beyond_bounds(footer, row_group, wanted[found][1])


def _is_within(footer: Footer, at: int, num_bytes: int, _codec: int, levels_left: int, most_bytes: int) -> bool:
    """Whether the pages of a chunk claim no more levels and bytes than they may; of what is no page
    its reader will tell."""
    end = at + num_bytes
    while levels_left and at < end:
        footer.require_wanted()
        header = read_page_header(footer.read_at, at, end)
        if header is None:
            return True
        if header.num_levels > levels_left or header.raw_bytes > most_bytes:
            return False
        levels_left -= max(0, header.num_levels)
        at += header.num_bytes + header.size_bytes
    return True


def _bounds(footer: Footer, row_group: int, place: int) -> tuple[int, int, int, int, int]:
    """A chunk as the kernels take it; of texts the footer says how many bytes there are."""
    chunk, width = footer.chunk(row_group, place), _WIDTHS.get(footer.leaf(place).physical_type)
    of_texts = max(chunk.raw_bytes, chunk.stored_bytes, _LEAST_PAGE_BYTES)
    most = of_texts if width is None else most_page_bytes(chunk, width)
    return chunk.span[0], chunk.stored_bytes, _ANY_CODEC, chunk.num_values, most
