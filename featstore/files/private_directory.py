"""Directories that only their owner can use, and temporary ones that go with their process or with
the next one.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from featstore.errors import StagingError

# How many removals by somebody else, one right after the other, are taken for chance.
MOST_REMOVALS = 10

_PREFIX = "featstore-private-"
_ALIVE = "alive"
# What open() says of nothing, a link, a directory and a socket.
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO)


def try_lock(path: Path, kind: int) -> int | None:
    """A descriptor that holds the `flock`; None where another one holds a lock against it, and
    where there is no such file, but nothing, a link, a directory or a pipe."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def unlock(lock: int) -> None:
    """Unlocks before closing: a forked child may hold a copy of the descriptor, which would keep
    the lock.
    """
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def make_private(root: Path) -> None:
    """Makes the directory, mode 0700. StagingError where it is a link, another user's, or cannot be
    made.

    One that somebody removes while it is looked at is made again, a few times.
    """
    for tries_left in reversed(range(MOST_REMOVALS)):
        try:
            _make_private(root)
            return
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or not tries_left:
                raise StagingError(
                    f"staging.directory {root.parent} cannot hold the cache {root.name}: {error}"
                ) from error


def _make_private(root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"it must be a directory of user {os.getuid()}")
    if stat.S_IMODE(found.st_mode) != 0o700:
        root.chmod(0o700)
    if not os.access(root, os.W_OK):
        raise PermissionError("it cannot be written")


class PrivateDirectory:
    """A new temporary directory of its owner, the process that makes it; those of dead owners are
    removed.

    A locked file in it, `alive`, says that the owner lives, or a child that was forked from it.
    """

    def __init__(self) -> None:
        _remove_left_over()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        hidden = self.path / f".{_ALIVE}"
        self._lock: int | None = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        hidden.rename(self.path / _ALIVE)
        self._owner = os.getpid()

    def remove(self) -> None:
        """Removes it; not in a copy that was forked or sent to another process. May be called more
        than once.
        """
        if os.getpid() == self._owner and self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            lock, self._lock = self._lock, None
            unlock(lock)


def _remove_left_over() -> None:
    """Removes directories of dead owners. Where everybody writes there may be anything under such a
    name: what is not this user's is left alone, and what cannot be removed is for the next one."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for left_over in [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_if_dead(left_over)


def _remove_if_dead(directory: Path) -> None:
    found = directory.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) & 0o022
    ):
        return
    lock = try_lock(directory / _ALIVE, fcntl.LOCK_EX)
    if lock is not None:
        shutil.rmtree(directory, ignore_errors=True)
        unlock(lock)
