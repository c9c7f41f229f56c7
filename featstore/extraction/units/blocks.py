"""Extracted rows between the two passes of `cluster_by`: blocks in a temporary file without a
name.
"""

import contextlib
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.closing import Closing
from featstore.base.named_errors import system_error
from featstore.ops.arrays import Integers, array_of, values_of
from featstore.ops.lists import positions_of

# More rows take more memory, fewer more time: each batch has some of nearly each block. So batches
# of many blocks are larger.
BATCH_ROWS, _ROWS_OF_BLOCK, _MOST_BATCH_ROWS = 16_384, 32, 65_536
_ALIGNMENT = 64  # of Arrow's buffers


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """Rows that were extracted together, in order of bucket and key, then of the input.

    Attributes:
        place: The number of the unit, and that of the block within it: in this order blocks follow
            each other in the input.
        rows: The rows, with the sign of the key as the last column, int64, whose name may be that
            of another.
        first_bucket: The number of the first bucket that `ends` tells of.
        ends: Where the rows of each bucket end, int64 (num_buckets,).
    """

    place: tuple[int, int]
    rows: pa.RecordBatch
    first_bucket: int
    ends: Integers

    def split(self) -> "Iterator[RowBlock]":
        """Yields a block for each bucket that has rows."""
        first = 0
        for bucket, end in enumerate(self.ends.tolist(), self.first_bucket):
            if end > first:
                rows = self.rows.slice(first, end - first)
                ends = np.array([rows.num_rows])
                yield RowBlock(place=self.place, rows=rows, first_bucket=bucket, ends=ends)
            first = end

    def to_bytes(self) -> bytes:
        """The rows as bytes, of which `Blocks` makes a block again."""
        return bytes(self.rows.serialize())


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A block in the file: where its message lies, and which rows each bucket has."""

    place: tuple[int, int]
    at: int
    size: int
    first_bucket: int
    ends: Integers

    def rows_of(self, bucket: int) -> tuple[int, int]:
        """The first row of a bucket, and the number of its rows."""
        index = bucket - self.first_bucket
        if not 0 <= index < len(self.ends):
            return 0, 0
        first = int(self.ends[index - 1]) if index else 0
        return first, int(self.ends[index]) - first


class Blocks(Closing):
    """Blocks in a file without a name, which takes the disk space that their rows have in memory
    and is gone with the process, however that ends.

    Blocks are added by any thread. Once all are there, any thread may read them.

    Args:
        schema: The columns of the rows, without the key.
        directory: Where the file lies; by default where temporary files do (TMPDIR).

    Raises:
        AccessError, DiskFullError, StoreError: The file cannot be made.
    """

    def __init__(self, schema: pa.Schema, directory: str | None = None) -> None:
        self._schema = schema.append(pa.field("key", pa.int64()))
        self._where = directory or tempfile.gettempdir()
        with self._named_errors():
            self._file = tempfile.TemporaryFile(prefix="featstore-blocks-", dir=directory)  # noqa: SIM115
        self._lock = threading.Lock()  # over all that follow
        self._stored: list[_Stored] = []
        self._size = 0
        self._map: mmap.mmap | None = None

    def close(self) -> None:
        """Gives the disk space back, as soon as nothing uses rows that were read."""
        self._map = None
        self._file.close()

    def add(self, block: RowBlock) -> None:
        """Writes a block."""
        self.add_message(block.place, block.rows.serialize(), block.first_bucket, block.ends)

    def add_message(
        self,
        place: tuple[int, int],
        message: pa.Buffer | bytes,
        first_bucket: int,
        ends: Sequence[int] | Integers,
    ) -> None:
        """Writes a block whose rows are a message of Arrow's IPC format.

        Raises:
            DiskFullError, StoreError: It cannot be written.
        """
        data = memoryview(message)
        with self._lock:
            at = self._size
            self._size += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
            self._stored.append(
                _Stored(
                    place=place,
                    at=at,
                    size=len(data),
                    first_bucket=first_bucket,
                    ends=np.asarray(ends, np.int64),
                )
            )
        with self._named_errors():
            while data:
                num_written = os.pwrite(self._file.fileno(), data, at)
                data, at = data[num_written:], at + num_written

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = (
                f"{self._where}: rows on their way to `output.cluster_by`, or to histories, cannot "
                f"be kept there"
            )
            raise system_error(what, error, "or point TMPDIR to a larger disk") from error

    def of_bucket(self, bucket: int) -> "BucketRows":
        """The rows of a bucket."""
        with self._lock:
            stored = sorted(self._stored, key=lambda block: block.place)
        return BucketRows(self, [(block, *block.rows_of(bucket)) for block in stored])

    def read(self, block: _Stored) -> pa.RecordBatch:
        """The rows of a block, which lie in the file."""
        with self._lock:
            if self._map is None:
                self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            message = pa.py_buffer(self._map).slice(block.at, block.size)
        return pa.ipc.read_record_batch(message, self._schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of each block."""
        with self._lock:
            stored = list(self._stored)
        yield from map(self.read, stored)

    def size_of_keys(self, keys: Integers) -> int:
        """About the bytes of the rows that have one of these keys; as of `of_keys`."""
        return sum(map(_value_bytes, self._of_keys(keys)))

    def of_keys(self, keys: Integers) -> pa.Table:
        """The rows that have one of these keys, in the order of their blocks, whose rows must be in
        the order of their keys alone.

        Args:
            keys: Ascending and different, int64 (num_keys,).
        """
        found = pa.Table.from_batches(self._of_keys(keys), self._schema)
        return found.remove_column(found.num_columns - 1)

    def _of_keys(self, keys: Integers) -> Iterator[pa.RecordBatch]:
        with self._lock:
            stored = sorted(self._stored, key=lambda block: block.place)
        for block in stored if len(keys) else ():
            batch = self.read(block)
            own = values_of(batch.columns[-1])
            firsts, ends = (np.searchsorted(own, keys, side) for side in ("left", "right"))
            first, num_rows = int(firsts[0]), int((ends - firsts).sum())
            if num_rows == ends[-1] - first:
                yield batch.slice(first, num_rows)
            else:
                yield batch.take(array_of(positions_of(firsts, ends - firsts)))

    def let_go(self) -> None:
        """Takes the pages that were read out of the process's memory; the file still has them."""
        with self._lock:
            if self._map is not None:
                self._map.madvise(mmap.MADV_DONTNEED)


