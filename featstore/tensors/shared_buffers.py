"""A pool of reusable shared-memory buffers: one process writes a buffer, another reads it in place,
and says when it no longer needs it. New memory costs as much as what is written to it: the kernel
clears each page, and maps it again in each process.

A buffer is a file without a name that only lives in memory (memfd_create(2)). Its first byte says
whether another process has it. The reader opens it by the writer's descriptor (/proc/PID/fd), so
the writer must still be there.
"""

import errno
import mmap
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from featstore.reading.buffers import Array

_HEADER_BYTES = 64
_FREE, _SENT = 0, 1
_MAX_FREE = 3


@dataclass(frozen=True)
class Address:
    """Where another process finds a buffer: the writer's process, its descriptor there, which file
    that is, and its bytes.
    """

    process: int
    descriptor: int
    file: tuple[int, int]
    num_bytes: int


class _Forks:
    """How often this process was forked: a copy of it goes on to see what it had mapped, so that is
    never written to again.
    """

    num_forks = 0

    @classmethod
    def count(cls) -> None:
        cls.num_forks += 1


os.register_at_fork(before=_Forks.count)


class SharedBuffer:
    """A shared-memory buffer that this process made. Its contents are for one receiver."""

    def __init__(self, num_bytes: int) -> None:
        size = _HEADER_BYTES + num_bytes
        if size > (
            available_bytes := _available_bytes()
        ):  # the kernel would rather end some process than refuse
            raise OSError(
                errno.ENOMEM,
                f"of {available_bytes} bytes of memory that are available it would take {size}",
            )
        self._descriptor = os.memfd_create("featstore-batch")
        try:
            os.posix_fallocate(self._descriptor, 0, size)
            self._mapped = mmap.mmap(
                self._descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
            )
        except BaseException:
            os.close(self._descriptor)
            raise
        found = os.fstat(self._descriptor)
        self.address = Address(os.getpid(), self._descriptor, (found.st_dev, found.st_ino), size)
        self._used: weakref.ref[Array] | None = None
        self._place, self._num_forks, self._sending = 0, _Forks.num_forks, threading.Lock()
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def num_bytes(self) -> int:
        return self.address.num_bytes - _HEADER_BYTES

    @property
    def is_free(self) -> bool:
        """Whether neither this process refers to the memory nor another one has it. A weak
        reference to the array that was handed out tells: torch and numpy keep it alive under their
        views.
        """
        return self._mapped[0] == _FREE and (self._used is None or self._used() is None)

    @property
    def was_forked(self) -> bool:
        """Whether a copy of this process may see the memory."""
        return self._num_forks != _Forks.num_forks

    def memory(self, num_bytes: int) -> Array:
        """uint8 (num_bytes,). While it, or a tensor of it, is referred to, the buffer is not free.
        A numpy slice of it is not seen.
        """
        memory = np.frombuffer(self._mapped, np.uint8, num_bytes, _HEADER_BYTES)
        self._used, self._place = weakref.ref(memory), memory.ctypes.data
        return memory

    def may_be_sent(self, place: int) -> bool:
        """Whether what lies at this address is the buffer, and nobody else has it. If so, it is
        marked as sent. Only the process that made it may send it."""
        with self._sending:
            if (
                self.address.process != os.getpid()
                or self._mapped[0] != _FREE
                or self._place != place
            ):
                return False
            self._mapped[0] = _SENT
            return True


def _available_bytes() -> int:
    """Memory that processes may have before the kernel ends one (proc_meminfo(5))."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


class SharedBufferPool:
    """The buffers of a process, each taken again once it is free. Safe to use from any thread."""

    def __init__(self) -> None:
        self._process, self._buffers, self._taking = (
            os.getpid(),
            list[SharedBuffer](),
            threading.Lock(),
        )

    def take(self, num_bytes: int) -> tuple[SharedBuffer, Array]:
        """A free buffer, and so many bytes of its memory. OSError where there is no memory for
        one.
        """
        if (
            self._process != os.getpid()
        ):  # those of the process that forked this one are not ours to give
            self._process, self._buffers, self._taking = os.getpid(), [], threading.Lock()
        with self._taking:
            free = [buffer for buffer in self._buffers if buffer.is_free]
            taken = [buffer for buffer in self._buffers if buffer not in free]
            fit = [
                buffer for buffer in free if buffer.num_bytes >= num_bytes and not buffer.was_forked
            ]
            fit = fit[:_MAX_FREE] or [SharedBuffer(num_bytes + num_bytes // 16)]
            self._buffers = taken + fit
            return fit[0], fit[0].memory(num_bytes)


def opened(address: Address, num_bytes: int) -> Array:
    """The first bytes of a buffer in the process that received it: uint8 (num_bytes,), the same
    memory. When nothing refers to it any more (as `SharedBuffer.memory` understands it), the writer
    may use it again. OSError where the process that sent it is gone.
    """
    descriptor = os.open(
        f"/proc/{address.process}/fd/{address.descriptor}", os.O_RDWR | os.O_CLOEXEC
    )
    try:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != address.file:
            raise FileNotFoundError(f"process {address.process} is another one by now")
        mapped = mmap.mmap(descriptor, address.num_bytes)
    finally:
        os.close(descriptor)
    memory = np.frombuffer(mapped, np.uint8, num_bytes, _HEADER_BYTES)
    weakref.finalize(memory, _give_back, mapped, os.getpid(), _Forks.num_forks).atexit = False
    return memory


def _give_back(mapped: mmap.mmap, process: int, num_forks: int) -> None:
    """Not in a copy of the process, nor where there is one, which may still look at it."""
    if process == os.getpid() and num_forks == _Forks.num_forks:
        mapped[0] = _FREE


def are_supported() -> bool:
    """Whether this process can make such buffers, and the one that started it open them."""
    return (
        hasattr(os, "memfd_create") and hasattr(mmap, "MAP_POPULATE") and _is_seen_by(os.getppid())
    )


@lru_cache(maxsize=1)
def _is_seen_by(process: int) -> bool:
    """Whether descriptors may be opened through /proc: our own, and the other's, which is the same
    right as it has to ours.
    """
    try:
        next(Path(f"/proc/{process}/fd").iterdir())
        descriptor = os.memfd_create("featstore-probe")
        try:
            os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR))
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
