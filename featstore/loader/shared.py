"""A batch on its way to another process: one piece of shared memory, written once by the process that made the batch.

torch passes shared memory as one file descriptor for each storage, so a batch costs one, however many slots it has. The extras
lie behind the columns, in Arrow's stream format, and are read there without a copy.
"""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa
import torch

from featstore.errors import SharedMemoryError
from featstore.loader.one_buffer import OneBuffer, aligned, in_one_buffer
from featstore.loader.tensors import Batch


def shared(batch: Batch) -> Batch:
    """The batch in shared memory of its own, columns and extras. SharedMemoryError where there is no room for it."""
    extras = _stream(batch.extras)

    def allocate(num_bytes: int) -> torch.Tensor:
        return _shared_memory(aligned(num_bytes) + len(extras))

    columns = in_one_buffer(batch.columns, allocate)
    if len(extras):
        columns.memory.numpy()[aligned(columns.end) :] = memoryview(extras)
    return _received(columns, batch.num_rows, batch.is_padding)


def is_shared(batch: Batch) -> bool:
    """Whether the batch is in one piece of shared memory already."""
    return isinstance(batch.columns, OneBuffer) and batch.columns.memory.is_shared()  # type: ignore[no-untyped-call]


def _shared_memory(num_bytes: int) -> torch.Tensor:
    try:
        storage = torch.UntypedStorage._new_shared(max(1, num_bytes))  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise SharedMemoryError(
            f"a batch of {num_bytes} bytes finds no room in shared memory: {error}; give the container more (docker run "
            "--shm-size), or choose a smaller batch_size, fewer workers, or a smaller prefetch_factor of the DataLoader"
        ) from error
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _stream(table: pa.Table) -> pa.Buffer:
    """The table in Arrow's stream format, of which a slice is only the slice; nothing where it has no columns."""
    sink = pa.BufferOutputStream()
    if table.num_columns:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _received(columns: OneBuffer, num_rows: int, is_padding: bool) -> Batch:
    """The batch in the process that uses it; the extras are views of its memory."""
    behind = columns.memory.numpy()[aligned(columns.end) :]
    extras = pa.ipc.open_stream(pa.py_buffer(behind)).read_all() if len(behind) else pa.table({})
    return Batch(columns, num_rows=num_rows, extras=extras, is_padding=is_padding)


def _reduce(batch: Batch) -> tuple[Any, ...]:
    mine = batch if is_shared(batch) else shared(batch)
    return _received, (mine.columns, mine.num_rows, mine.is_padding)


ForkingPickler.register(Batch, _reduce)
