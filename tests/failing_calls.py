"""Calls of the operating system that fail once, at each place of the package that makes them."""

import builtins
import errno
import fcntl
import io
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import featstore

_PACKAGE = str(Path(featstore.__file__).parent)
_CALLS = [
    *[(fcntl, "flock"), (mmap, "mmap"), (builtins, "open"), (io, "open")],
    *[(os, name) for name in ("open", "fstat", "stat", "lstat", "scandir", "listdir", "mkdir")],
    *[(os, name) for name in ("pread", "pwrite", "writev", "fsync", "fdatasync", "ftruncate")],
    *[(os, name) for name in ("posix_fallocate", "rename", "unlink", "utime", "statvfs")],
]
# The name of a call, and the line of the package that makes it.
Place = tuple[str, str]


class FailingCalls:
    """Patches the calls that a few files make of the operating system: all of them are noted, and
    the first one at `failing` fails.

    Args:
        patch: What patches.
        files: The beginnings of the files' paths in the package; all files if there are none.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *files: str) -> None:
        self._files = tuple(_PACKAGE + file for file in files or ("",))
        self.places = dict[Place, int]()
        self.failing: Place | None = None
        self.number = errno.EIO
        for module, name in _CALLS:
            patch.setattr(module, name, self._patched(name, getattr(module, name)))

    def _patched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*arguments: Any, **options: Any) -> Any:
            self._note(name, sys._getframe(1), arguments)
            return call(*arguments, **options)

        return patched

    def _note(self, name: str, frame: FrameType | None, arguments: tuple[Any, ...]) -> None:
        while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(self._files):
            return
        place = name, f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno}"
        self.places[place] = self.places.get(place, 0) + 1
        if place == self.failing:
            self.failing = None
            path = arguments[0] if isinstance(arguments[0], str | Path) else None
            raise OSError(
                self.number, os.strerror(self.number), *filter(None, [path and str(path)])
            )


def left_open(directory: Path) -> list[str]:
    """The open descriptors of this process below a directory, and the files there that are locked,
    by whomever.
    """
    found = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    left = [f"open: {path}" for path in found if path.is_relative_to(directory)]
    for path in [directory, *directory.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            left.append(f"locked: {path}")
        finally:
            os.close(descriptor)
    return left
