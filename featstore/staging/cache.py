"""A directory of staged files under a byte budget, shared by the processes of one host.

Layout, format 1: `<directory>/featstore-staging-1/` (0700, its owner's) holds `<40 hex digits>.staged`, a whole file, and
`<40 hex digits>.part`, one under way, with the length that it will have, which is its reservation. Locks are `flock`s on
the files themselves, so the kernel releases what a dead process held: shared on `.staged` is a pin, exclusive on `.part`
is a download. Locks are taken, and files appear and go, only under an exclusive `flock` on the directory. A file's
modification time is its last use. Nothing that has another name is ever touched.
"""

import contextlib
import enum
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import cast

from featstore.errors import StagingError
from featstore.files import local_path, without_user
from featstore.staging.budget import CachedFile, choose_evictions

FORMAT = 1
_LAYOUT = f"featstore-staging-{FORMAT}"
_PRIVATE = "featstore-private-"
_ALIVE = "alive"
_OURS = re.compile(r"[0-9a-f]{40}\.(staged|part)")


def entry_name(url: str, size_bytes: int, version: str = "") -> str:
    """What a file is called in the cache: 40 hex digits over its URL (without user and password), size and version.

    `version` is an ETag or modification time where one is known. Whatever the URL, the name is no path.
    """
    identity = json.dumps(
        {"format": FORMAT, "url": without_user(url), "size_bytes": size_bytes, "version": version}, sort_keys=True
    )
    return hashlib.sha256(identity.encode()).hexdigest()[:40]


class Refusal(enum.Enum):
    """Why a request must be made again later."""

    BUSY = "another one is downloading the file"
    FULL = "the budget is taken by files that are pinned"


class Pin:
    """A whole file that stays where it is until `release()`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    def release(self) -> None:
        """Allows eviction again; may be called more than once."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _touch(lock)
            _unlock(lock)


class Download:
    """A reserved file, to be filled through `path` and then published, or abandoned."""

    def __init__(self, cache: "Cache", name: str, lock: int) -> None:
        self._cache, self._name, self._lock = cache, name, lock
        self.path = cache.root / f"{name}.part"

    def publish(self) -> Pin:
        """Makes the file appear whole under its name, pinned. The caller has synced it and checked its content."""
        target = self._cache.root / f"{self._name}.staged"
        with self._cache.locked():
            _touch(self._lock)
            self.path.rename(target)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        return Pin(target, self._lock)

    def abandon(self) -> None:
        """Removes what was downloaded and frees the reservation."""
        with self._cache.locked():
            self.path.unlink(missing_ok=True)
            _unlock(self._lock)


class Cache:
    """The cache in `directory`, or in a private temporary directory that `close()` removes. Safe for threads.

    StagingError where the directory cannot be made private.
    """

    def __init__(self, directory: str | None, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._threads = threading.Lock()
        self._num_evicted = 0
        self._remove: Callable[[], object] = lambda: None
        if directory is None:
            base, alive = _private_directory()
            # At the interpreter's exit after the loader's finalizers, which end the thread that still writes there.
            self._remove = Finalize(self, _remove_private, (base, alive, os.getpid()), exitpriority=10)
        else:
            base = cast(Path, local_path(directory))
        self.root = base / _LAYOUT
        _make_private(self.root)
        with self.locked():
            self._list()

    @property
    def num_evicted(self) -> int:
        return self._num_evicted

    def request(self, name: str, size_bytes: int) -> Pin | Download | Refusal:
        """One attempt, without waiting: the file pinned; or the right to download it, its space reserved; or why not."""
        with self.locked():
            return self._pin(name, size_bytes) or self._reserve(name, size_bytes)

    def close(self) -> None:
        """Removes a private directory; a shared one stays for the next run."""
        self._remove()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The right to change the directory, among all threads and processes; held for a few system calls."""
        with self._threads:
            lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                _unlock(lock)

    def _pin(self, name: str, size_bytes: int) -> Pin | None:
        path = self.root / f"{name}.staged"
        lock = _try_lock(path, fcntl.LOCK_SH)
        if lock is None:
            return None
        if os.fstat(lock).st_size != size_bytes:
            path.unlink()
            _unlock(lock)
            return None
        _touch(lock)
        return Pin(path, lock)

    def _reserve(self, name: str, size_bytes: int) -> Download | Refusal:
        files = self._list()
        if any(file.name == f"{name}.part" for file in files):
            return Refusal.BUSY
        if not self._make_room(files, size_bytes):
            return Refusal.FULL
        lock = os.open(self.root / f"{name}.part", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, size_bytes)
        return Download(self, name, lock)

    def _make_room(self, files: list[CachedFile], size_bytes: int) -> bool:
        excess_bytes = sum(file.size_bytes for file in files) + size_bytes - self._budget_bytes
        if excess_bytes <= 0:
            return True
        evictions = choose_evictions([self._with_pin(file) for file in files], excess_bytes)
        for name in evictions or ():
            (self.root / name).unlink()
            self._num_evicted += 1
        return evictions is not None

    def _list(self) -> list[CachedFile]:
        """Our files; those that a dead process left half downloaded are removed first."""
        with os.scandir(self.root) as found:
            entries = [entry for entry in found if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
        kept = [entry for entry in entries if not self._is_left_over(entry)]
        return [CachedFile(name=e.name, size_bytes=e.stat().st_size, used_at_ns=e.stat().st_mtime_ns) for e in kept]

    def _is_left_over(self, entry: os.DirEntry[str]) -> bool:
        if not entry.name.endswith(".part") or (lock := _try_lock(Path(entry.path), fcntl.LOCK_EX)) is None:
            return False
        Path(entry.path).unlink()
        _unlock(lock)
        return True

    def _with_pin(self, file: CachedFile) -> CachedFile:
        lock = _try_lock(self.root / file.name, fcntl.LOCK_EX)
        if lock is not None:
            _unlock(lock)
        return CachedFile(name=file.name, size_bytes=file.size_bytes, used_at_ns=file.used_at_ns, is_pinned=lock is None)


def _try_lock(path: Path, kind: int) -> int | None:
    """A descriptor that holds the lock; None where there is no such file, or another one holds a lock against it."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _unlock(lock: int) -> None:
    """Unlocks before closing: a forked child may hold a copy of the descriptor, which would keep the lock."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _touch(lock: int) -> None:
    """Notes a use, finer than the kernel's own clock for files."""
    now_ns = time.time_ns()
    os.utime(lock, ns=(now_ns, now_ns))


def _make_private(root: Path) -> None:
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"it must be a directory of user {os.getuid()}")
        if stat.S_IMODE(found.st_mode) != 0o700:
            root.chmod(0o700)
    except OSError as error:
        raise StagingError(f"staging.directory {root.parent} cannot hold the cache {root.name}: {error}") from error


def _private_directory() -> tuple[Path, int]:
    """A new temporary directory and the lock that says its owner lives; those of dead owners are removed."""
    for left_over in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}*/{_ALIVE}"):
        with contextlib.suppress(PermissionError):
            lock = _try_lock(left_over, fcntl.LOCK_EX)
            if lock is not None:
                shutil.rmtree(left_over.parent, ignore_errors=True)
                _unlock(lock)
    directory = Path(tempfile.mkdtemp(prefix=_PRIVATE))
    hidden = directory / f".{_ALIVE}"
    alive = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    hidden.rename(directory / _ALIVE)
    return directory, alive


def _remove_private(base: Path, alive: int, owner: int) -> None:
    """Not in a forked child: the directory is its parent's."""
    if os.getpid() == owner:
        shutil.rmtree(base, ignore_errors=True)
        _unlock(alive)
