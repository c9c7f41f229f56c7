"""What staging is told of data files: which ranges a selection reads, and whether a staged file is sound."""

from pathlib import Path

from featstore.reading.footer import Footer, Selection
from featstore.reading.spans import Span, plan_spans
from featstore.staging.fetcher import Source


def staging_source(selection: Selection) -> Source:
    """The source of a stager for readers of this selection."""

    def plan_ranges(tail: bytes, size_bytes: int, name: str) -> tuple[Span, ...] | int:
        return plan_spans(tail, size_bytes, selection, name)

    return Source(plan_ranges=plan_ranges, check=check)


def check(path: Path, name: str) -> None:
    """DataFileError, with `name`, where the file has no footer that can be read."""
    Footer(path, name).close()
