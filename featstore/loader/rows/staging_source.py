"""What staging is told of data files: which ranges a selection reads, and whether a staged file is
sound.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from featstore.errors import DataFileError
from featstore.reading.checksums import require_intact
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import Span, plan_spans
from featstore.staging.fetcher import Key, Source, StageItem
from featstore.table.snapshot import DataFile


def stage_items(file: DataFile, key: Key) -> Iterator[StageItem[Key]]:
    """What is staged of a data file: the file itself, then those of its slot groups."""
    for part in file.parts:
        yield StageItem(
            key=key,
            url=part.url,
            size_bytes=part.size_bytes,
            version=part.version,
            crc32=part.crc32,
        )


def staging_source(selection: Selection, *, accepts_bad: bool = False) -> Source:
    """The source of a stager for readers of this selection; with `accepts_bad` also of files that
    these will refuse.
    """

    def plan_ranges(tail: bytes, size_bytes: int, name: str) -> tuple[Span, ...] | int:
        try:
            return plan_spans(tail, size_bytes, selection, name)
        except DataFileError:
            if not accepts_bad:
                raise
            return ((0, size_bytes),)

    return Source(plan_ranges=plan_ranges, check=check)


def check(path: Path, name: str, held: Sequence[Span]) -> None:
    """DataFileError, with `name`, where the file has no footer that can be read, or a page in
    `held` is not what was written."""
    with OpenFile(path, name) as footer:
        require_intact(footer, held)
