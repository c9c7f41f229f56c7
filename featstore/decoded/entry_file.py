"""Entries of the cache of decoded columns: Arrow's file format, written with a checksum, mapped
into memory, and watched for changes.
"""

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from featstore.base.closing import Closing, cleaned_up_on_failure
from featstore.base.errors import StagingError
from featstore.base.processes import OwnProcess
from featstore.base.redaction import redact
from featstore.staging.cache import Cache, Download, Pin
from featstore.staging.record import Record, checksum

_NEVER = threading.Event()
# A huge page of x86-64, and of others the least that is one.
_BLOCK_BYTES = 2 << 20
# Less than the kernel takes at once (IOV_MAX).
_MOST_WAITING = 512


class DamagedEntryError(StagingError):
    """The bytes of an entry are not those that were written. It is removed from the cache."""


class EntryWriter:
    """Writes the content of one entry, into the room that was reserved for it. For one thread.

    Args:
        download: The reservation. The caller publishes or abandons it.
        reserve: Makes the reservation as large as it is told; waits, or raises.

    Attributes:
        num_bytes: How many bytes were written.
    """

    def __init__(self, download: Download, reserve: Callable[[int], None]) -> None:
        self._download, self.reserve = download, reserve
        self.num_bytes = self._crc = 0

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Writes record batches as one Arrow file. Each is written before the next is drawn.

        Raises:
            OSError: The disk is full, or fails.
        """
        with open(self._download.path, "r+b", buffering=0) as file:  # noqa: PTH123  unbuffered
            # Writing takes less time if the room is there, and a full disk is found before anything
            # is decoded.
            os.posix_fallocate(file.fileno(), 0, max(1, self._download.num_bytes))
            blocks = _Blocks(file.fileno(), self)
            with pa.PythonFile(blocks, "w") as sink, pa.ipc.new_file(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    del batch  # Its memory serves the next one.
            blocks.flush()
            file.truncate(self.num_bytes)

    def record(self, url: str) -> Record:
        """The record of what was written."""
        sums = [(0, self.num_bytes, self._crc)]
        return Record.of(url, self.num_bytes, "", sums, is_checked=True)

    def count(self, data: memoryview) -> None:
        """Adds bytes that were written to the checksum."""
        self._crc = checksum(data, self._crc)
        self.num_bytes += len(data)


class _Blocks:
    """What Arrow writes to: a file whose bytes are counted and summed.

    Buffers wait until they fill a block, which is a huge page of the page cache and begins at a
    multiple of its size. The kernel keeps what is written at once in pages as large as that, if it
    can. They are fewer to allocate, and to map into each of the processes that read.
    """

    closed = False

    def __init__(self, file: int, writer: EntryWriter) -> None:
        self._file, self._writer = file, writer
        self._waiting, self._waiting_bytes = list[memoryview](), 0

    def write(self, data: pa.Buffer | bytes) -> int:
        view = memoryview(data)
        self._writer.count(view)
        self._waiting.append(view)
        self._waiting_bytes += len(view)
        if self._waiting_bytes >= _BLOCK_BYTES:
            self._write_waiting(self._waiting_bytes - self._writer.num_bytes % _BLOCK_BYTES)
        elif len(self._waiting) >= _MOST_WAITING:
            self._write_waiting(self._waiting_bytes)
        return len(view)

    def tell(self) -> int:
        return self._writer.num_bytes

    def flush(self) -> None:
        """Writes what waits. Arrow does not call it at the end of a file."""
        self._write_waiting(self._waiting_bytes)

    def close(self) -> None:
        """The caller closes the file."""

    def _write_waiting(self, num_bytes: int) -> None:
        """Writes the first `num_bytes` of the bytes that wait."""
        self._waiting_bytes -= num_bytes
        while num_bytes:
            written = os.writev(self._file, list(_first(self._waiting, num_bytes)))
            num_bytes -= written
            # The kernel may take less than all: what is left of a view goes first the next time.
            while written:
                view = self._waiting.pop(0)
                if len(view) > written:
                    self._waiting.insert(0, view[written:])
                written -= min(written, len(view))


def _first(views: Iterable[memoryview], num_bytes: int) -> Iterator[memoryview]:
    """The first `num_bytes` bytes of these."""
    for view in views:
        yield view[:num_bytes]
        num_bytes -= len(view)
        if num_bytes <= 0:
            return


class FileState(NamedTuple):
    """What changes whenever somebody writes to a file, or truncates it. If it is as it was when the
    bytes were checked, they need not be checked again. A tuple, since reading samples makes one for
    each data file.

    Attributes:
        inode: The file.
        size_bytes: Its size.
        changed_at_ns: When its content or its attributes last changed (`st_ctime_ns`).
    """

    inode: tuple[int, int]
    size_bytes: int
    changed_at_ns: int

    @classmethod
    def of(cls, descriptor: int) -> "FileState":
        """The state of an open file."""
        status = os.fstat(descriptor)
        return cls(
            inode=(status.st_dev, status.st_ino),
            size_bytes=status.st_size,
            changed_at_ns=status.st_ctime_ns,
        )


class MappedEntry(Closing):
    """An entry of the cache, pinned and mapped into memory. Its pages are the kernel's page cache,
    which all processes share.

    A forked copy of the process uses the same mapping; only the process that opened the entry
    releases its pin. Not thread-safe.

    Args:
        pin: The pinned file, whose ownership passes to this object.
        state: What was seen when its bytes were last compared with their checksum; None: they
            were not.
        is_new: Whether this process has just written and summed them.

    Attributes:
        schema: The schema of the record batches.
        batches: The record batches, views of the mapping.
        state: What was seen when the bytes were last checked; None: they were not.

    Raises:
        DamagedEntryError: As of `require_unchanged`.
        OSError: The disk fails, or too many files are open. The pin is released then, as with every
            error.
    """

    def __init__(
        self, cache: Cache, pin: Pin, state: FileState | None = None, *, is_new: bool = False
    ) -> None:
        self._cache, self._pin, self._process = cache, pin, OwnProcess()
        self._damage: str | None = None
        with cleaned_up_on_failure(self.close):
            self.state = FileState.of(pin.descriptor) if is_new else state
            self.require_unchanged()
            # Writable, and private: who writes to a batch in place, against the contract, changes
            # memory of its own, instead of the file, or of being killed. All else stays shared.
            mapped = mmap.mmap(pin.descriptor, pin.record.size_bytes, access=mmap.ACCESS_COPY)
            reader = pa.ipc.open_file(pa.py_buffer(mapped))
            self.schema: pa.Schema = reader.schema
            self.batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]

    @property
    def held_bytes(self) -> int:
        """How much of the budget the entry takes."""
        return self._pin.num_bytes

    def require_unchanged(self) -> None:
        """Checks the bytes if anybody may have written to them since the last check. To be called
        before they are read.

        The kernel kills a process that reads mapped bytes after the end of its file. So a file that
        is truncated between this call and the reading still ends the process.

        Raises:
            DamagedEntryError: They have changed, or the file was truncated. This entry is closed,
                and every further call raises the same.
            StagingError: The disk fails.
        """
        try:
            self._require_unchanged()
        except OSError:
            with self._cache.named_errors():
                raise

    def _require_unchanged(self) -> None:
        if self._damage is not None:
            raise DamagedEntryError(self._damage)
        seen = FileState.of(self._pin.descriptor)
        if seen == self.state:
            return
        if seen.size_bytes != self._pin.record.size_bytes or not self._pin.is_intact(_NEVER):
            path, title = self._pin.path, redact(self._pin.record.url)
            self._cache.remove(self._pin)
            self._damage = (
                f"{path}: expected what was written there ({title}), found other bytes: somebody "
                "wrote to the file, or the disk is failing; it is removed from the cache, and is "
                "built again when it is next opened"
            )
            raise DamagedEntryError(self._damage)
        self.state = seen

    def close(self) -> None:
        """Allows eviction. Views of the mapping stay valid. May be called more than once."""
        if self._process.is_this():
            self._pin.release()
