"""A disk without room."""

import errno
import os
from pathlib import Path


def fill(disk: Path, *, leave_bytes: int = 0) -> Path:
    """Takes all space but about `leave_bytes`, by a file that is returned. Others may write to the
    disk meanwhile.
    """
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while (room_bytes := _free_bytes(disk) - leave_bytes) > 0:
            try:
                file.write(b"x" * min(room_bytes, 1 << 20))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                break
    return ballast


def _free_bytes(disk: Path) -> int:
    room = os.statvfs(disk)
    return room.f_bavail * room.f_frsize
