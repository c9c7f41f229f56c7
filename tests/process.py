"""What featstore has open in the process of the tests."""

import tempfile
import threading
from pathlib import Path


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("featstore")}


def our_files() -> set[Path]:
    """Temporary files and directories; each process of a test run has a place of its own for
    them.
    """
    return set(Path(tempfile.gettempdir()).glob("featstore*"))


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
