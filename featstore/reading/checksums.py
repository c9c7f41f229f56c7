"""Compares pages with the checksums in their headers, without decoding them. Done once for a file
that came over a network.

Parquet's checksum is the CRC-32 of a page as it is stored, without its header; in a V2 page it
includes the levels. Writers may leave it out. Format:
parquet.apache.org/docs/file-format/data-pages/checksumming.
"""

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from featstore.base.errors import DataFileError
from featstore.base.intervals import Span
from featstore.native import kernels
from featstore.reading.buffers import Array
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import are_held

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
        StoreError: The system cannot read the file.
    """
    places = _checked_places(file, held)
    spans = file.footer.spans.reshape(-1, 2)[places]
    with file.reading():
        damaged = _first_damaged(file.descriptor, spans)
    if damaged is not None:
        row_group, leaf = divmod(int(places[damaged]), len(file.footer.leaves))
        column = file.footer.leaves[leaf].path
        raise DataFileError(
            f"{file.name}: column {column!r}: row group {row_group}: expected pages "
            "that match the checksums in their headers, found other bytes; if the store has the "
            "same bytes, write the file again"
        )


def _checked_places(file: OpenFile, held: Sequence[Span] | None) -> Array:
    """The column chunks to check: their places among all of the file, row group by row group."""
    groups, leaves = range(len(file.row_group_rows)), range(len(file.footer.leaves))
    # An empty one may claim to begin at byte 0.
    is_checked = (file.footer.chunks_of(groups, leaves).num_values > 0).reshape(-1)
    if held is not None:
        is_checked &= are_held(file.footer.spans.reshape(-1, 2), held)
    return np.flatnonzero(is_checked)


def _first_damaged(file: int, spans: Array) -> int | None:
    """The index of the first column chunk that is not intact.

    Args:
        file: The file's descriptor.
        spans: The chunks' spans: int64 (num_chunks, 2).
    """
    first, end = spans[:, 0], spans[:, 1]
    outside = np.flatnonzero((first < 0) | (end < first) | (end > os.fstat(file).st_size))
    if len(outside) or not len(spans):
        return int(outside[0]) if len(outside) else None
    found = kernels.first_damaged(file, spans, pa.allocate_buffer(_ROOM_BYTES))
    return None if found < 0 else found
