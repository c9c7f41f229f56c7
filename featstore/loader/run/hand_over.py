"""What happens to a batch on its way to the consumer: counted, shown, checked, shared."""

import zlib
from typing import TextIO

import numpy as np
from tqdm import tqdm

from featstore.errors import BatchError
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.run.delivery import Delivery
from featstore.loader.stats import Stats
from featstore.staging.stager import Stager
from featstore.tensors.batch import Batch, Column, Jagged
from featstore.tensors.column_keys import LABEL, WEIGHT, Key
from featstore.tensors.dtypes import array_of
from featstore.tensors.shared_batches import shared

_ACCESS = {LABEL: "batch.labels[{!r}]", WEIGHT: "batch.weight ({!r})"}


class HandOver:
    """Hands batches over to the consumer of one iteration, in its thread.

    Args:
        delivery: Where the batches then are pending.
        stats: Where they are counted.
        stager: Whose staged bytes the progress bar shows.
        row_bar: The progress bar; None for no bar.
        is_shared: Whether batches go to another process, in shared memory.
        debug: Whether to look for writes to a batch when it is acknowledged.
    """

    def __init__(
        self,
        delivery: Delivery,
        stats: Stats,
        stager: Stager | None,
        *,
        row_bar: "RowBar | None",
        is_shared: bool,
        debug: bool,
    ) -> None:
        self._delivery, self._stats, self._stager = delivery, stats, stager
        self._row_bar, self._is_shared, self._debug = row_bar, is_shared, debug

    def hand_over(self, rows: BatchSlice) -> Batch:
        """The slice's batch, which counts as delivered when it is acknowledged."""
        batch = self.sendable(rows.batch())
        check = WriteCheck(batch) if self._debug else None
        self._stats.counts["batches"] += 1
        self._stats.counts["rows"] += batch.num_rows
        if self._row_bar is not None:
            staged_bytes = self._stager.stats().staged_bytes if self._stager else 0
            self._row_bar.show(batch.num_rows, self._stats, staged_bytes)
        # Last: after an error here a thread that runs ahead would wait for a batch that nobody
        # gets.
        self._delivery.add(rows.progress, check)
        return batch

    def sendable(self, batch: Batch) -> Batch:
        """The batch, in shared memory where it goes to another process."""
        return shared(batch) if self._is_shared else batch


class RowBar:
    """A progress bar: rows, rows per second, the share of time waited for data, and staged bytes.
    Silent where `file` is no terminal.

    One consumer; `close()` from any thread.

    Args:
        label: What stands before the bar.
        num_rows: The total, where it is known.
        wait_s: What the consumer had waited before the bar begins.
        file: Where it is shown; None for standard error.
    """

    def __init__(
        self,
        label: str,
        num_rows: int | None = None,
        *,
        wait_s: float = 0.0,
        file: TextIO | None = None,
    ) -> None:
        self._bar = tqdm(
            desc=label, total=num_rows, unit=" rows", unit_scale=True, disable=None, file=file
        )
        self._wait_s_before = wait_s

    def show(self, num_rows: int, stats: Stats, staged_bytes: int) -> None:
        """So many more rows have been handed out."""
        if self._bar.disable:
            return
        elapsed_s = max(self._bar.format_dict["elapsed"], 1e-9)
        share = (stats.seconds["wait_s"] - self._wait_s_before) / elapsed_s
        staged = f", {staged_bytes / 1e6:,.0f} MB staged" if staged_bytes else ""
        self._bar.set_postfix_str(f"waited {min(share, 1):.0%}{staged}", refresh=False)
        self._bar.update(num_rows)

    def close(self) -> None:
        self._bar.close()


class WriteCheck:
    """Checksums of a batch's columns, which are views that other batches share and must not be
    written to. It makes all columns and keeps the batch: for debugging, not for production.
    """

    def __init__(self, batch: Batch) -> None:
        self._columns = dict(batch.items())
        self._sums = {key: _checksum(column) for key, column in self._columns.items()}

    def require_unwritten(self) -> None:
        """BatchError, naming the column, where a column is not what it was."""
        for key, column in self._columns.items():
            if _checksum(column) != self._sums[key]:
                raise BatchError(
                    f"{_access(key)} was written in place: it is a view of decoded memory that "
                    "other batches share; write to a copy, batch.clone() of all columns or "
                    ".clone() of this one"
                )


def _access(key: Key) -> str:
    role, name = key
    return _ACCESS.get(role, "batch[{!r}]").format(name)


def _checksum(column: Column) -> tuple[int, ...]:
    tensors = (column.values, column.offsets) if isinstance(column, Jagged) else (column,)
    return tuple(zlib.crc32(np.ascontiguousarray(array_of(tensor)).tobytes()) for tensor in tensors)
