"""A directory of staged files under a byte budget, shared by the processes of one host.

Layout, format 3: `<directory>/featstore-staging-3/` (0700, its owner's) holds, `<name>` being 40
hex digits and `<bytes>` what the file takes of the budget:

- `<name>.<bytes>.staged`, a file of its full length; where only ranges were staged the rest of it
  are holes.
- `<name>.<bytes>.held`, its record: which bytes are there. It comes before the file and goes after
  it.
- `<name>.<bytes>.part`, a file under way; its bytes are its reservation.
- `limits`, eight bytes of the bandwidth limit, where one is set.

Locks are `flock`s on the files themselves, so the kernel releases what a dead process held: shared
on `.staged` is a pin, exclusive on `.part` is a download. Locks are taken, and files appear and go,
only under an exclusive `flock` on the directory. A file's modification time is its last use.
Nothing that has another name is ever touched.
"""

import contextlib
import enum
import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import cast

from featstore.errors import StagingError
from featstore.files.private_directory import (
    MAX_REMOVALS,
    PrivateDirectory,
    make_private,
    try_lock,
    unlock,
)
from featstore.files.storage import local_path
from featstore.redaction import without_user
from featstore.staging.budget import CachedFile, choose_evictions, excess
from featstore.staging.cache_listing import HELD, PART, STAGED, Glance, Listing, Uses, number_of
from featstore.staging.record import FORMAT, Record, checksum
from featstore.staging.retry import Stopped

_LOG = logging.getLogger(__name__)
_LAYOUT = f"featstore-staging-{FORMAT}"
_LIMITS = "limits"
_RECORD_BYTES = 64 << 20
_BLOCK_BYTES = 4 << 20


def entry_name(url: str, size_bytes: int, version: str = "") -> str:
    """What a file is called in the cache: 40 hex digits over its URL (without user and password),
    size and version.

    `version` is an ETag or modification time where one is known. Whatever the URL, the name is no
    path.
    """
    identity = json.dumps(
        {"format": FORMAT, "url": without_user(url), "size_bytes": size_bytes, "version": version},
        sort_keys=True,
    )
    return hashlib.sha256(identity.encode()).hexdigest()[:40]


class Refusal(enum.Enum):
    """Why a request must be made again later."""

    BUSY = "another one is downloading the file"
    FULL = "the budget, or what is free of the disk, is taken by files that are pinned"
    CROWDED = "staging.max_connections downloads are under way"


class RemovedError(StagingError):
    """A download that somebody removed from the cache's directory, or all of that."""


def removed(path: object) -> RemovedError:
    """The error for a path of the cache that is no longer there."""
    return RemovedError(
        f"{path}: expected it in the cache, found nothing: somebody removed it; remove staged "
        f"files "
        "with `featstore stage clear`"
    )


