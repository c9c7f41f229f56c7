"""A claimed split and the files that it is read from: in place, or staged."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from featstore.dispatch.terms import Claim
from featstore.errors import StateError
from featstore.files.storage import local_path, open_read
from featstore.loader.plan.data_files import Partition
from featstore.reading.spans import Span
from featstore.staging.stager import Staged
from featstore.table.snapshot import DataFile

Release = Callable[[], None]


def _nothing() -> None:
    """Releases nothing: no file of the split is staged."""


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Where one file of a split is read.

    Attributes:
        path: The file's path in the table, which errors name.
        source: A local path, or an open remote file.
        held: The bytes that are there of a file staged by ranges; None for all of them.
        is_checked: As of `OpenFile`.
    """

    path: str
    source: Path | BinaryIO
    held: tuple[Span, ...] | None = None
    is_checked: bool = False


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claim whose files are at hand.

    The feed makes it, in the thread that decodes, once the files are staged or opened in place.
    One `SplitReader` consumes it; it owns the files' pins, and calls `release` when it is closed.

    Attributes:
        claim: Which rows of which split.
        partition: The partition that the split's data file belongs to.
        files: The data file, and after it those of its slot groups.
        release: Unpins what is staged. Called once, when the files are closed.
        reserve: Takes a row of the split and returns up to which row the split may be delivered;
            None where the claim is lost.
        fail: Records that the claim cannot be read.
    """

    claim: Claim
    partition: Partition
    files: tuple[FileSource, ...]
    release: Release = _nothing
    reserve: Callable[[int], int | None] = lambda through: through
    fail: Callable[[], None] = lambda: None


def files_in_place(file: DataFile) -> tuple[FileSource, ...]:
    """The data file, and those of its slot groups, where they are."""
    return tuple(
        FileSource(path=part.path, source=local_path(part.url) or open_read(part.url))
        for part in file.parts
    )


def files_staged(
    file: DataFile, first: Staged[Any], stream: Iterator[Staged[Any]]
) -> tuple[tuple[FileSource, ...], Release]:
    """The files of a split whose data file is `first`; those of its slot groups come next in the
    stream.

    Returns:
        The files, and what releases all of them together. Where the stream ends or breaks before
        the last of them, those that came are released at once.

    Raises:
        StateError: The stream was closed.
    """
    with ExitStack() as pins:
        staged = [pins.enter_context(first)]
        for _ in file.groups:
            if (following := next(stream, None)) is None:
                raise StateError("staging was closed before all files of a split had come")
            staged.append(pins.enter_context(following))
        files = tuple(
            FileSource(
                path=part.path,
                source=found.open_path or local_path(part.url) or open_read(part.url),
                held=found.held,
                is_checked=found.is_checked,
            )
            for part, found in zip(file.parts, staged, strict=True)
        )
        return files, pins.pop_all().close
