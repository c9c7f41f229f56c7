"""Where in a data file a selection's bytes are, for whoever brings only those."""

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from featstore.errors import DataFileError
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile

Span = tuple[int, int]
_MAGIC = b"PAR1"
# of a Parquet file: the length of the metadata before them, four bytes little-endian, and the magic
_END_BYTES = 8


def plan_spans(
    tail: bytes, size_bytes: int, selection: Selection, name: str
) -> tuple[Span, ...] | int:
    """The bytes `(first, end)` of the column chunks that a selection reads, from the last bytes of
    a file.

    Where the footer is not in them whole: how many of the last bytes it takes. DataFileError, with
    `name`, where the file is no Parquet, or its columns cannot be what was selected.
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
    """Whether all of a span is in one of the spans that are there, ascending and not touching; None
    is all.
    """
    if held is None:
        return True
    place = bisect_right(held, span[0], key=lambda other: other[0]) - 1
    return place >= 0 and span[1] <= held[place][1]


def require_held(file: OpenFile, columns: FileColumns, held: Sequence[Span] | None) -> None:
    """DataFileError, naming slot and file, where a column that is to be read lies where nothing was
    staged.

    `held` is what was, ascending; None is all. What was not staged reads as zeros: it must never
    get as far as a reader.
    """
    if held is None:
        return
    for path, (first, end) in _chunks(file, columns):
        if not is_held((first, end), held):
            slot = path.partition(".")[0]
            raise DataFileError(
                f"{file.name}: slot {slot!r}: expected its bytes {first} to {end} in the staged "
                "file, found that only other columns were staged; stage the file for a selection "
                "that has the slot, or with staging mode whole"
            )


def _chunks(file: OpenFile, columns: FileColumns) -> Iterator[tuple[str, Span]]:
    """Each leaf column's path and span in each row group, as Arrow's reader asks for it."""
    places = [place for found in columns.places.values() for place in found]
    for group in range(len(file.row_group_rows)):
        for place in places:
            yield file.leaf(place).path, file.chunk(group, place).span
