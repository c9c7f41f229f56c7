"""A directory of staged files under a byte budget, shared by the processes of one host.

Layout, format 3: `<directory>/featstore-staging-3/` (0700, its owner's) holds the following files.
`<name>` is 40 hex digits, and `<bytes>` how much of the budget the file takes.

- `<name>.<bytes>.staged`: a file of its full length. If only ranges were staged, the rest is holes.
- `<name>.<bytes>.held`: its record, which says which bytes are there. It is created before the file
  and removed after it.
- `<name>.<bytes>.part`: a download in progress. Its bytes are its reservation.
- `limits`: eight bytes of the bandwidth limit, if one is set (limits.py).

Locks are `flock`s on the files themselves, so the kernel releases what a dead process held. A
shared lock on `.staged` is a pin, an exclusive one on `.part` a download. These locks are taken,
and files are created and removed, only under an exclusive `flock` on the directory. Lock order in a
process: the cache's thread lock, the directory, then single files, which are only tried and never
waited for. A file's modification time is its last use. Files with other names are never touched.
"""

import contextlib
import enum
import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import cast

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import FeatstoreError, StagingError
from featstore.base.redaction import without_user
from featstore.files.looks import exists, is_directory_at
from featstore.files.private_directory import (
    MAX_REMOVALS,
    PrivateDirectory,
    disk_error,
    make_private,
    try_lock,
    unlock,
)
from featstore.files.storage import local_path
from featstore.staging.budget import choose_evictions, excess
from featstore.staging.cache_listing import (
    HELD,
    PART,
    STAGED,
    CacheListing,
    LastUses,
    StagedNames,
    number_of,
)
from featstore.staging.record import FORMAT, Record, checksum
from featstore.staging.retry import Stopped

_LOG = logging.getLogger(__name__)
_LAYOUT = f"featstore-staging-{FORMAT}"
_LIMITS = "limits"
# The most that is read of a record: a bound for what somebody else may have put in its place.
_MAX_RECORD_BYTES = 64 << 20
# How much is read at a time to check a file; between two blocks the check can be stopped.
_BLOCK_BYTES = 4 << 20
# How seldom uses of a steady file are noted. Each note lets its readers check its bytes again.
_STEADY_NS = 60 * 10**9


def entry_name(url: str, size_bytes: int, version: str = "") -> str:
    """The name of a file in the cache: 40 hex digits, whatever the URL holds.

    Args:
        url: The file's URL; a user and password in it do not count.
        size_bytes: The file's size.
        version: An ETag or modification time, if one is known.
    """
    identity = json.dumps(
        {"format": FORMAT, "url": without_user(url), "size_bytes": size_bytes, "version": version},
        sort_keys=True,
    )
    return hashlib.sha256(identity.encode()).hexdigest()[:40]


class Refusal(enum.Enum):
    """Why a request must be made again later. The text is for the log."""

    BUSY = "another one is downloading the file"
    FULL = "the budget, or the free space of the disk, is taken by files that are pinned"
    CROWDED = "staging.max_connections downloads are in progress"


class RemovedError(StagingError):
    """Somebody removed a download from the cache's directory, or the directory itself."""


def removed_error(path: object) -> RemovedError:
    """The error for a path of the cache that does not exist any more."""
    return RemovedError(
        f"{path}: expected it in the cache, found nothing: somebody removed it; remove staged "
        "files with `featstore stage clear`"
    )


class Pin:
    """A staged file that is not evicted until `release()`.

    Attributes:
        path: The file.
        record: Which of its bytes are there.
    """

    def __init__(self, path: Path, lock: int, record: Record, *, is_steady: bool = False) -> None:
        self.path, self.record, self._is_steady = path, record, is_steady
        # A descriptor of the file, which holds its shared lock.
        self._lock: int | None = lock

    @property
    def num_bytes(self) -> int:
        """How much of the budget the file takes."""
        return number_of(self.path.name)

    @property
    def descriptor(self) -> int:
        """The file's descriptor, which `release()` closes."""
        assert self._lock is not None
        return self._lock

    @property
    def open_path(self) -> Path:
        """A path that opens the file until `release()`, even if somebody has removed it.

        It goes through the descriptor that holds the lock.
        """
        path = Path(f"/proc/self/fd/{self._lock}")
        return path if exists(path) else self.path

    def is_intact(self, stop: threading.Event) -> bool:
        """Whether the file's bytes still have the checksums of the download.

        Raises:
            Stopped: `stop` was set meanwhile.
        """
        return all(
            _crc(self.descriptor, first, end, stop) == crc for first, end, crc in self.record.sums
        )

    def release(self) -> None:
        """Allows eviction again, and notes the use. May be called more than once."""
        lock, self._lock = self._lock, None
        if lock is not None:
            if not self._is_steady:
                _touch(lock)
            unlock(lock)


