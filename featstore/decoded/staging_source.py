"""What the stager has to know about Parquet: which byte ranges a selection reads, and whether a
staged file is intact.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from featstore.base.errors import DataFileError
from featstore.base.intervals import Span
from featstore.reading.file_columns import ColumnCache, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import plan_spans, require_intact
from featstore.staging.fetcher import Key, Source, StageItem
from featstore.table.snapshot import DataFile


def stage_items(file: DataFile, key: Key) -> Iterator[StageItem[Key]]:
    """The files to stage for a data file: the file itself, then those of its slot groups.

    Args:
        file: A data file of a snapshot.
        key: What the stager gives back with each of the files.
    """
    for part in file.parts:
        yield StageItem(
            key=key,
            url=part.url,
            size_bytes=part.size_bytes,
            version=part.version,
            crc32=part.crc32,
        )


def staging_source(selection: Selection, *, accepts_bad: bool = False) -> Source:
    """The source of a stager whose files are read with this selection.

    Args:
        selection: The columns to read.
        accepts_bad: Whether a file whose footer cannot be read is staged whole, for its reader to
            raise the error. Otherwise the stager raises DataFileError.
    """

    column_cache, lock = ColumnCache(), threading.Lock()

    def plan_ranges(tail: bytes, size_bytes: int, name: str) -> tuple[Span, ...] | int:
        try:
            with lock:
                return plan_spans(tail, size_bytes, selection, name, column_cache)
        except DataFileError:
            if not accepts_bad:
                raise
            return ((0, size_bytes),)

    return Source(plan_ranges=plan_ranges, check=check)


def check(path: Path, name: str, held: Sequence[Span]) -> None:
    """Checks a staged file.

    Args:
        path: The local file.
        name: The name for errors.
        held: The byte ranges that it holds.

    Raises:
        DataFileError: The footer cannot be read, or a page in `held` fails its checksum.
    """
    with OpenFile(path, name) as file:
        require_intact(file, held)