class Pin:
    """A file that stays where it is until `release()`; `record` says which of its bytes are
    there.
    """

    def __init__(self, path: Path, lock: int, record: Record) -> None:
        self.path, self.record = path, record
        self._lock: int | None = lock

    @property
    def num_bytes(self) -> int:
        """What the file takes of the budget."""
        return number_of(self.path.name)

    @property
    def open_path(self) -> Path:
        """Leads to the file until `release()`, also where somebody has removed it: by the
        descriptor that is open here.
        """
        path = Path(f"/proc/self/fd/{self._lock}")
        return path if path.exists() else self.path

    def is_intact(self, stop: threading.Event) -> bool:
        """Whether the file's bytes are those that were downloaded. Stopped once that is set."""
        assert self._lock is not None
        return all(
            _crc(self._lock, first, end, stop) == crc for first, end, crc in self.record.sums
        )

    def release(self) -> None:
        """Allows eviction again; may be called more than once."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _touch(lock)
            unlock(lock)


class Download:
    """A reserved file, to be filled through `path` and then published, or abandoned. `path` changes
    with `reserve()`; `others` are staged files that hold some of the same one.

    Whoever does not wait for the thread that fills it may abandon it: that thread is Stopped at its
    next step.
    """

    def __init__(
        self, cache: "Cache", name: str, num_bytes: int, lock: int, others: Iterable[str]
    ) -> None:
        self._cache, self._name, self._others = cache, name, tuple(others)
        self._lock: int | None = lock
        self.num_bytes = num_bytes

    @property
    def path(self) -> Path:
        return self._cache.root / f"{self._name}.{self.num_bytes}{PART}"

    def reserve(self, num_bytes: int) -> Refusal | None:
        """Makes the reservation `num_bytes`; or says why that must be tried again later. Never why
        not to take less.
        """
        with self._held():
            if num_bytes > self.num_bytes and not self._cache.make_room(num_bytes - self.num_bytes):
                return Refusal.FULL
            self._rename(num_bytes)
        return None

    def publish(self, record: Record) -> Pin:
        """Makes the file appear under its name, pinned. The caller has synced it and checked its
        content.

        Files of the same name that hold less go, unless they are pinned.
        """
        with self._held() as lock:
            self._rename(self._cache.free_number(self._name, record.held_bytes))
            target = self.path.with_suffix(STAGED)
            _write_record(self.path.with_suffix(HELD), record)
            _touch(lock)
            self.path.rename(target)
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._lock = None
            for other in self._others:
                if number_of(other) < record.held_bytes:
                    self._cache.remove_unpinned(other)
        return Pin(target, lock, record)

    def abandon(self) -> None:
        """Removes what was downloaded and frees the reservation, unless it was published. May be
        called more than once.
        """
        if self._lock is None:
            return
        with contextlib.suppress(Stopped), self._held() as lock:
            self._lock = None
            self.path.unlink(missing_ok=True)
            unlock(lock)

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        """The directory locked, and this download's own lock. Stopped where it was abandoned,
        RemovedError where its file is gone."""
        if self._lock is None:
            raise Stopped
        with self._cache.locked():
            if self._lock is None:
                raise Stopped
            try:
                yield self._lock
            except FileNotFoundError:
                raise removed(self.path) from None

    def _rename(self, num_bytes: int) -> None:
        before, self.num_bytes = self.path, num_bytes
        before.rename(self.path)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What all processes that share a cache keep to. `max_connections`: downloads at one time."""

    budget_bytes: int
    min_free_bytes: int = 0
    max_connections: int | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file in the cache, as a listing shows it."""

    record: Record
    path: Path
    used_at_ns: int
    is_pinned: bool


class Cache:
    """The cache in `directory`, or in a private temporary directory that `close()` removes. Safe
    for threads.

    StagingError where the directory cannot be made private.
    """

    def __init__(self, directory: str | None, limits: Limits) -> None:
        self._limits = limits
        self._threads = threading.Lock()
        self._num_evicted = 0
        self._remove: Callable[[], object] = lambda: None
        if directory is None:
            private = PrivateDirectory()
            base = private.path
            # At the interpreter's exit after the loader's finalizers, which end the thread that
            # still writes there.
            self._remove = Finalize(self, private.remove, exitpriority=10)
        else:
            base = cast(Path, local_path(directory))
        self.root = base / _LAYOUT
        make_private(self.root)
        self._glance, self._uses = Glance(self.root), Uses(self.root)
        with self.locked():
            self._list()

    @staticmethod
    def is_at(directory: str) -> bool:
        """Whether there is a cache in the directory."""
        return (cast(Path, local_path(directory)) / _LAYOUT).is_dir()

    @property
    def num_evicted(self) -> int:
        return self._num_evicted

    @property
    def limits_path(self) -> Path:
        return self.root / _LIMITS

    def holds(self, path: object) -> bool:
        """Whether a path that an error names is the cache, or in it."""
        return isinstance(path, str | Path) and Path(path).is_relative_to(self.root)

    def request(
        self, name: str, size_bytes: int, num_bytes: int, *, beyond_bytes: int = -1
    ) -> Pin | Download | Refusal:
        """One attempt, without waiting: the whole file, or else what holds most of it, pinned, if
        it holds more than `beyond_bytes`; or the right to download, `num_bytes` of `size_bytes`
        reserved; or why not."""
        with self.locked():
            whole = Listing(
                [f"{name}.{size_bytes}{STAGED}"]
            )  # there is no need to list for what is most often asked for
            if (pin := self._pin(whole, name, size_bytes, beyond_bytes)) is not None:
                return pin
            pin = self._pin(listing := self._list(), name, size_bytes, beyond_bytes)
            return self._reserve(listing, name, size_bytes, num_bytes) if pin is None else pin

    def has(self, name: str) -> bool:
        """Whether a file, or some of it, is staged under this name: a glance, without locks."""
        return self._glance.has(name)

    def entries(self) -> list[Entry]:
        """What is staged, the last used first."""
        with self.locked():
            found = [
                Entry(
                    record=record,
                    path=path,
                    used_at_ns=path.stat().st_mtime_ns,
                    is_pinned=self._is_pinned(name),
                )
                for name in self._list().staged
                if (record := self._record(name)) is not None and (path := self.root / name)
            ]
        return sorted(found, key=lambda entry: (-entry.used_at_ns, entry.path))

    def clear(self) -> list[CachedFile]:
        """Removes all files that nobody reads; returns them."""
        with self.locked():
            listing = self._list()
            files = [_cached_file(name) for name in listing.staged if not self._is_pinned(name)]
            for file in files:
                self._unlink(file.name)
            if len(files) == len(listing.staged) + len(listing.parts) + len(listing.left_over):
                self.limits_path.unlink(missing_ok=True)
        return files

    def discard(self, pin: Pin) -> None:
        """Lets go of a pinned file that proved wrong, so that nobody finds it again."""
        with self.locked():
            pin.release()
            self.remove_unpinned(pin.path.name)

    def remove(self, pin: Pin) -> None:
        """Removes a pinned file whose bytes are not what they were, also where others have it
        pinned.
        """
        with self.locked():
            self._unlink(pin.path.name)
            pin.release()

    def close(self) -> None:
        """Removes a private directory; a shared one stays for the next run."""
        self._remove()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The right to change the directory, among all threads and processes; held for a few system
        calls.
        """
        with self._threads:
            lock = self._open_root()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                unlock(lock)

    def _open_root(self) -> int:
        """Of a directory that somebody removed, a new one: what was in it is staged again.
        RemovedError where it is removed again and again."""
        for _ in range(MAX_REMOVALS):
            try:
                return os.open(
                    self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                )
            except FileNotFoundError:
                _LOG.warning("the cache %s was removed: it is made again", self.root)
                make_private(self.root)
        raise removed(self.root)

    def make_room(self, num_bytes: int, listing: Listing | None = None) -> bool:
        """Evicts until `num_bytes` more fit; False, and nothing is evicted, where they do not.
        Under `locked()`.
        """
        listing = listing or self._list()
        excess_bytes = excess(
            num_bytes,
            used_bytes=sum(map(number_of, (*listing.staged, *listing.parts, *listing.left_over))),
            unwritten_bytes=sum(map(self._unwritten_bytes, listing.parts)),
            free_bytes=shutil.disk_usage(self.root).free,
            budget_bytes=self._limits.budget_bytes,
            min_free_bytes=self._limits.min_free_bytes,
        )
        unpinned = (
            name for name in self._uses.in_order(listing.staged) if not self._is_pinned(name)
        )
        evictions = choose_evictions(map(_cached_file, unpinned), excess_bytes)
        for name in evictions or ():
            self._unlink(name)
            self._num_evicted += 1
        return evictions is not None

    def free_number(self, name: str, num_bytes: int) -> int:
        """`num_bytes`, or the next number where a pinned file that holds other bytes has that name,
        or what is no file. Under `locked()`."""
        while not self._is_free(f"{name}.{num_bytes}{STAGED}"):
            num_bytes += 1
        return num_bytes

    def _is_free(self, name: str) -> bool:
        path = self.root / name
        if os.path.lexists(path) and not self.remove_unpinned(name):
            return False
        return not path.with_suffix(HELD).is_dir() or path.with_suffix(HELD).is_symlink()

    def remove_unpinned(self, name: str) -> bool:
        """Removes a file; False where it is pinned, being downloaded, or not there. Under
        `locked()`.
        """
        lock = try_lock(self.root / name, fcntl.LOCK_EX)
        if lock is None:
            return False
        self._unlink(name)
        unlock(lock)
        return True

    def _unwritten_bytes(self, part: str) -> int:
        """What a download has reserved, and not yet taken of the disk; nothing of one that somebody
        removed meanwhile.
        """
        try:
            return max(0, number_of(part) - (self.root / part).stat().st_blocks * 512)
        except FileNotFoundError:
            return 0

    def _pin(self, listing: Listing, name: str, size_bytes: int, beyond_bytes: int) -> Pin | None:
        for found in sorted(listing.staged_of(name), key=number_of, reverse=True):
            lock = (
                try_lock(path := self.root / found, fcntl.LOCK_SH)
                if number_of(found) > beyond_bytes
                else None
            )
            if lock is None:
                continue
            record = self._record(found)
            if record is not None and os.fstat(lock).st_size == record.size_bytes == size_bytes:
                _touch(lock)
                return Pin(path, lock, record)
            why = "its record cannot be read" if record is None else "its record is of another size"
            _LOG.warning("%s: %s; the file is staged again", path, why)
            self._unlink(found)
            listing.staged.remove(found)
            unlock(lock)
        return None

    def _reserve(
        self, listing: Listing, name: str, size_bytes: int, num_bytes: int
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
        if os.path.lexists(path):  # no file: that would be among the parts
            raise StagingError(
                f"{path}: expected nothing there, found what is no file; remove it, or clear the "
                f"cache"
            )
        lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, size_bytes)
        return Download(self, name, num_bytes, lock, listing.staged_of(name))

    def _list(self) -> Listing:
        """Files staged and under way; what a dead process left half done is removed first."""
        listing = Listing.of(self.root)
        listing.parts = [name for name in listing.parts if not self.remove_unpinned(name)]
        for name in listing.left_over:
            if name.endswith(HELD):
                (self.root / name).unlink(missing_ok=True)
        # A file without a record stays as long as it is read, and takes room.
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
            with contextlib.suppress(IsADirectoryError):  # none of ours
                path.with_suffix(HELD).unlink(missing_ok=True)

    def _record(self, name: str) -> Record | None:
        path = (self.root / name).with_suffix(HELD)
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            with open(file, encoding="utf-8", errors="replace") as text:  # noqa: PTH123  a descriptor
                return Record.from_json(text.read(_RECORD_BYTES))
        except OSError:  # a directory, or a pipe without a writer
            return None

    def _is_pinned(self, name: str) -> bool:
        lock = try_lock(self.root / name, fcntl.LOCK_EX)
        if lock is not None:
            unlock(lock)
        return lock is None


def _cached_file(name: str) -> CachedFile:
    return CachedFile(name=name, size_bytes=number_of(name))


def _write_record(path: Path, record: Record) -> None:
    """The record, or nothing. What has its name is removed, never written into: it may be a
    link.
    """
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w", encoding="utf-8") as text:  # noqa: PTH123  a descriptor
            text.write(record.to_json())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _crc(file: int, first: int, end: int, stop: threading.Event) -> int:
    """The CRC-32 of a span; of what there is of it, where the file ends before."""
    crc = 0
    while first < end and (block := os.pread(file, min(_BLOCK_BYTES, end - first), first)):
        if stop.is_set():
            raise Stopped
        crc, first = checksum(block, crc), first + len(block)
    return crc


def _touch(lock: int) -> None:
    """Notes a use, finer than the kernel's own clock for files."""
    now_ns = time.time_ns()
    os.utime(lock, ns=(now_ns, now_ns))
