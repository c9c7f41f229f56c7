"""The warning about missing compiled kernels, which commands show once a day at most."""

import contextlib
import os
import time
import warnings
from pathlib import Path
from typing import Any, TextIO

import click

KERNELS_MISSING = "featstore runs without its compiled kernels"
_DAY_S = 24 * 3600


def stamp_path() -> Path:
    """The file whose time says when a command last showed the warning."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "featstore" / "kernels-warning"


def warn_once_a_day(stamp: Path) -> None:
    """From now on, shows the warning on one line, and only if that is due. Other warnings are
    shown as before.

    Where the stamp cannot be written, the warning is shown each time.
    """
    show_others = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> Any:
        if not str(message).startswith(KERNELS_MISSING):
            return show_others(message, category, filename, lineno, file, line)
        if is_due(stamp, time.time()):
            click.echo(f"featstore: warning: {message}", err=True)
            with contextlib.suppress(OSError):
                stamp.parent.mkdir(parents=True, exist_ok=True)
                stamp.touch()
        return None

    warnings.showwarning = show


def is_due(stamp: Path, now_s: float) -> bool:
    """Whether the warning was not shown within a day. A stamp of the future does not count."""
    try:
        return not 0 <= now_s - stamp.stat().st_mtime < _DAY_S
    except OSError:
        return True
