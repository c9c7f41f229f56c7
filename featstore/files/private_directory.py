"""Directories that only their owner can use, and temporary ones that are removed by their process
or, after a crash, by the next one.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from functools import partial
from pathlib import Path

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import StagingError
from featstore.base.named_errors import told_as
from featstore.base.processes import OwnProcess

# How often a directory or file that another process removes meanwhile is made again. More removals
# in a row are no accident, and an error.
MAX_REMOVALS = 10

_PREFIX = "featstore-private-"
_ALIVE = "alive"
# The errors of open() for a missing file, a link, a directory and a socket.
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO)


def try_lock(path: Path, kind: int) -> int | None:
    """Tries to lock a file with `flock`.

    Args:
        path: A regular file.
        kind: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.

    Returns:
        A descriptor that holds the lock, to be passed to `unlock`. None if a conflicting lock is
        held, or if `path` is not a regular file or does not exist.
    """
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
    except BaseException as error:
        os.close(lock)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # The system names none of an open file.
        raise
    os.close(lock)
    return None


def unlock(lock: int) -> None:
    """Releases a lock of `try_lock` and closes its descriptor.

    Closing alone would not release the lock if a forked child has a copy of the descriptor. Where
    there is none it does, so that a release that fails is no error: what was done under the lock
    must not be lost with it.
    """
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def disk_error(what: str, error: OSError) -> StagingError:
    """The error that the disk of the cache failed, as by `told_as`."""
    return told_as(StagingError, what, error, "or name another staging.directory")


def make_private(root: Path) -> None:
    """Creates a directory with mode 0700, unless it exists.

    If another process removes it meanwhile, it is created again, up to `MAX_REMOVALS` times.

    Raises:
        StagingError: It is a link, belongs to another user, or cannot be created or written.
    """
    for tries_left in reversed(range(MAX_REMOVALS)):
        try:
            _make_private(root)
            return
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or not tries_left:
                what = f"staging.directory {root.parent} cannot hold the cache {root.name}"
                raise disk_error(what, error) from error


def _make_private(root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"it must be a directory of user {os.getuid()}")
    if stat.S_IMODE(status.st_mode) != 0o700:
        root.chmod(0o700)
    if not os.access(root, os.W_OK):
        root.lstat()  # FileNotFoundError if another process has removed it by now.
        raise PermissionError("it cannot be written")


class PrivateDirectory:
    """A new temporary directory, owned by the process that makes it. Those of dead owners are
    removed.

    A locked file in it, `alive`, shows that the owner, or a child forked from it, lives.

    Attributes:
        path: The directory, mode 0700.

    Raises:
        StagingError: It cannot be made.
    """

    def __init__(self) -> None:
        _remove_leftovers()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock: int | None = _lock_alive(self.path)
        except OSError as error:
            what = f"{error.filename or tempfile.gettempdir()}: no temporary directory can be made"
            raise disk_error(what, error) from error
        self._owner = OwnProcess()

    def remove(self) -> None:
        """Removes the directory. Does nothing in another process than the owner, and when called
        again.
        """
        if self._owner.is_this() and self._lock is not None:
            lock, self._lock = self._lock, None
            _remove_locked(self.path, lock)


def _lock_alive(directory: Path) -> int:
    """Makes and locks the file that shows that the owner lives. Removes the directory if it cannot
    be.
    """
    # The file gets its name after it is locked, so that no other process sees it unlocked.
    hidden = directory / f".{_ALIVE}"
    with cleaned_up_on_failure(partial(shutil.rmtree, directory, ignore_errors=True)):
        lock = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with cleaned_up_on_failure(partial(unlock, lock)):
            fcntl.flock(lock, fcntl.LOCK_EX)
            hidden.rename(directory / _ALIVE)
    return lock


def _remove_locked(directory: Path, lock: int) -> None:
    """Removes a directory, and then its lock: others remove a directory whose lock is free, and
    what is left of it if it cannot be removed.
    """
    try:
        with contextlib.suppress(OSError):  # `ignore_errors` does not ignore those of fstat.
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        unlock(lock)


def _remove_leftovers() -> None:
    """Removes directories of dead owners. Failures are left to the next process."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for leftover in [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_if_dead(leftover)


def _remove_if_dead(directory: Path) -> None:
    # Every user can write to the temporary directory, so anything may have such a name. Only a
    # directory of this user that nobody else can write to is removed.
    status = directory.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or stat.S_IMODE(status.st_mode) & 0o022
    ):
        return
    lock = try_lock(directory / _ALIVE, fcntl.LOCK_EX)
    if lock is not None:
        _remove_locked(directory, lock)
