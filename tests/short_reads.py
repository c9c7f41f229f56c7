"""Files of which a read gives less than was asked for, as read(2) may, or fails."""

import errno
import io
import os
from pathlib import Path
from typing import Any


class ShortFile(io.FileIO):
    """A file of which each read gives one byte less than was asked for, and at least one."""

    num_short = 0

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 2:
            return super().read(size)
        self.num_short += 1
        return super().read(size - 1)


class FailingFile(io.FileIO):
    """A file that can be opened, and of which every read fails with this number."""

    number = errno.EIO

    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(self.number, os.strerror(self.number))

    def readinto(self, buffer: Any, /) -> int:
        raise OSError(self.number, os.strerror(self.number))


def unreadable_descriptors(path: Path) -> int:
    """Makes every open descriptor of the file in this process one that cannot be read: reading
    fails with EBADF. Returns how many there were.
    """
    own = Path("/proc/self/fd")
    found = [int(fd.name) for fd in own.iterdir() if fd.exists() and fd.resolve() == path]
    unreadable = os.open(path, os.O_WRONLY)
    for descriptor in found:
        os.dup2(unreadable, descriptor)
    os.close(unreadable)
    return len(found)
