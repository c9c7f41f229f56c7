"""Hands batches over to the consumer: counts them, shows progress, checks for writes, and puts them
into shared memory for another process.
"""

from typing import NamedTuple, TextIO

from tqdm import tqdm

from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.batches.progress import Progress
from featstore.loader.batches.stats import Stats
from featstore.loader.batches.write_check import WriteCheck
from featstore.loader.iteration.delivery import Delivery
from featstore.staging.stager import Stager
from featstore.tensors.batch import Batch
from featstore.tensors.shared_batches import shared


class MadeBatch(NamedTuple):
    """A batch that is not yet handed over.

    Attributes:
        batch: The batch.
        progress: What is delivered with it.
        check: The batch, if it is to be checked for writes when it is acknowledged.
    """

    batch: Batch
    progress: Progress
    check: WriteCheck | None = None


class HandOver:
    """Hands batches over to the consumer of one iteration, in its thread.

    Args:
        delivery: Where the batches become pending.
        stats: Where they are counted.
        stager: The progress bar shows the bytes that it has staged.
        row_bar: The progress bar; None: no bar.
        is_shared: Whether batches go to another process, in shared memory.
        debug: Whether to check for writes to a batch when it is acknowledged.
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

    def made(self, rows: BatchSlice) -> MadeBatch:
        """The slice's batch, counted."""
        batch = self._sendable(rows.batch())
        check = WriteCheck(batch) if self._debug else None
        self._stats.counts["batches"] += 1
        self._stats.counts["rows"] += batch.num_rows
        if self._row_bar is not None:
            staged_bytes = self._stager.stats().staged_bytes if self._stager else 0
            self._row_bar.show(batch.num_rows, self._stats, staged_bytes)
        return MadeBatch(batch, rows.progress, check)

    def made_padding(self, padding: Batch) -> MadeBatch:
        """A batch that delivers no rows, and is counted apart."""
        self._stats.counts["padding_batches"] += 1
        return MadeBatch(self._sendable(padding), Progress(()))

    def hand_over(self, made: MadeBatch) -> Batch:
        """The batch, which is pending until it is acknowledged.

        Called when nothing can fail any more before the consumer has it: otherwise a thread that
        runs ahead would wait for the delivery of a batch that the consumer never gets.
        """
        self._delivery.add(made.progress, made.check)
        return made.batch

    def _sendable(self, batch: Batch) -> Batch:
        """The batch; in shared memory if it goes to another process."""
        return shared(batch) if self._is_shared else batch


class RowBar:
    """A progress bar with rows, rows per second, the share of time waited for data, and staged
    bytes. Shows nothing if `file` is not a terminal.

    For one consumer; `close` may be called from any thread.

    Args:
        label: The text before the bar.
        num_rows: The total; None: unknown.
        wait_s: How long the consumer had waited before the bar was made.
        file: Where it is shown; None is standard error.
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
        """Advances the bar by `num_rows`."""
        if self._bar.disable:
            return
        elapsed_s = max(self._bar.format_dict["elapsed"], 1e-9)
        share = (stats.seconds["wait_s"] - self._wait_s_before) / elapsed_s
        staged = f", {staged_bytes / 1e6:,.0f} MB staged" if staged_bytes else ""
        self._bar.set_postfix_str(f"waited {min(share, 1):.0%}{staged}", refresh=False)
        self._bar.update(num_rows)

    def close(self) -> None:
        self._bar.close()
