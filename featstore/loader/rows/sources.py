"""Where a split's data file and the files of its slot groups are read: in place, or staged one
after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from featstore.files.storage import local_path, open_read
from featstore.loader.rows.split_reader import GroupSource
from featstore.reading.spans import Span
from featstore.staging.stager import Staged
from featstore.table.snapshot import DataFile


def _nothing() -> None:
    """Nothing is staged, so there is nothing to let go of."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The files that one split is read from; fields as of `Work`."""

    source: Path | BinaryIO
    held: tuple[Span, ...] | None = None
    is_checked: bool = False
    release: Callable[[], None] = _nothing
    groups: tuple[GroupSource, ...] = ()


def parts_in_place(file: DataFile) -> Parts:
    """The files where they are."""
    source, *sources = (local_path(part.url) or open_read(part.url) for part in file.parts)
    groups = (
        GroupSource(path=group.path, source=found)
        for group, found in zip(file.groups, sources, strict=True)
    )
    return Parts(source=source, groups=tuple(groups))


def parts_staged(file: DataFile, staged: Staged, stream: Iterator[Staged]) -> Parts:
    """The files of a split whose data file is `staged`; those of its slot groups are the next of
    the stream.

    All of them are let go of together, also where the stream ends or breaks before the last of
    them.
    """
    parts = [staged]

    def release() -> None:
        for part in parts:
            part.release()

    try:
        parts += [next(stream) for _ in file.groups]
    except BaseException:
        release()
        raise
    sources = [part.open_path or local_path(part.url) or open_read(part.url) for part in parts]
    groups = (
        GroupSource(path=group.path, source=source, held=part.held, is_checked=part.is_checked)
        for group, source, part in zip(file.groups, sources[1:], parts[1:], strict=True)
    )
    return Parts(
        source=sources[0],
        held=staged.held,
        is_checked=staged.is_checked,
        release=release,
        groups=tuple(groups),
    )


class StagedStream:
    """Closes a stager's stream, and with it the thread that would wait for room."""

    def __init__(self, stream: Iterator[Staged]) -> None:
        self._stream = stream

    def close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()
