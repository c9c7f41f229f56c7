"""Copies of the tests' process."""

import os
import signal
import time
from collections.abc import Callable


def in_a_fork(act: Callable[[], object]) -> int:
    """The exit code of a forked process that does this: 0 if it gives nothing or what is false, and
    1 otherwise. It is killed where it hangs.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(bool(act()))
        finally:
            os._exit(code)
    deadline = time.monotonic() + 120
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(found[1])
