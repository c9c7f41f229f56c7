"""The end of featstore's own programs: their exit codes, and that nothing runs after them."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from featstore.base.errors import CheckFailedError

BAD_INPUT, REFUSED = 2, 3
_NOT_FLUSHED = 120  # the interpreter's own code if standard output cannot be written at its end


def exit_code(error: Exception) -> int:
    """The exit code of an error about the input, or of checks that refused a commit."""
    return REFUSED if isinstance(error, CheckFailedError) else BAD_INPUT


def end_with(program: Callable[[], int | None]) -> NoReturn:
    """Runs a program, and ends the process with the code that it returns or exits with.

    As at the interpreter's end, other threads are joined, what is registered with `atexit` runs
    (finalizers, logging, child processes), and output is flushed. Then the process ends at once.
    The interpreter would first take itself down, while threads of Arrow's pools and of the stores'
    clients go on: one that calls Python, or frees memory of Python, then aborts the process.
    """
    code = _code_of(program)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(_flushed(code))


def _code_of(program: Callable[[], int | None]) -> int:
    try:
        return program() or 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:  # noqa: BLE001  a program's boundary: shown as the interpreter would
        sys.excepthook(*sys.exc_info())
        return 1


def _flushed(code: int) -> int:
    """The exit code after output was flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # It is where the descriptor was closed at the start.
                stream.flush()
        except (OSError, ValueError):
            sys.excepthook(*sys.exc_info())
            code = code or _NOT_FLUSHED
    return code
