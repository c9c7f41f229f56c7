"""Sends a batch to another process in one shared-memory buffer, which the process that made the
batch writes once.

Buffers are reused if the system allows it: one process writes a buffer, another reads it in place
and marks it as free afterwards. New memory would cost as much as writing to it, since the kernel
clears each page and maps it in each process. A buffer is an anonymous file in memory
(memfd_create(2)). Its first byte says whether another process uses it. The reader opens it through
the writer's descriptor (/proc/PID/fd), so the writer has to be alive then.

Otherwise torch passes new memory for each batch, as one file descriptor for any number of slots.
The extras lie behind the columns, in Arrow's stream format, and are read without a copy.
"""

import errno
import mmap
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import torch

from featstore.base.errors import SharedMemoryError, WorkerError
from featstore.base.intervals import aligned
from featstore.base.processes import OwnProcess
from featstore.reading.buffers import Array
from featstore.tensors.batch import Batch, of_ipc, to_ipc
from featstore.tensors.packed import PackedColumns, pack

_HEADER_BYTES = 64  # The byte that says who uses the buffer, and padding to a cache line.
_FREE, _SENT = 0, 1
# How many free buffers are kept: one is written, one is on its way, one is given back.
_MAX_FREE = 3


@dataclass(frozen=True)
class Address:
    """Where another process finds a buffer.

    Attributes:
        process: The writer's process id.
        descriptor: The buffer's descriptor in that process.
        file: Device and inode of the buffer, to recognize a descriptor that is another file now.
        num_bytes: Size of the buffer with its header.
    """

    process: int
    descriptor: int
    file: tuple[int, int]
    num_bytes: int


class _Forks:
    """Counts the forks of this process. A forked copy still sees memory that was mapped before, so
    that memory is never written again.
    """

    num_forks = 0

    @classmethod
    def count(cls) -> None:
        cls.num_forks += 1


os.register_at_fork(before=_Forks.count)


class SharedBuffer:
    """A shared-memory buffer that this process made, for one receiver at a time.

    Raises:
        OSError: There is not enough memory, or no descriptor.
    """

    def __init__(self, num_bytes: int) -> None:
        size = _HEADER_BYTES + num_bytes
        # The kernel would not refuse the memory, but kill some process later.
        if size > (available_bytes := _available_bytes()):
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
        """Whether neither this process nor another one uses the memory. In this process a weak
        reference to the array that was handed out shows it: views in torch and numpy keep that
        array alive.
        """
        return self._mapped[0] == _FREE and (self._used is None or self._used() is None)

    @property
    def was_forked(self) -> bool:
        """Whether a forked copy of this process may see the memory."""
        return self._num_forks != _Forks.num_forks

    def memory(self, num_bytes: int) -> Array:
        """The buffer's memory: uint8 (num_bytes,). The buffer is not free as long as the array, or
        a tensor of it, is referred to. A numpy slice of the array does not count.
        """
        memory = np.frombuffer(self._mapped, np.uint8, num_bytes, _HEADER_BYTES)
        self._used, self._place = weakref.ref(memory), memory.ctypes.data
        return memory

    def may_be_sent(self, place: int) -> bool:
        """Marks the buffer as sent, if it may be.

        Args:
            place: Address of the memory that is to be sent.

        Returns:
            Whether it was marked: the address is the buffer's, no other process has it, and this
            process made it.
        """
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
    """Memory that can be used before the kernel kills a process (proc_meminfo(5))."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


class SharedBufferPool:
    """The buffers of a process, reused once they are free. Safe to use from any thread."""

    def __init__(self) -> None:
        self._process, self._taking = OwnProcess(), threading.Lock()
        self._buffers: list[SharedBuffer] = []

    def take(self, num_bytes: int) -> tuple[SharedBuffer, Array]:
        """A free buffer, and `num_bytes` of its memory. OSError if there is not enough memory."""
        # After a fork the buffers belong to the parent.
        if not self._process.is_this():
            self._process, self._buffers, self._taking = OwnProcess(), [], threading.Lock()
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
    """Opens a buffer in the receiving process.

    Args:
        address: The buffer.
        num_bytes: How many of its bytes are used.

    Returns:
        The same memory: uint8 (num_bytes,). When nothing refers to it any more, in the sense of
        `SharedBuffer.memory`, the writer may reuse it.

    Raises:
        OSError: The process that sent it is gone.
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
    weakref.finalize(memory, _give_back, mapped, _Forks.num_forks).atexit = False
    return memory


def _give_back(mapped: mmap.mmap, num_forks: int) -> None:
    """Marks the buffer as free. Not in a forked copy of the process, nor if there is one, which may
    still use the memory: in both a fork was counted since.
    """
    if num_forks == _Forks.num_forks:
        mapped[0] = _FREE


def are_supported() -> bool:
    """Whether this process can make such buffers, and its parent can open them."""
    return (
        hasattr(os, "memfd_create") and hasattr(mmap, "MAP_POPULATE") and _is_seen_by(os.getppid())
    )


