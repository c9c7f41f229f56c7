"""Where the files of a data file's rows are read: in place, or staged."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from featstore.decoded.staging_source import stage_items
from featstore.errors import StateError
from featstore.files.storage import local_path, open_read
from featstore.intervals import Span
from featstore.staging.stager import Staged, Stager
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


@contextmanager
def opened_sources(file: DataFile, stager: Stager) -> Iterator[tuple[FileSource, ...]]:
    """The sources of a data file and of its slot groups' files: where they are stored, or staged
    and pinned until the end of the block, as the stager's options say.
    """
    if not stager.options.stages(file.url):
        yield files_in_place(file)
        return
    with stager.stage(stage_items(file, file)) as stream:
        if (first := next(stream, None)) is None:
            raise StateError("staging was closed before a data file was staged")
        files, release = files_staged(file, first, stream)
        try:
            yield files
        finally:
            release()