def _value_bytes(rows: pa.RecordBatch) -> int:
    """The bytes of the values of columns without lists, at least 8 for each."""
    texts = [each for each in rows.columns if pa.types.is_string(each.type)]
    lengths = (pc.sum(pc.binary_length(text)).as_py() for text in texts)
    num_bytes: int = 8 * rows.num_rows * rows.num_columns + sum(of or 0 for of in lengths)
    return num_bytes


class BucketRows:
    """The rows of one bucket, in order of their keys, then of the input.

    Attributes:
        num_rows: How many there are.
    """

    def __init__(self, blocks: Blocks, parts: Sequence[tuple[_Stored, int, int]]) -> None:
        self._blocks = blocks
        self._parts = [part for part in parts if part[2]]
        self.num_rows = sum(num_rows for *_, num_rows in self._parts)

    def batches(self, batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows in batches of `batch_rows`, the last of which may have fewer.

        Memory holds 24 bytes for each row of the bucket, and twice a batch.
        """
        if batch_rows is None:
            of_blocks = min(_ROWS_OF_BLOCK * len(self._parts), _MOST_BATCH_ROWS)
            batch_rows = max(BATCH_ROWS, of_blocks)
        for rows in self.tables(batch_rows):
            yield from rows.remove_column(rows.num_columns - 1).to_batches()

    def tables(self, batch_rows: int) -> Iterator[pa.Table]:
        """The same as `batches`, with the signs of keys as the last column."""
        keys = [np.asarray(self._read(part).columns[-1]).copy() for part in self._parts]
        firsts = np.array([first for _, first, _ in self._parts])
        for counts in cut_groups(keys, batch_rows):
            yield self._joined(firsts.tolist(), counts.tolist())
            firsts += counts
            self._blocks.let_go()

    def _joined(self, firsts: Sequence[int], counts: Sequence[int]) -> pa.Table:
        parts = zip(self._parts, firsts, counts, strict=True)
        rows = pa.Table.from_batches(
            self._read((block, first, num_rows))
            for (block, *_), first, num_rows in parts
            if num_rows
        )
        return rows.take(pa.array(np.argsort(rows.columns[-1].to_numpy(), kind="stable")))

    def _read(self, part: tuple[_Stored, int, int]) -> pa.RecordBatch:
        block, first, num_rows = part
        return self._blocks.read(block).slice(first, num_rows)


def cut_groups(keys: Sequence[Integers], group_rows: int) -> Integers:
    """Cuts rows in the order of their keys, then of their blocks, into groups of equal size.

    Args:
        keys: The ascending keys of each block, int64 (num_rows,).
        group_rows: The rows of each group but the last.

    Returns:
        How many rows of each block each group has, int64 (num_groups, num_blocks): in a block the
        rows of the first group come first.
    """
    block_of = np.repeat(np.arange(len(keys)), [len(own) for own in keys])
    order = np.argsort(np.concatenate([np.zeros(0, np.int64), *keys]), kind="stable")
    num_groups = -(-len(order) // group_rows)
    cells = np.arange(len(order)) // group_rows * len(keys) + block_of[order]
    counts: Integers = np.bincount(cells, minlength=num_groups * len(keys))
    return counts.reshape(num_groups, len(keys))
