"""The threads, temporary files and descriptors that the process of the tests has open, and how tests
wait for its threads.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("featstore")}


def our_files() -> set[Path]:
    """featstore's temporary files and directories. Each process of a test run has its own temporary
    directory.
    """
    return set(Path(tempfile.gettempdir()).glob("featstore*"))


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def await_that(is_so: Callable[[], bool]) -> None:
    """Waits until another thread has made it so; AssertionError after a minute."""
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)
