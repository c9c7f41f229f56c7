"""Pages compared with the checksums in their headers, without decoding them: done once for a file
that came over a network.

Parquet's checksum is the CRC-32 of a page as it is stored, without its header; of a V2 page the
levels are part of it. Writers may leave it out. Format:
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
from featstore.parquet.page_header import read_page_header
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import Span, is_held

_ROOM_BYTES = 256 << 10  # small enough for the processor's cache, large enough for any page header


def require_intact(file: OpenFile, held: Sequence[Span] | None) -> None:
    """DataFileError, naming file, column and row group, where a page of a local file is not what
    was written.

    Checks the column chunks that lie in `held`, ascending spans of the file, None for all of it. A
    page without a checksum counts as intact if it ends within its column chunk.
    """
    chunks = [chunk for chunk in _chunks(file) if is_held(chunk.span, held)]
    damaged = _first_damaged(file.descriptor, [chunk.span for chunk in chunks])
    if damaged is not None:
        chunk = chunks[damaged]
        raise DataFileError(
            f"{file.name}: column {chunk.column!r}: row group {chunk.row_group}: expected pages "
            "that match the checksums in their headers, found other bytes; if they are so in the "
            "store, write the file again"
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
            if chunk.num_values:  # without any it may say that it begins at byte 0
                yield _Chunk(index, leaf.path, chunk.span)


def _first_damaged(file: int, spans: Sequence[Span]) -> int | None:
    """The first of the column chunks that is not intact."""
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
    """Whether a column chunk consists of whole pages that match their checksums, where they have
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
    """Of what there is of these bytes."""
    crc = 0
    while first < end and (block := os.pread(file, min(_ROOM_BYTES, end - first), first)):
        crc, first = isal_zlib.crc32(block, crc), first + len(block)
    return crc
