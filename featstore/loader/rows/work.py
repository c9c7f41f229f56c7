"""A claimed split and the files from which it is read, in place or staged."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from featstore.dispatch.terms import Claim
from featstore.errors import StateError
from featstore.files.storage import local_path, open_read
from featstore.intervals import Span
from featstore.loader.plan.data_files import Partition
from featstore.staging.stager import Staged
from featstore.table.snapshot import DataFile

Release = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Where one file of a split is read.

    Attributes:
        path: The file's path in the table, which errors name.
        source: A local path, or an open remote file.
        held: The byte ranges that are present in a file staged by ranges; None is the whole file.
        is_checked: As of `OpenFile`.
    """

    path: str
    source: Path | BinaryIO
    held: tuple[Span, ...] | None = None
    is_checked: bool = False


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claim whose files can be read now.

    The feed makes it, in the thread that decodes, once the files are staged or opened in place.
    One `SplitReader` consumes it; it owns the files' pins, and calls `release` when it is closed.

    Attributes:
        claim: Which rows of which split.
        partition: The partition that the split's data file belongs to.
        files: The data file, and after it those of its slot groups.
        release: Unpins the staged files. Called once, when the files are closed.
        reserve: Called with a row of the split, before rows up to it are read. Returns the row up
            to which this worker may deliver; None if the claim is lost.
        fail: Records that the claim cannot be read.
    """

    claim: Claim
    partition: Partition
    files: tuple[FileSource, ...]
    release: Release = lambda: None
    reserve: Callable[[int], int | None] = lambda through: through
    fail: Callable[[], None] = lambda: None


def files_in_place(file: DataFile) -> tuple[FileSource, ...]:
    """The sources of a data file and of its slot groups' files, where they are stored."""
    return tuple(
        FileSource(path=part.path, source=local_path(part.url) or open_read(part.url))
        for part in file.parts
    )


def files_staged(
    file: DataFile, first: Staged[Any], stream: Iterator[Staged[Any]]
) -> tuple[tuple[FileSource, ...], Release]:
    """The sources of a split whose files are staged.

    Args:
        file: The data file.
        first: The staged data file.
        stream: Staged files, the next of which are those of the data file's slot groups.

    Returns:
        The sources, and a function that releases all of them. If the stream ends or raises before
        the last one, those that came are released at once.

    Raises:
        StateError: The stream was closed.
    """
    with ExitStack() as pins:
        staged = [pins.enter_context(first)]
        for _ in file.groups:
            if (following := next(stream, None)) is None:
                raise StateError("staging was closed before all files of a split were staged")
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
