"""The byte ranges of a data file that a selection reads: to stage only those, and to check that
staged ones are there, and are what was written.

Parquet's checksum is the CRC-32 of a page as it is stored, without its header; in a V2 page it
includes the levels. Writers may leave it out. Format:
parquet.apache.org/docs/file-format/data-pages/checksumming.
"""

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from featstore.base.errors import DataFileError
from featstore.base.intervals import Span
from featstore.native import kernels
from featstore.native.arrow import MAGIC
from featstore.native.footers import END_BYTES
from featstore.reading.buffers import Array
from featstore.reading.file_columns import ColumnCache, FileColumns, Selection
from featstore.reading.open_file import OpenFile


def plan_spans(
    tail: bytes,
    size_bytes: int,
    selection: Selection,
    name: str,
    column_cache: ColumnCache | None = None,
) -> tuple[Span, ...] | int:
    """The byte ranges of the column chunks that a selection reads.

    Args:
        tail: The last bytes of the file.
        size_bytes: The file's size.
        selection: The columns to read.
        name: The file's name in errors.
        column_cache: As of `OpenFile`.

    Returns:
        Spans `(first, end)`. If the footer is not completely in `tail`: the number of last bytes
        that are needed.

    Raises:
        DataFileError: The file is not Parquet, or a column cannot be what was selected.
    """
    if len(tail) < min(END_BYTES, size_bytes):
        return min(END_BYTES, size_bytes)
    footer_bytes = int.from_bytes(tail[-END_BYTES:-4], "little") + END_BYTES
    if tail[-4:] == MAGIC and len(tail) < footer_bytes <= size_bytes:
        return footer_bytes
    source = io.BytesIO(tail)
    with OpenFile(source, name, size_bytes=size_bytes, column_cache=column_cache) as file:
        spans = _spans(file, file.resolve(selection))
        return tuple((first, end) for first, end in spans.tolist())


def are_held(spans: Array, held: Sequence[Span]) -> Array:
    """Which spans are present: bool (num_spans,).

    Args:
        spans: Bytes from the first to the end: int64 (num_spans, 2).
        held: Spans that are present, ascending and with gaps between them.
    """
    present = np.array(held, np.int64).reshape(-1, 2)
    # The one after the last that begins no later.
    place = np.searchsorted(present[:, 0], spans[:, 0], side="right")
    ends = np.concatenate([[-1], present[:, 1]])
    found: Array = spans[:, 1] <= ends[place]
    return found


def require_held(file: OpenFile, columns: FileColumns, held: Sequence[Span] | None) -> None:
    """Checks that the columns to read were staged. Bytes that were not staged read as zeros, so
    they must never reach a reader.

    Args:
        file: A staged file.
        columns: The columns to read.
        held: As of `are_held`; None is all bytes.

    Raises:
        DataFileError: A column was not staged. Names the slot and the file.
    """
    if held is None:
        return
    spans = _spans(file, columns)
    missing = np.flatnonzero(~are_held(spans, held))
    if len(missing):
        first, end = spans[missing[0]].tolist()
        leaf = columns.leaf_places[missing[0] % len(columns.leaf_places)]
        slot = file.footer.leaves[leaf].path.partition(".")[0]
        raise DataFileError(
            f"{file.name}: slot {slot!r}: expected its bytes {first} to {end} in the staged "
            "file, found only other columns; stage the file for a selection that has the slot, "
            "or with staging mode whole"
        )


def _spans(file: OpenFile, columns: FileColumns) -> Array:
    """The span of each leaf column in each row group, as Arrow's reader requests it: int64
    (num_row_groups * num_leaves, 2).
    """
    return file.footer.spans[:, np.array(columns.leaf_places, np.intp)].reshape(-1, 2)


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
    groups, leaves = range(len(file.row_group_rows)), range(len(file.footer.leaves))
    # An empty one may claim to begin at byte 0.
    is_checked = (file.footer.chunks_of(groups, leaves).num_values > 0).reshape(-1)
    if held is not None:
        is_checked &= are_held(file.footer.spans.reshape(-1, 2), held)
    # The column chunks to check: their places among all of the file, row group by row group.
    places = np.flatnonzero(is_checked)
    spans = file.footer.spans.reshape(-1, 2)[places]
    with file.reading():
        damaged = kernels.first_damaged(file.descriptor, spans, pa.allocate_buffer(_ROOM_BYTES))
    if damaged >= 0:
        row_group, leaf = divmod(int(places[damaged]), len(leaves))
        column = file.footer.leaves[leaf].path
        raise DataFileError(
            f"{file.name}: column {column!r}: row group {row_group}: expected pages "
            "that match the checksums in their headers, found other bytes; if the store has the "
            "same bytes, write the file again"
        )
