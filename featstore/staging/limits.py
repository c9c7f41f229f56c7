"""A bandwidth limit for all processes that share a cache."""

import fcntl
import os
import struct
import threading
import time
from pathlib import Path

from featstore.files.private_directory import unlock

_FORMAT = struct.Struct("<d")
# How far ahead of now the line can be reserved: bounds the wait of a process, and tells a time that
# was written before a reboot, since when the monotonic clock has started over.
_LONGEST_DEBT_S = 600.0
# Bytes are let through in slices of this time, so that processes take turns. Shorter slices take
# more locks; longer ones make single reads arrive in bursts.
_SLICE_S = 0.25


def reserve_time(
    now_s: float, free_at_s: float, num_bytes: int, bytes_per_s: float
) -> tuple[float, float]:
    """Reserves the line for a block of bytes. Pure.

    A `free_at_s` that is further ahead than any debt can be was left by an earlier boot, and is
    ignored.

    Args:
        now_s: The host's monotonic time.
        free_at_s: The time until which the line is reserved.
        num_bytes: The bytes of the block.
        bytes_per_s: The limit.

    Returns:
        When the block may pass, and until when the line is reserved then.
    """
    starts_at_s = now_s if free_at_s - now_s > _LONGEST_DEBT_S else max(now_s, free_at_s)
    return starts_at_s, min(starts_at_s + num_bytes / bytes_per_s, now_s + _LONGEST_DEBT_S)


class Throttle:
    """Limits the bandwidth of all processes that name the same file.

    The file holds the time until which the line is reserved, as a float64 of the host's monotonic
    clock. It is locked with `flock` for one read and one write. A dead process leaves nothing that
    must be undone. Thread-safe.

    Args:
        path: The file; created when needed.
        max_bytes_per_s: The limit; None lets everything pass.
    """

    def __init__(self, path: Path, max_bytes_per_s: int | None) -> None:
        self._path, self._bytes_per_s = path, max_bytes_per_s

    def wait(self, num_bytes: int, stop: threading.Event) -> None:
        """Waits until `num_bytes` may pass, or `stop` is set."""
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
            data = os.pread(file, _FORMAT.size, 0)
            free_at_s = _FORMAT.unpack(data)[0] if len(data) == _FORMAT.size else 0.0
            starts_at_s, free_at_s = reserve_time(
                time.monotonic(), free_at_s, num_bytes, bytes_per_s
            )
            os.pwrite(file, _FORMAT.pack(free_at_s), 0)
            return starts_at_s
        finally:
            unlock(file)
