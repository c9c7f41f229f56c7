"""Exact counts of any number of values in bounded memory: what does not fit is sorted to disk."""

import errno
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from featstore.base.closing import Closing
from featstore.base.errors import DiskFullError
from featstore.statistics.value_counts import ValueCounts, count_values, merge_counts

BUDGET_BYTES = 192 << 20
# Parts of fewer values than this are kept aside before they are merged into the counts so far.
_MERGE_VALUES = 1 << 16
_LEAST_BLOCK = 512  # the least values of a run that are read at once


class CountingSpace(Closing):
    """The memory and the temporary file that the counters of one profile share. Not thread-safe.

    When the counts of all counters take more than the budget, those of the largest counter are
    written to the file, as a run of ascending values, until the others fit.

    Args:
        budget_bytes: The bytes that counts may take in memory. Merging takes as much again for a
            moment.
    """

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.counters: list[ValueCounter] = []
        self._num_bytes = 0
        self._file: BinaryIO | None = None

    def close(self) -> None:
        """Forgets all counts and removes the file."""
        self.counters.clear()
        if self._file is not None:
            self._file.close()

    @property
    def num_spilled_bytes(self) -> int:
        """The bytes written to the file."""
        return 0 if self._file is None else self._file.seek(0, 2)

    def changed(self, num_bytes: int) -> None:
        """Notes that a counter has grown or shrunk by these bytes, and spills if need be."""
        self._num_bytes += num_bytes
        while self._num_bytes > self.budget_bytes:
            max(self.counters, key=lambda counter: counter.num_bytes).spill()

    def write(self, arrays: Sequence[NDArray[Any]]) -> list[int]:
        """Writes arrays one after the other, and returns where each begins.

        Raises:
            DiskFullError: There is no room on the disk of temporary files.
        """
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="featstore-counts-")  # noqa: SIM115
        begins = []
        try:
            for array in arrays:
                begins.append(self._file.seek(0, 2))
                self._file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
            self._file.flush()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFullError(
                f"exact counts do not fit into {self.budget_bytes:,} bytes of memory, and writing "
                f"the rest to {tempfile.gettempdir()} failed ({error.strerror}); free space there, "
                f"point TMPDIR to a larger disk, or profile fewer slots or rows at once"
            ) from error
        return begins

    def read(self, begin: int, dtype: np.dtype[Any], num: int) -> NDArray[Any]:
        """Reads `num` items of an array from `begin`."""
        assert self._file is not None  # what was written has made it
        self._file.seek(begin)
        return np.frombuffer(self._file.read(num * dtype.itemsize), dtype)


class ValueCounter:
    """Counts the values of one slot.

    Args:
        space: Where counts may be.
        dtype: The type of the values.
        num_weights: The number of sums that each value has.

    Attributes:
        num_values: How many values were added.
        num_bytes: The bytes that its counts take in memory.
        none: The counts of no values, with the types of this counter's.
    """

    def __init__(self, space: CountingSpace, dtype: type[np.generic], num_weights: int = 0) -> None:
        self.num_values = self.num_bytes = 0
        self._space = space
        space.counters.append(self)
        self.none = count_values(np.zeros(0, dtype), [np.zeros(0)] * num_weights)
        self._counts, self._parts, self._runs = self.none, list[ValueCounts](), list[_SpilledRun]()

    def add(self, values: NDArray[Any], weights: Sequence[NDArray[np.float64]] = ()) -> None:
        """Counts values, (num,), with a weight for each sum, float64 (num,). No value is NaN."""
        self.num_values += len(values)
        self._parts.append(count_values(values, weights))
        if sum(map(len, self._parts)) > max(_MERGE_VALUES, len(self._counts)):
            self._merge()
        self._measure()

    def merged(self) -> Iterator[ValueCounts]:
        """All counts, in parts of ascending values that do not overlap. At least one part."""
        self._merge()
        if not self._runs:
            yield self._counts
            return
        self.spill()
        bytes_each = 8 * (2 + len(self.none.sums))
        block = self._space.budget_bytes // (4 * bytes_each * len(self._runs))
        cursors = [
            _Cursor(self._space, run, self.none.values.dtype, max(_LEAST_BLOCK, block))
            for run in self._runs
        ]
        while cursors:
            # No run has values up to this one that are not in its block.
            bound = min(cursor.block.values[-1] for cursor in cursors)
            yield merge_counts([cursor.take(bound) for cursor in cursors])
            cursors = [cursor for cursor in cursors if cursor.fill()]

    def spill(self) -> None:
        """Moves the counts in memory to the file."""
        self._merge()
        if len(self._counts):
            begins = self._space.write(
                [self._counts.values, self._counts.counts, *self._counts.sums]
            )
            self._runs.append(_SpilledRun(num_values=len(self._counts), begins=tuple(begins)))
        self._counts = self.none
        self._measure()

    def _merge(self) -> None:
        self._counts = merge_counts([self._counts, *self._parts])
        self._parts = []

    def _measure(self) -> None:
        before = self.num_bytes
        self.num_bytes = sum(part.num_bytes for part in (self._counts, *self._parts))
        self._space.changed(self.num_bytes - before)


@dataclass(frozen=True, kw_only=True)
class _SpilledRun:
    """Counts in the file: where values, counts and each sum begin."""

    num_values: int
    begins: tuple[int, ...]


class _Cursor:
    """Reads a run block by block. It holds the next block, which is not empty."""

    def __init__(
        self, space: CountingSpace, run: _SpilledRun, dtype: np.dtype[Any], block_values: int
    ) -> None:
        self.block: ValueCounts
        self._space, self._run, self._dtype = space, run, dtype
        self._block_values, self._num_read = block_values, 0
        self._read()

    def take(self, bound: Any) -> ValueCounts:
        """Takes the values up to the bound out of the block."""
        num = int(np.searchsorted(self.block.values, bound, "right"))
        taken, self.block = self.block[:num], self.block[num:]
        return taken

    def fill(self) -> bool:
        """Reads the next block if this one is empty. False if there is none."""
        if not len(self.block) and self._num_read < self._run.num_values:
            self._read()
        return len(self.block) > 0

    def _read(self) -> None:
        num = min(self._block_values, self._run.num_values - self._num_read)
        types = [self._dtype, np.dtype(np.int64), *[np.dtype(np.float64)] * len(self._run.begins)]
        values, counts, *sums = (
            self._space.read(begin + self._num_read * dtype.itemsize, dtype, num)
            for begin, dtype in zip(self._run.begins, types, strict=False)
        )
        self._num_read += num
        self.block = ValueCounts(
            values=values, counts=counts, sums=np.array(sums).reshape(len(sums), num)
        )
