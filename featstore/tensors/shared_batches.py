"""Sends a batch to another process in one shared-memory buffer, which the process that made the
batch writes once.

Buffers are reused if the system allows it (shared_buffers.py). Otherwise torch passes new memory
for each batch, as one file descriptor for any number of slots. The extras lie behind the columns,
in Arrow's stream format, and are read without a copy.
"""

import errno
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from featstore.base.errors import SharedMemoryError, WorkerError
from featstore.base.intervals import aligned
from featstore.reading.buffers import Array
from featstore.tensors.batch import Batch, of_ipc, to_ipc
from featstore.tensors.packed import PackedColumns, pack
from featstore.tensors.shared_buffers import (
    Address,
    SharedBuffer,
    SharedBufferPool,
    are_supported,
    opened,
)

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


def _reduce(batch: Batch) -> tuple[Any, ...]:
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


ForkingPickler.register(Batch, _reduce)
