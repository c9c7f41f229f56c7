"""Compares pages with the checksums in their headers, without decoding them. Done once for a file
that came over a network.

Parquet's checksum is the CRC-32 of a page as it is stored, without its header; in a V2 page it
includes the levels. Writers may leave it out. Format:
parquet.apache.org/docs/file-format/data-pages/checksumming.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from featstore._native.loading import KERNELS
from featstore.errors import DataFileError
from featstore.intervals import Span
from featstore.parquet.page_header import read_page_header
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import is_held

# Bytes read at once: few enough for the CPU's cache, and more than any page header has.
_ROOM_BYTES = 256 << 10


def require_intact(file: OpenFile, held: Sequence[Span] | None) -> None:
    """Checks the pages of a local file. A page without a checksum is intact if it ends within its
    column chunk.

    Args:
        file: An open local file.
        held: Ascending spans of the file that are present; only column chunks in them are checked.
            None is the whole file.

    Raises:
        DataFileError: A page is not what was written. Names file, column and row group.
    """
    chunks = [chunk for chunk in _chunks(file) if is_held(chunk.span, held)]
    damaged = _first_damaged(file.descriptor, [chunk.span for chunk in chunks])
    if damaged is not None:
        chunk = chunks[damaged]
        raise DataFileError(
            f"{file.name}: column {chunk.column!r}: row group {chunk.row_group}: expected pages "
            "that match the checksums in their headers, found other bytes; if the store has the "
            "same bytes, write the file again"
        )


@dataclass(frozen=True, slots=True)
class _Chunk:
    row_group: int
    column: str
    span: Span


def _chunks(file: OpenFile) -> Iterator[_Chunk]:
    for index in range(len(file.row_group_rows)):
        for place, leaf in enumerate(file.footer.leaves):
            chunk = file.chunk(index, place)
            if chunk.num_values:  # An empty one may claim to begin at byte 0.
                yield _Chunk(index, leaf.path, chunk.span)


def _first_damaged(file: int, spans: Sequence[Span]) -> int | None:
    """The index of the first column chunk that is not intact."""
    size_bytes = os.fstat(file).st_size
    outside = next(
        (place for place, (first, end) in enumerate(spans) if not 0 <= first <= end <= size_bytes),
        None,
    )
    if outside is not None or not spans:
        return outside
    if KERNELS is None:
        return next((place for place, span in enumerate(spans) if not _is_intact(file, span)), None)
    found = int(
        KERNELS.first_damaged(file, np.array(spans, np.int64), pa.allocate_buffer(_ROOM_BYTES))
    )
    return None if found < 0 else found


def _is_intact(file: int, span: Span) -> bool:
    """Whether a column chunk consists of whole pages, each of which matches its checksum if it has
    one.
    """
    at, end = span
    while at < end:
        header = read_page_header(
            lambda num_bytes, first: os.pread(file, num_bytes, first), at, end
        )
        if header is None or at + header.num_bytes + header.size_bytes > end:
            return False
        first, at = at + header.num_bytes, at + header.num_bytes + header.size_bytes
        if header.crc is not None and header.crc != _crc(file, first, at):
            return False
    return True


def _crc(file: int, first: int, end: int) -> int:
    """The CRC-32 of these bytes, or of as many as the file has."""
    crc = 0
    while first < end and (block := os.pread(file, min(_ROOM_BYTES, end - first), first)):
        crc, first = isal_zlib.crc32(block, crc), first + len(block)
    return crc
