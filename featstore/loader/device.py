"""Batches on a device, copied there ahead of the training loop."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from featstore.base.closing import when_gone
from featstore.base.errors import StateError, require_integer
from featstore.loader.batches.pipeline import Stage, fill
from featstore.loader.iteration.batch_iterator import BatchIterator
from featstore.loader.mixed_source import MixedIterator
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Columns, Device
from featstore.tensors.packed import PackedColumns, pack

# What a thread may run ahead of its consumer.
RunsAhead = BatchIterator | MixedIterator
# A copied batch, and the source's state after it (None: the source has no state).
_Sent = tuple[Batch, dict[str, Any] | None]


class DeviceFeed:
    """Iterates over batches on a device, which a separate thread copies ahead of the loop.

    On CUDA each batch is one copy from one pinned buffer, on a separate stream; the loop gets it
    once it is there. Only batches that the loop was given count as delivered, however far the feed
    is ahead.

    Args:
        source: A loader, or a DataLoader over one.
        device: A torch device, or its name.
        prefetch: Number of batches that are copied ahead of the loop.

    Raises:
        ConfigError: `prefetch` is below 1.
    """

    def __init__(self, source: Iterable[Batch], device: Device, *, prefetch: int = 2) -> None:
        self._prefetch = require_integer("to_device: prefetch", prefetch)
        self._source, self._device = source, torch.device(device)

    def __iter__(self) -> "Feeding":
        copies = CudaCopies if self._device.type == "cuda" else Copies
        return Feeding(self._source, copies(self._device), self._prefetch)


class Feeding:
    """One iteration of a feed. It begins when its first batch, or its state, is asked for. For one
    consumer; the thread ends when it is dropped or closed.
    """

    def __init__(self, source: Iterable[Batch], copies: "Copies", prefetch: int) -> None:
        self._source, self._copies = source, copies
        self._queue, self._has_ended = Stage[_Sent](ahead=prefetch - 1), False
        self._iteration: RunsAhead | None = None
        self._state_of: Callable[[], dict[str, Any]] | None = None
        self._state: dict[str, Any] | None = None
        self._has_begun = False
        self._end: Callable[[], object] = self._queue.close  # Until it begins.

    def __iter__(self) -> "Feeding":
        return self

    def __next__(self) -> Batch:
        if self._has_ended:
            raise StopIteration
        self._begin()
        try:
            if self._iteration is not None:
                self._iteration.acknowledge()
            sent = self._queue.get()
            if sent is None:
                self._has_ended = True
                self._state = self._state_of() if self._state_of else None
                raise StopIteration
            batch, self._state = sent
            if self._iteration is not None:
                self._iteration.give()
            self._copies.use(batch)
            return batch
        except BaseException:
            self.close()
            raise

    def state_dict(self) -> dict[str, Any]:
        """The source's state in which the last batch that the loop was given counts as delivered.
        The state of a StatefulDataLoader itself would count what the feed has fetched ahead, too.

        Raises:
            StateError: The source has no state.
        """
        self._begin()
        if self._iteration is not None:
            return self._iteration.state_dict()
        if self._state is None:
            raise StateError(
                "state_dict(): the source of this feed has no state: expected a loader, or a "
                "torchdata StatefulDataLoader over one, found torch's DataLoader"
            )
        return self._state

    def close(self) -> None:
        """Ends the iteration and joins the thread. May be called more than once."""
        self._has_begun = True
        self._end()

    def _begin(self) -> None:
        """Begins, unless it has: a DataLoader's workers read from `iter` on."""
        if self._has_begun:
            return
        self._has_begun = True
        batches = iter(self._source)
        if isinstance(batches, RunsAhead):
            self._iteration = batches.run_ahead()
        else:
            self._state_of = getattr(batches, "state_dict", None)
        state_of, copied = self._state_of, self._copies.copied
        self._state = state_of() if state_of else None
        copies = ((copied(batch), state_of() if state_of else None) for batch in batches)
        self._end = when_gone(self, partial(_end, self._queue, self._iteration))
        self._queue.begin("featstore-feed", fill, copies)


class Copies:
    """Copies batches to a device, in the feed's thread. Nothing is left to the thread of the loop,
    which would wait there for the interpreter's lock after each call that releases it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copied(self, batch: Batch) -> Batch:
        """The batch, packed on the device, once it is there, with all its tensors."""
        moved = batch.with_columns(pack(batch.columns).moved(device=self.device))
        moved.made()
        return moved

    def use(self, batch: Batch) -> None:
        """Called in the loop's thread before it gets a batch."""


class CudaCopies(Copies):
    """Copies batches to a CUDA device on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._loop_stream = torch.cuda.current_stream(device)
        self._room = torch.empty(0, dtype=torch.uint8)

    def copied(self, batch: Batch) -> Batch:
        """Packs the batch into one pinned buffer, unless it is in one, and waits for its copy: then
        the buffer is free again, and no stream has to wait.
        """
        columns = batch.columns
        if not (isinstance(columns, PackedColumns) and columns.is_pinned):
            columns = pack(columns, self._pinned)
        with torch.cuda.stream(self._stream):
            moved = columns.moved(device=self.device, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record()
        _record_use(moved, self._loop_stream)
        found = batch.with_columns(moved)
        found.made()
        copied.synchronize()
        return found

    def use(self, batch: Batch) -> None:
        stream = torch.cuda.current_stream(self.device)
        if stream != self._loop_stream:
            _record_use(batch.columns, stream)

    def _pinned(self, num_bytes: int) -> torch.Tensor:
        if len(self._room) < num_bytes:
            self._room = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        return self._room


def _record_use(columns: Columns, stream: torch.cuda.Stream) -> None:
    """Records the memory of columns on the stream on which they are used: otherwise the allocator,
    which knows it as the copying stream's, could reuse it too early.
    """
    assert isinstance(columns, PackedColumns)
    for buffer in columns.buffers:
        buffer.record_stream(stream)


def _end(queue: Stage[_Sent], iteration: RunsAhead | None) -> None:
    """Ends and joins the thread of a feed, which may wait for a batch of the iteration. Has no
    reference to the feed, whose finalizer it is.
    """
    try:
        if iteration is not None:
            iteration.close()
    finally:  # also if the store is lost: the thread waits for room in the queue
        queue.close()