@lru_cache(maxsize=1)
def _is_seen_by(process: int) -> bool:
    """Whether this process may open its own descriptors, and those of `process`, through /proc. The
    right is mutual, so `process` may open ours then.
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


_BUFFERS = SharedBufferPool()


@dataclass(frozen=True, kw_only=True)
class SharedColumns(PackedColumns):
    """Columns in one shared-memory buffer.

    Attributes:
        memory: uint8: the columns, and behind them the extras.
        shared_buffer: The buffer to which the memory belongs; None if torch or another process made
            it.
    """

    memory: torch.Tensor
    shared_buffer: SharedBuffer | None = None

    def may_be_sent(self) -> bool:
        """Whether the memory itself may be sent to another process. It may not if it came from
        another process, was already sent, or was replaced by torch, which moves tensors to other
        memory when they are sent on their own.
        """
        if self.shared_buffer is None:
            return bool(self.memory.is_shared())  # type: ignore[no-untyped-call]
        return self.shared_buffer.may_be_sent(self.memory.data_ptr())


def shared(batch: Batch) -> Batch:
    """A copy of the batch, columns and extras, in shared memory.

    Raises:
        SharedMemoryError: There is not enough shared memory.
    """
    extras, shared_buffer = to_ipc(batch.extras), None
    memory, array = torch.empty(0, dtype=torch.uint8), np.empty(0, np.uint8)

    def allocate(num_bytes: int) -> torch.Tensor:
        nonlocal shared_buffer, memory, array
        num_bytes = aligned(num_bytes) + len(extras)
        if are_supported():
            # The pool watches references to this array object. The extras have to refer to it, and
            # not to a tensor, since torch may move its tensors to other memory.
            shared_buffer, array = _taken(num_bytes)
            memory = torch.from_numpy(array)
        else:
            memory = _shared_memory(num_bytes)
            array = memory.numpy()
        return memory

    columns = pack(batch.columns, allocate)
    if len(extras):
        array[aligned(len(columns.buffers[0])) :] = memoryview(extras)
    sent = SharedColumns(
        buffers=columns.buffers, places=columns.places, memory=memory, shared_buffer=shared_buffer
    )
    return _batch_of(sent, array, len(batch), batch.is_padding)


def _taken(num_bytes: int) -> tuple[SharedBuffer, Array]:
    try:
        return _BUFFERS.take(num_bytes)
    except OSError as error:
        fix = (
            "more descriptors (ulimit -n)"
            if error.errno in (errno.EMFILE, errno.ENFILE)
            else "more memory"
        )
        raise SharedMemoryError(
            _NO_ROOM.format(num_bytes=num_bytes, error=error, fix=fix)
        ) from error


_NO_ROOM = (
    "a batch of {num_bytes} bytes finds no room in shared memory: {error}; give the container "
    "{fix}, or choose a smaller batch_size, fewer workers, or a smaller prefetch_factor of the "
    "DataLoader"
)


def _shared_memory(num_bytes: int) -> torch.Tensor:
    try:
        storage = torch.UntypedStorage._new_shared(max(1, num_bytes))  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        fix = "more (docker run --shm-size)"
        raise SharedMemoryError(
            _NO_ROOM.format(num_bytes=num_bytes, error=error, fix=fix)
        ) from error
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _batch_of(columns: SharedColumns, memory: Array, num_rows: int, is_padding: bool) -> Batch:
    """The batch of these columns. The extras are views of the memory behind the columns, and keep
    it alive as the tensors do.
    """
    extras = of_ipc(memory[aligned(len(columns.buffers[0])) :])
    return Batch(columns, num_rows=num_rows, extras=extras, is_padding=is_padding)


def _received(
    memory: torch.Tensor | tuple[Address, int],
    places: Any,
    num_bytes: int,
    num_rows: int,
    is_padding: bool,
) -> Batch:
    """Rebuilds a batch in the receiving process. `num_bytes` is the size of the columns."""
    array = memory.numpy() if isinstance(memory, torch.Tensor) else _opened(*memory)
    tensor = memory if isinstance(memory, torch.Tensor) else torch.from_numpy(array)
    columns = SharedColumns(buffers=(tensor[:num_bytes],), places=places, memory=tensor)
    return _batch_of(columns, array, num_rows, is_padding)


def _opened(address: Address, num_bytes: int) -> Array:
    try:
        return opened(address, num_bytes)
    except _OF_THE_DEAD as error:
        raise WorkerError(
            f"DataLoader worker (pid {address.process}) died before its batch was received: "
            "expected it to run until then; if the kernel's log (dmesg) says that it ran out of "
            "memory, choose fewer workers, a smaller batch_size or a smaller prefetch_factor"
        ) from error
    except OSError as error:
        raise SharedMemoryError(
            f"a batch of process {address.process} cannot be read: {error}; check that there are "
            "descriptors (ulimit -n) and memory"
        ) from error


# A process that ends first loses its memory, after which its descriptors belong to root and cannot
# be opened by others. Then the descriptors are closed. Only then is its parent notified.
_OF_THE_DEAD = (FileNotFoundError, PermissionError, ProcessLookupError)


def reduced(batch: Batch) -> tuple[Any, ...]:
    """How a batch is sent in shared memory, as `__reduce__`: what the receiver calls, with what.
    Registered for each class of batches.
    """
    columns = batch.columns
    if not isinstance(columns, SharedColumns) or not columns.may_be_sent():
        columns = shared(batch).columns
        assert isinstance(columns, SharedColumns)
        columns.may_be_sent()
    shared_buffer, num_bytes = columns.shared_buffer, len(columns.buffers[0])
    memory = (
        columns.memory if shared_buffer is None else (shared_buffer.address, len(columns.memory))
    )
    return _received, (memory, columns.places, num_bytes, len(batch), batch.is_padding)


ForkingPickler.register(Batch, reduced)
