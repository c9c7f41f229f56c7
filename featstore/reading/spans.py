"""The byte ranges of a data file that a selection reads, for staging only those."""

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from featstore.errors import DataFileError
from featstore.intervals import Span
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile

_MAGIC = b"PAR1"
# A Parquet file ends with the length of its metadata, four bytes little-endian, and the magic.
_END_BYTES = 8


def plan_spans(
    tail: bytes, size_bytes: int, selection: Selection, name: str
) -> tuple[Span, ...] | int:
    """The byte ranges of the column chunks that a selection reads.

    Args:
        tail: The last bytes of the file.
        size_bytes: The file's size.
        selection: The columns to read.
        name: The file's name in errors.

    Returns:
        Spans `(first, end)`. If the footer is not completely in `tail`: the number of last bytes
        that are needed.

    Raises:
        DataFileError: The file is not Parquet, or a column cannot be what was selected.
    """
    if len(tail) < min(_END_BYTES, size_bytes):
        return min(_END_BYTES, size_bytes)
    footer_bytes = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    if tail[-4:] == _MAGIC and len(tail) < footer_bytes <= size_bytes:
        return footer_bytes
    with OpenFile(io.BytesIO(tail), name, size_bytes=size_bytes) as file:
        columns = file.resolve(selection)
        return tuple(span for _, span in _chunks(file, columns))


def is_held(span: Span, held: Sequence[Span] | None) -> bool:
    """Whether a span is present.

    Args:
        span: Bytes `(first, end)`.
        held: Spans that are present, ascending and with gaps between them; None is all bytes.
    """
    if held is None:
        return True
    place = bisect_right(held, span[0], key=lambda other: other[0]) - 1
    return place >= 0 and span[1] <= held[place][1]


def require_held(file: OpenFile, columns: FileColumns, held: Sequence[Span] | None) -> None:
    """Checks that the columns to read were staged. Bytes that were not staged read as zeros, so
    they must never reach a reader.

    Args:
        file: A staged file.
        columns: The columns to read.
        held: As of `is_held`.

    Raises:
        DataFileError: A column was not staged. Names the slot and the file.
    """
    if held is None:
        return
    for path, (first, end) in _chunks(file, columns):
        if not is_held((first, end), held):
            slot = path.partition(".")[0]
            raise DataFileError(
                f"{file.name}: slot {slot!r}: expected its bytes {first} to {end} in the staged "
                "file, found only other columns; stage the file for a selection that has the slot, "
                "or with staging mode whole"
            )


def _chunks(file: OpenFile, columns: FileColumns) -> Iterator[tuple[str, Span]]:
    """The path and span of each leaf column in each row group, as Arrow's reader requests it."""
    places = [place for found in columns.places.values() for place in found]
    for group in range(len(file.row_group_rows)):
        for place in places:
            yield file.leaf(place).path, file.chunk(group, place).span
