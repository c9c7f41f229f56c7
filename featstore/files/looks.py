"""Looks at local paths. Only an ENOENT of the thing itself means that it is not there: every other
failure is an error, since who takes it for an absence leaves out data, or removes them.

`Path.exists`, `Path.is_file`, `Path.rglob`, `os.walk` and the like swallow errors; a test
(`tests/test_architecture.py`) keeps them out of the package.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from featstore.base.errors import FeatstoreError, StoreError
from featstore.base.named_errors import system_error

# Of a path, too, of which a part is a file, where there can be nothing below.
ABSENT = (FileNotFoundError, NotADirectoryError)

# Looks at one path that may each meet another process that makes it.
_MOST_LOOKS = 8

Seen = TypeVar("Seen")


@contextlib.contextmanager
def looking(path: str | Path) -> Iterator[None]:
    """Translates failed looks at a local path in the block to StoreError.

    Errors of featstore and `ABSENT` pass, and that a directory is there in place of a file.

    Raises:
        AccessError: Access is refused.
        StoreError: The system failed. `errno` is the system's.
    """
    try:
        yield
    except (FeatstoreError, IsADirectoryError, *ABSENT):
        raise
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        what = f"{where} cannot be read, which does not mean that nothing is there"
        raise system_error(what, error) from error


def status_of(path: str | Path) -> os.stat_result | None:
    """The status of what is at a path, links followed; None if there is nothing.

    Raises:
        StoreError: The look failed, or a link is there that leads nowhere: something is there,
            only not now.
    """
    # `Path.stat` makes a path of each text.
    return _unless_absent(path, lambda: os.stat(path))  # noqa: PTH116


def _unless_absent(path: str | Path, look: Callable[[], Seen]) -> Seen | None:
    """What a look at a path sees, or None if there is nothing, nor a link that leads nowhere."""
    # What another process makes between the two looks is seen by the next first one.
    for _ in range(_MOST_LOOKS):
        with contextlib.suppress(*ABSENT), looking(path):
            return look()
        try:
            with looking(path):
                is_link = stat.S_ISLNK(os.lstat(path).st_mode)
        except ABSENT:
            return None
    failed = StoreError(
        f"{path} is a link that leads nowhere: expected to see what is there; mount what it leads "
        f"to, or remove it, then run it again"
        if is_link
        else f"{path}: expected a directory, found a file"
    )
    failed.errno = errno.ENOENT
    raise failed


def exists(path: str | Path) -> bool:
    """Whether there is anything at a path. StoreError if the look failed."""
    return status_of(path) is not None


def is_file_at(path: str | Path) -> bool:
    """Whether there is a regular file at a path. StoreError if the look failed."""
    status = status_of(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def is_directory_at(path: str | Path) -> bool:
    """Whether there is a directory at a path. StoreError if the look failed."""
    status = status_of(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def names_in(path: str | Path) -> list[str]:
    """The names in a directory, sorted; empty if there is no directory.

    Raises:
        StoreError: The look failed.
    """
    return _unless_absent(path, lambda: _scanned(path)) or []


def _scanned(path: str | Path) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries)