class Download:
    """A reservation in the cache: a file to fill through `path`, and then to publish or abandon.

    One thread fills it. Another one that does not want to wait may abandon it: the first thread
    then gets Stopped at its next call.

    Args:
        cache: The cache.
        name: The file's name, see `entry_name`.
        num_bytes: How much of the budget is reserved.
        lock: A descriptor of the file, which holds its exclusive lock.
        others: Names of staged files that hold parts of the same file.
        is_steady: As of `Cache.request`.
    """

    def __init__(
        self,
        cache: "Cache",
        name: str,
        num_bytes: int,
        lock: int,
        others: Iterable[str],
        *,
        is_steady: bool = False,
    ) -> None:
        self._cache, self._name, self._others = cache, name, tuple(others)
        self._is_steady = is_steady
        self._lock: int | None = lock
        self.num_bytes = num_bytes

    @property
    def path(self) -> Path:
        """The file to fill. `reserve()` changes it."""
        return self._cache.root / f"{self._name}.{self.num_bytes}{PART}"

    def reserve(self, num_bytes: int) -> Refusal | None:
        """Changes the reservation to `num_bytes`. Reserving less never fails.

        Returns:
            None, or why the call must be repeated later.
        """
        with self._held():
            if num_bytes > self.num_bytes and not self._cache.make_room(num_bytes - self.num_bytes):
                return Refusal.FULL
            self._rename(num_bytes)
        return None

    def publish(self, record: Record) -> Pin:
        """Makes the file appear under its name, and pins it.

        The caller has synced the file and checked its content. Staged files of the same name that
        hold less are removed, unless they are pinned.
        """
        with self._held() as lock:
            self._rename(self._cache.free_number(self._name, record.held_bytes))
            target = self.path.with_suffix(STAGED)
            _write_record(self.path.with_suffix(HELD), record)
            _touch(lock)
            self.path.rename(target)
            # From a download to a pin. The change is not atomic, but the directory is locked.
            fcntl.flock(lock, fcntl.LOCK_SH)
            for other in self._others:
                if number_of(other) < record.held_bytes:
                    self._cache.remove_unpinned(other)
            self._lock = None  # Last: until then `abandon` closes it after an error.
        return Pin(target, lock, record, is_steady=self._is_steady)

    def abandon(self) -> None:
        """Removes the file and frees the reservation, unless the file was published.

        May be called more than once, and from another thread than the one that fills the file.
        """
        with self._cache.alone:
            lock, self._lock = self._lock, None
            if lock is None:
                return
            try:
                # A file that cannot be removed is without a lock: whoever lists it removes it.
                with contextlib.suppress(OSError), self._cache.directory_locked():
                    self.path.unlink(missing_ok=True)
            finally:
                unlock(lock)

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        """Locks the directory, and yields this download's own lock.

        Raises:
            Stopped: The download was abandoned.
            RemovedError: Somebody removed its file.
        """
        if self._lock is None:
            raise Stopped
        with self._cache.locked():
            if self._lock is None:  # Abandoned while this thread waited for the directory.
                raise Stopped
            yield self._lock

    def _rename(self, num_bytes: int) -> None:
        self.path.rename(self._cache.root / f"{self._name}.{num_bytes}{PART}")
        self.num_bytes = num_bytes


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a cache, for all processes that share it together.

    Attributes:
        budget_bytes: How much the cache may hold.
        min_free_bytes: How much must stay free on the disk.
        max_connections: Downloads at one time; None does not limit them.
    """

    budget_bytes: int
    min_free_bytes: int = 0
    max_connections: int | None = None


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """A staged file, as `featstore stage list` shows it.

    Attributes:
        record: Where it came from, and which of its bytes are there.
        path: The file.
        used_at_ns: When it was last used, in ns since the epoch.
        is_pinned: Whether somebody reads it now.
    """

    record: Record
    path: Path
    used_at_ns: int
    is_pinned: bool


class Cache:
    """A cache of staged files. Thread-safe, and shared with the other processes of the host.

    Args:
        directory: The cache's directory. None is a private temporary directory, which `close()`
            removes.
        limits: What all processes together must keep to.

    Attributes:
        root: The directory that holds the files of this format.
        limits_path: The file of the bandwidth limit, see `Throttle`.
        alone: The exclusive right to change the cache's objects, among the threads of this process.
        num_evicted: How many files this object has evicted.

    Raises:
        StagingError: The directory cannot be made private.
    """

    def __init__(self, directory: str | None, limits: Limits) -> None:
        self._limits = limits
        self.alone = threading.Lock()
        self.num_evicted = 0
        self._remove: Callable[[], object] = lambda: None
        if directory is None:
            private = PrivateDirectory()
            base = private.path
            # At the interpreter's exit this runs after the loader's finalizers, which end the
            # thread that still writes there.
            self._remove = Finalize(self, private.remove, exitpriority=10)
        else:
            base = cast(Path, local_path(directory))
        self.root = base / _LAYOUT
        self.limits_path = self.root / _LIMITS
        make_private(self.root)
        self._staged_names, self._last_uses = StagedNames(self.root), LastUses(self.root)
        with self.locked():
            self._list()

    @staticmethod
    def is_at(directory: str) -> bool:
        """Whether the directory holds a cache."""
        return is_directory_at(cast(Path, local_path(directory)) / _LAYOUT)

    def holds(self, path: object) -> bool:
        """Whether a path, as an error names it, is the cache's directory or below it."""
        return isinstance(path, str | Path) and Path(path).is_relative_to(self.root)

    def request(
        self,
        name: str,
        size_bytes: int | None,
        num_bytes: int,
        *,
        beyond_bytes: int = -1,
        is_steady: bool = False,
    ) -> Pin | Download | Refusal:
        """Pins a file, or reserves its download. Does not wait.

        Args:
            name: The file's name, see `entry_name`.
            size_bytes: The file's size; None if only its record knows it.
            num_bytes: What to reserve for a download.
            beyond_bytes: Staged files that hold no more than this are not good enough.
            is_steady: Whether uses are noted at most once a minute, so that the file's times seldom
                change unless somebody writes to it.

        Returns:
            A pin of the whole file, or else of the staged file that holds most of it; a download;
            or why the call must be repeated later.

        Raises:
            StagingError: Something that is no file has the download's name.
        """
        with self.locked():
            # Whole files are asked for most often. They need no listing: 0.2 ms instead of 29 with
            # 8,000 files in the cache (docs/design/staging.md).
            terms = name, size_bytes, beyond_bytes, is_steady
            if size_bytes is not None:
                whole = CacheListing([f"{name}.{size_bytes}{STAGED}"])
                if (pin := self._pin(whole, *terms)) is not None:
                    return pin
            if (pin := self._pin(listing := self._list(), *terms)) is not None:
                return pin
            return self._reserve(listing, name, size_bytes, num_bytes, is_steady)

    def has(self, name: str) -> bool:
        """Whether all or a part of the file of this name is staged. Takes no lock."""
        with self.named_errors():
            return self._staged_names.has(name)

    def entries(self) -> list[CacheEntry]:
        """The staged files, the last used first."""
        with self.locked():
            entries = [
                CacheEntry(
                    record=record,
                    path=path,
                    used_at_ns=path.stat().st_mtime_ns,
                    is_pinned=self._is_pinned(name),
                )
                for name in self._list().staged
                if (record := self._record(name)) is not None and (path := self.root / name)
            ]
        return sorted(entries, key=lambda entry: (-entry.used_at_ns, entry.path))

    def clear(self) -> list[str]:
        """Removes all files that nobody reads. Returns their names, see `number_of`."""
        with self.locked():
            listing = self._list()
            names = [name for name in listing.staged if not self._is_pinned(name)]
            for name in names:
                self._unlink(name)
            # Nobody is left whom the bandwidth limit concerns.
            if len(names) == len(listing.staged) + len(listing.parts) + len(listing.left_over):
                self.limits_path.unlink(missing_ok=True)
        return names

    def discard(self, pin: Pin) -> None:
        """Releases a pinned file that proved wrong, and removes it unless others have it pinned."""
        pin.release()
        with self.locked():
            self.remove_unpinned(pin.path.name)

    def remove(self, pin: Pin) -> None:
        """Removes a pinned file whose bytes have changed, even if others have it pinned."""
        try:
            with self.locked():
                self._unlink(pin.path.name)
        finally:
            pin.release()

    def close(self) -> None:
        """Removes a private directory; a shared one stays for the next run."""
        self._remove()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The exclusive right to change the directory, among all threads and processes.

        Hold it for a few system calls only. Not reentrant.

        Raises:
            StagingError: A file of the cache, or its directory, fails the block.
            RemovedError: Somebody removed it.
        """
        with self.alone, self.directory_locked():
            yield

    @contextlib.contextmanager
    def directory_locked(self) -> Iterator[None]:
        """The exclusive right to change the directory, among processes. Call it under `alone`."""
        with self.named_errors():
            lock = self._open_root()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                unlock(lock)

    @contextlib.contextmanager
    def named_errors(self, title: str = "") -> Iterator[None]:
        """Turns errors of the system within the block into a StagingError that names the file of
        the cache, or else the cache, and a RemovedError if it is gone. Errors pass that name a file
        elsewhere, and those of featstore.

        Args:
            title: What is kept there, if it is not the cache itself that fails.
        """
        try:
            yield
        except OSError as error:
            is_elsewhere = isinstance(error.filename, str) and not self.holds(error.filename)
            if is_elsewhere or isinstance(error, FeatstoreError):
                raise
            path = error.filename if self.holds(error.filename) else self.root
            if isinstance(error, FileNotFoundError):
                raise removed_error(path) from None
            what = f"{title} cannot be written to {path}" if title else f"{path}: the cache fails"
            raise disk_error(what, error) from error

    def _open_root(self) -> int:
        """Opens the cache's directory, and makes it again if somebody removed it.

        Raises:
            RemovedError: It is removed again and again.
        """
        for _ in range(MAX_REMOVALS):
            try:
                return os.open(
                    self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                )
            except FileNotFoundError:
                _LOG.warning("somebody removed the cache %s: it is created again", self.root)
                make_private(self.root)
        raise removed_error(self.root)

    def make_room(self, num_bytes: int, listing: CacheListing | None = None) -> bool:
        """Evicts files until `num_bytes` more fit. Call it under `locked()`.

        Returns:
            False if they cannot fit; then nothing is evicted.
        """
        listing = listing or self._list()
        excess_bytes = excess(
            num_bytes,
            used_bytes=sum(map(number_of, (*listing.staged, *listing.parts, *listing.left_over))),
            unwritten_bytes=sum(map(self._unwritten_bytes, listing.parts)),
            free_bytes=_free_bytes(self.root),
            budget_bytes=self._limits.budget_bytes,
            min_free_bytes=self._limits.min_free_bytes,
        )
        unpinned = (
            name for name in self._last_uses.in_order(listing.staged) if not self._is_pinned(name)
        )
        evictions = choose_evictions(unpinned, number_of, excess_bytes)
        for name in evictions or ():
            self._unlink(name)
            self.num_evicted += 1
        return evictions is not None

    def free_number(self, name: str, num_bytes: int) -> int:
        """The first free number from `num_bytes` on for a staged file's name.

        A number is taken if a pinned file that holds other bytes has it, or something that is no
        file. Call it under `locked()`.
        """
        while not self._is_free(f"{name}.{num_bytes}{STAGED}"):
            num_bytes += 1
        return num_bytes

    def _is_free(self, name: str) -> bool:
        path = self.root / name
        if _exists(path) and not self.remove_unpinned(name):
            return False
        return path.with_suffix(HELD).is_symlink() or not is_directory_at(path.with_suffix(HELD))

    def remove_unpinned(self, name: str) -> bool:
        """Removes a file. Call it under `locked()`.

        Returns:
            False if the file is pinned, being downloaded, or does not exist.
        """
        lock = try_lock(self.root / name, fcntl.LOCK_EX)
        if lock is None:
            return False
        try:
            self._unlink(name)
        finally:
            unlock(lock)
        return True

    def _unwritten_bytes(self, part: str) -> int:
        """What a download has reserved and not written yet; 0 if somebody removed it meanwhile."""
        try:
            # `st_blocks` counts units of 512 bytes, whatever the file system's block size.
            return max(0, number_of(part) - (self.root / part).stat().st_blocks * 512)
        except FileNotFoundError:
            return 0

    def _pin(
        self,
        listing: CacheListing,
        name: str,
        size_bytes: int | None,
        beyond_bytes: int,
        is_steady: bool,
    ) -> Pin | None:
        """Pins the largest staged file of this name that holds more than `beyond_bytes`."""
        for staged in sorted(listing.staged_of(name), key=number_of, reverse=True):
            path = self.root / staged
            if number_of(staged) <= beyond_bytes or (lock := try_lock(path, fcntl.LOCK_SH)) is None:
                continue
            with contextlib.ExitStack() as held:
                held.callback(unlock, lock)
                record = self._record(staged)
                if (
                    record is not None
                    and os.fstat(lock).st_size == record.size_bytes
                    and size_bytes in (None, record.size_bytes)
                ):
                    unused_ns = abs(time.time_ns() - os.fstat(lock).st_mtime_ns)
                    if not is_steady or unused_ns > _STEADY_NS:
                        _touch(lock)
                    held.pop_all()
                    return Pin(path, lock, record, is_steady=is_steady)
                why = "cannot be read" if record is None else "is of another size"
                _LOG.warning("%s: its record %s; the file is staged again", path, why)
                self._unlink(staged)
                listing.staged.remove(staged)
        return None

    def _reserve(
        self,
        listing: CacheListing,
        name: str,
        size_bytes: int | None,
        num_bytes: int,
        is_steady: bool,
    ) -> Download | Refusal:
        if any(part.startswith(name) for part in listing.parts):
            return Refusal.BUSY
        if (
            self._limits.max_connections is not None
            and len(listing.parts) >= self._limits.max_connections
        ):
            return Refusal.CROWDED
        if not self.make_room(num_bytes, listing):
            return Refusal.FULL
        path = self.root / f"{name}.{num_bytes}{PART}"
        if _exists(path):  # A regular file would be among the listed parts.
            raise StagingError(
                f"{path}: expected nothing there, found something that is no file; remove it, or "
                "clear the cache"
            )
        lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with (
            cleaned_up_on_failure(partial(unlock, lock)),
            cleaned_up_on_failure(partial(path.unlink, missing_ok=True)),
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, size_bytes or 0)
        others = listing.staged_of(name)
        return Download(self, name, num_bytes, lock, others, is_steady=is_steady)

    def _list(self) -> CacheListing:
        """Lists the directory, after removing what dead processes left behind."""
        listing = CacheListing.of(self.root)
        listing.parts = [name for name in listing.parts if not self.remove_unpinned(name)]
        for name in listing.left_over:
            if name.endswith(HELD):
                (self.root / name).unlink(missing_ok=True)
        # A file without a record stays while somebody reads it, and takes room of the budget.
        listing.left_over = [
            name
            for name in listing.left_over
            if name.endswith(STAGED) and not self.remove_unpinned(name)
        ]
        return listing

    def _unlink(self, name: str) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        if path.suffix == STAGED:
            with contextlib.suppress(IsADirectoryError):  # Then it is none of ours.
                path.with_suffix(HELD).unlink(missing_ok=True)

    def _record(self, name: str) -> Record | None:
        path = (self.root / name).with_suffix(HELD)
        try:
            with open(path, encoding="utf-8", errors="replace", opener=_open_record) as text:
                return Record.from_json(text.read(_MAX_RECORD_BYTES))
        except OSError:  # Also a directory, or a pipe without a writer.
            return None

    def _is_pinned(self, name: str) -> bool:
        lock = try_lock(self.root / name, fcntl.LOCK_EX)
        if lock is not None:
            unlock(lock)
        return lock is None


def _write_record(path: Path, record: Record) -> None:
    """Writes the record as a whole, or leaves none.

    Whatever has its name is removed first and never written into, because it may be a link.
    """
    remove = partial(path.unlink, missing_ok=True)
    remove()
    with (
        cleaned_up_on_failure(remove),
        open(path, "x", encoding="utf-8", opener=_open_record) as text,
    ):
        text.write(record.to_json())


def _open_record(path: str, flags: int) -> int:
    # O_NONBLOCK, as opening a pipe in the record's place would wait for a writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def _crc(file: int, first: int, end: int, stop: threading.Event) -> int:
    """The CRC-32 of a span, as far as the file reaches."""
    crc = 0
    while first < end and (block := os.pread(file, min(_BLOCK_BYTES, end - first), first)):
        if stop.is_set():
            raise Stopped
        crc, first = checksum(block, crc), first + len(block)
    return crc


def _exists(path: Path) -> bool:
    """Whether anything has this path, a link to nothing included. OSError if that is unknown."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _touch(lock: int) -> None:
    """Notes a use now, at a finer resolution than the kernel's own file times. One that cannot be
    noted is not: the file is only evicted earlier.
    """
    now_ns = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(lock, ns=(now_ns, now_ns))


def _free_bytes(directory: Path) -> int:
    """Free space of the disk. Where the system does not tell, it limits nothing."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return sys.maxsize
