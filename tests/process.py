"""The threads, temporary files and descriptors that the process of the tests has open."""

import tempfile
import threading
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
