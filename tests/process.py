"""The threads, temporary files and descriptors that the process of the tests has open, how tests
wait for its threads, and how they measure what it takes.
"""

import contextlib
import gc
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

_older = set[threading.Thread]()


def begin_test() -> None:
    """The threads that there are by now are no more `our_threads`: earlier tests have left them, or
    they serve several.
    """
    _older.clear()
    _older.update(threading.enumerate())


def our_threads(kind: str = "") -> set[threading.Thread]:
    """featstore's threads, of this kind if one is named, that this test has started."""
    found = set(threading.enumerate()) - _older
    return {thread for thread in found if thread.name.startswith(f"featstore{kind}")}


def our_files() -> set[Path]:
    """featstore's temporary files and directories. Each process of a test run has its own temporary
    directory.
    """
    return set(Path(tempfile.gettempdir()).glob("featstore*"))


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def num_unnamed_files() -> int:
    """How many temporary files without a name this process has open. Unlike its descriptors, nothing
    else opens or closes some meanwhile: what earlier tests left, or an error's trace holds, is let
    go of first.
    """
    gc.collect()
    found = list[str]()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.append(str(path.readlink()))
    return sum(path.startswith(f"{tempfile.gettempdir()}/#") for path in found)


def await_that(is_so: Callable[[], bool]) -> None:
    """Waits until another thread has made it so; AssertionError after five minutes."""
    until = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)


def least_cpu_s(act: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds of CPU that it takes, by default of this thread: the least of three times, since a
    host that many machines share may count as ours what others had (seen: seven times as much).
    """
    found = list[float]()
    for _ in range(3):
        since = clock()
        act()
        found.append(clock() - since)
    return min(found)
