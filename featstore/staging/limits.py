"""A bandwidth limit that the processes which share a cache keep together."""

import fcntl
import os
import struct
import threading
import time
from pathlib import Path

_FORMAT = struct.Struct("<d")
_LONGEST_DEBT_S = 600.0
_SLICE_S = 0.25


def reserve_time(
    now_s: float, free_at_s: float, num_bytes: int, bytes_per_s: float
) -> tuple[float, float]:
    """When a block may pass, and from when on the next may, given that the line is taken until
    `free_at_s`. Pure.

    A time further ahead than any debt can be was left by a clock that has since begun anew, and
    does not count.
    """
    starts_at_s = now_s if free_at_s - now_s > _LONGEST_DEBT_S else max(now_s, free_at_s)
    return starts_at_s, min(starts_at_s + num_bytes / bytes_per_s, now_s + _LONGEST_DEBT_S)


class Throttle:
    """Lets `max_bytes_per_s` pass in all processes that name the same file, which holds the time
    from which the line is free, on the host's monotonic clock. Its lock is a `flock` that is held
    for a read and a write. None lets all pass."""

    def __init__(self, path: Path, max_bytes_per_s: int | None) -> None:
        self._path, self._bytes_per_s = path, max_bytes_per_s

    def wait(self, num_bytes: int, stop: threading.Event) -> None:
        """Waits until the bytes may pass, or `stop` is set. They pass in slices, so that others get
        their turn in between.
        """
        if self._bytes_per_s is None:
            return
        slice_bytes = max(1, int(self._bytes_per_s * _SLICE_S))
        while num_bytes > 0 and not stop.is_set():
            pause_s = (
                self._reserve(min(num_bytes, slice_bytes), self._bytes_per_s) - time.monotonic()
            )
            num_bytes -= slice_bytes
            if pause_s > 0:
                stop.wait(pause_s)

    def _reserve(self, num_bytes: int, bytes_per_s: float) -> float:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = os.pread(file, _FORMAT.size, 0)
            free_at_s = _FORMAT.unpack(found)[0] if len(found) == _FORMAT.size else 0.0
            starts_at_s, free_at_s = reserve_time(
                time.monotonic(), free_at_s, num_bytes, bytes_per_s
            )
            os.pwrite(file, _FORMAT.pack(free_at_s), 0)
            return starts_at_s
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)
