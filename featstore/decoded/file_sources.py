"""Where the files of a data file's rows are read: in place, or staged; and what the stager has to
know about Parquet: which byte ranges a selection reads, and whether a staged file is intact.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from featstore.base.closing import Closing
from featstore.base.errors import DataFileError, StateError
from featstore.base.intervals import Span
from featstore.files.storage import source_of
from featstore.reading.file_columns import ColumnCache, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.spans import plan_spans, require_intact
from featstore.staging.fetcher import Key, Source, StageItem
from featstore.staging.stager import Staged, Stager
from featstore.staging.stream import Stream
from featstore.table.snapshot import DataFile

Release = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Where one file of a split is read.

    Attributes:
        path: The file's path in the table, which errors name.
        source: A local path, an open file, or a function that opens one.
        held: The byte ranges that are present in a file staged by ranges; None is the whole file.
        is_checked: As of `OpenFile`.
    """

    path: str
    source: Path | BinaryIO | Callable[[], BinaryIO]
    held: tuple[Span, ...] | None = None
    is_checked: bool = False


def files_in_place(file: DataFile) -> tuple[FileSource, ...]:
    """The sources of a data file and of its slot groups' files, where they are stored."""
    return tuple(FileSource(path=part.path, source=source_of(part.url)) for part in file.parts)


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
                source=found.open_path or source_of(part.url),
                held=found.held,
                is_checked=found.is_checked,
            )
            for part, found in zip(file.parts, staged, strict=True)
        )
        return files, pins.pop_all().close


class SourcesAhead(Closing):
    """The files of those who decode one after the other: while one is decoded, the next ones are
    downloaded, as far ahead as the stager's options say.

    A file that comes out of its turn is staged when it is asked for, and so are all after it, or
    after `close`. For one thread.

    Args:
        stager: Stages files that are not read in place.
        files: What will be asked for, in order.
        is_wanted: Whether a file that lies ahead will be asked for. Called in a thread of the
            stager when the file's turn to be downloaded comes.
    """

    def __init__(
        self,
        stager: Stager,
        files: Sequence[DataFile] = (),
        is_wanted: Callable[[DataFile], bool] = lambda file: True,
    ) -> None:
        self._stager, self._files, self._is_wanted = stager, files, is_wanted
        self._numbers = {file.url: number for number, file in enumerate(files)}
        self._stream: Stream[int] | None = None
        self._is_closed = False

    @contextmanager
    def opened(self, file: DataFile) -> Iterator[tuple[FileSource, ...]]:
        """The sources of a data file and of its slot groups' files: where they are stored, or
        staged and pinned until the end of the block, as the stager's options say.
        """
        if not self._stager.options.stages(file.url):
            yield files_in_place(file)
            return
        with ExitStack() as stack:
            first, stream = self._taken(file), self._stream
            if first is None or stream is None:
                own = stack.enter_context(self._stager.stage(stage_items(file, 0)))
                first, stream = next(own, None), own
            if first is None:
                raise StateError("staging was closed before a data file was staged")
            files, release = files_staged(file, first, stream)
            stack.callback(release)
            yield files

    def close(self) -> None:
        """Ends downloads, and lets go of files that were not asked for. May be called more than
        once.
        """
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def _taken(self, file: DataFile) -> Staged[int] | None:
        """The staged data file, if it was announced. Files before it, which others decode, are let
        go. So are all that lie ahead of a file that is out of its turn: it may need their room.
        """
        number = self._numbers.get(file.url)
        if number is None or self._is_closed:
            return None
        if self._stream is None:
            self._stream = self._stager.stage(self._items(number))
        while (staged := next(self._stream, None)) is not None:
            if staged.key == number:
                return staged
            staged.release()
            if staged.key > number:
                self.close()
                return None
        return None

    def _items(self, first: int) -> Iterator[StageItem[int]]:
        for number in range(first, len(self._files)):
            if number == first or self._is_wanted(self._files[number]):
                yield from stage_items(self._files[number], number)


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
