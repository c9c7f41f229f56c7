"""Exact counts of any number of values in bounded memory: what does not fit is sorted to disk."""

import errno
import tempfile
from collections.abc import Iterator, Sequence
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
        """All counts, in parts of ascending values that do not overlap. At least one part. To be
        called once.
        """
        self._merge()
        if not self._runs:
            yield self._counts
            return
        self.spill()
        # The blocks of all runs take a quarter of the budget: merging copies and sorts them.
        bytes_each = 8 * (2 + len(self.none.sums))
        block = self._space.budget_bytes // (4 * bytes_each * len(self._runs))
        for run in self._runs:
            run.begin(max(_LEAST_BLOCK, block))
        runs = self._runs
        while runs:
            # No run has values up to this one that are not in its block.
            bound = min(run.block.values[-1] for run in runs)
            yield merge_counts([run.take(bound) for run in runs])
            runs = [run for run in runs if run.fill()]

    def spill(self) -> None:
        """Moves the counts in memory to the file."""
        self._merge()
        if len(self._counts):
            self._runs.append(_SpilledRun(self._space, self._counts))
        self._counts = self.none
        self._measure()

    def _merge(self) -> None:
        self._counts = merge_counts([self._counts, *self._parts])
        self._parts = []

    def _measure(self) -> None:
        before = self.num_bytes
        self.num_bytes = sum(part.num_bytes for part in (self._counts, *self._parts))
        self._space.changed(self.num_bytes - before)


class _SpilledRun:
    """Ascending values and their counts in the file, read block by block.

    Args:
        space: Where the file is.
        counts: What to write.

    Attributes:
        block: The next values, not empty between `begin` and the end.
    """

    def __init__(self, space: CountingSpace, counts: ValueCounts) -> None:
        # A mask copies: an empty view, as of `[:0]`, would keep all counts in memory.
        self.block = counts[np.zeros(len(counts), np.bool_)]
        self._space, self._num_values, self._num_read = space, len(counts), 0
        arrays = [counts.values, counts.counts, *counts.sums]
        self._dtypes, self._begins = [each.dtype for each in arrays], space.write(arrays)

    def begin(self, block_values: int) -> None:
        """Reads the first block, of at most so many values, as all that follow."""
        self._block_values = block_values
        self.fill()

    def take(self, bound: Any) -> ValueCounts:
        """Takes the values up to the bound out of the block."""
        num = int(np.searchsorted(self.block.values, bound, "right"))
        taken, self.block = self.block[:num], self.block[num:]
        return taken

    def fill(self) -> bool:
        """Reads the next block if this one is empty. False if there is none."""
        num = min(self._block_values, self._num_values - self._num_read)
        if not len(self.block) and num:
            values, counts, *sums = (
                self._space.read(begin + self._num_read * dtype.itemsize, dtype, num)
                for begin, dtype in zip(self._begins, self._dtypes, strict=True)
            )
            self._num_read += num
            self.block = ValueCounts(
                values=values, counts=counts, sums=np.array(sums).reshape(len(sums), num)
            )
        return len(self.block) > 0
