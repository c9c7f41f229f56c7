"""Looks at local paths. Only an error that says that nothing is there means so; all others are
raised, since what cannot be seen may be there.
"""

import os
import stat
from pathlib import Path


def exists(path: Path) -> bool:
    """Whether anything is at the path, behind links."""
    return _mode(path) is not None


def is_directory_at(path: Path) -> bool:
    """Whether a directory is at the path, behind links."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def is_file_at(path: Path) -> bool:
    """Whether a file is at the path, behind links."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def names_in(path: Path) -> list[str]:
    """The sorted names in a directory; empty if there is no such directory."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries)
    except FileNotFoundError:
        return []


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
