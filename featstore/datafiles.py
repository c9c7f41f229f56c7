"""What staging is told of data files: which ranges a selection reads, and whether a staged file is sound."""

from pathlib import Path

from featstore.errors import DataFileError
from featstore.reading.footer import Footer, Selection
from featstore.reading.spans import Span, plan_spans
from featstore.staging.fetcher import Source, accept


def staging_source(selection: Selection, *, accepts_bad: bool = False) -> Source:
    """The source of a stager for readers of this selection; with `accepts_bad` also of files that these will refuse."""

    def plan_ranges(tail: bytes, size_bytes: int, name: str) -> tuple[Span, ...] | int:
        try:
            return plan_spans(tail, size_bytes, selection, name)
        except DataFileError:
            if not accepts_bad:
                raise
            return ((0, size_bytes),)

    return Source(plan_ranges=plan_ranges, check=accept if accepts_bad else check)


def check(path: Path, name: str) -> None:
    """DataFileError, with `name`, where the file has no footer that can be read."""
    Footer(path, name).close()
