"""A disk without room."""

import os
from pathlib import Path


def fill(disk: Path, *, leave_bytes: int = 0) -> Path:
    """Takes all space but about `leave_bytes`, by a file that is returned."""
    room, ballast = os.statvfs(disk), disk / "ballast"
    ballast.write_bytes(b"x" * (room.f_bavail * room.f_frsize - leave_bytes))
    return ballast
