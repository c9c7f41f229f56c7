"""Hands batches over to the consumer: counts them, shows progress, checks for writes, and puts them
into shared memory for another process.
"""

from typing import NamedTuple, TextIO

from tqdm import tqdm

from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.batches.progress import Progress
from featstore.loader.batches.stats import Stats
from featstore.loader.batches.transform import write_check
from featstore.loader.iteration.delivery import Check
from featstore.staging.stager import Stager
from featstore.tensors.batch import Batch
from featstore.tensors.shared_batches import shared


class MadeBatch(NamedTuple):
    """A batch that is not yet handed over.

    Attributes:
        batch: The batch.
        progress: What is delivered with it.
        check: Called when it is acknowledged.
    """

    batch: Batch
    progress: Progress
    check: Check | None = None


class HandOver:
    """Makes the batches of one iteration, in its consumer's thread.

    Args:
        stats: Where they are counted.
        row_bar: The progress bar; None: no bar.
        is_shared: Whether batches go to another process, in shared memory.
        debug: Whether to check for writes to a batch when it is acknowledged.
    """

    def __init__(
        self, stats: Stats, row_bar: "RowBar | None", *, is_shared: bool, debug: bool
    ) -> None:
        self._stats, self._row_bar = stats, row_bar
        self._is_shared, self._debug = is_shared, debug

    def made(self, rows: BatchSlice) -> MadeBatch:
        """The slice's batch, counted."""
        batch = rows.batch()
        if self._is_shared:
            batch = shared(batch)
        self._stats.counts["batches"] += 1
        self._stats.counts["rows"] += batch.num_rows
        if rows.num_values:
            self._stats.counts["batch_values"] += rows.num_values
        if self._row_bar is not None:
            self._row_bar.show(batch.num_rows)
        return MadeBatch(batch, rows.progress, write_check(batch) if self._debug else None)

    def made_padding(self, padding: Batch) -> MadeBatch:
        """A batch that delivers no rows, and is counted apart."""
        self._stats.counts["padding_batches"] += 1
        return MadeBatch(shared(padding) if self._is_shared else padding, Progress(()))


class RowBar:
    """A progress bar with rows, rows per second, the share of time waited for data, and staged
    bytes. Shows nothing if `file` is not a terminal.

    For one consumer; `close` may be called from any thread.

    Args:
        stats: Where it is counted how long the consumer waited.
        stager: Stages the bytes; None: nothing is staged.
        num_rows: The total; None: unknown.
        file: Where it is shown; None is standard error.
    """

    def __init__(
        self,
        stats: Stats,
        stager: Stager | None = None,
        num_rows: int | None = None,
        file: TextIO | None = None,
    ) -> None:
        self._bar = tqdm(
            desc="train", total=num_rows, unit=" rows", unit_scale=True, disable=None, file=file
        )
        self._stats, self._stager = stats, stager
        self._wait_s_before = stats.seconds["wait_s"]

    def show(self, num_rows: int) -> None:
        """Advances the bar by `num_rows`."""
        if self._bar.disable:
            return
        elapsed_s = max(self._bar.format_dict["elapsed"], 1e-9)
        share = (self._stats.seconds["wait_s"] - self._wait_s_before) / elapsed_s
        staged_bytes = self._stager.stats().staged_bytes if self._stager else 0
        staged = f", {staged_bytes / 1e6:,.0f} MB staged" if staged_bytes else ""
        self._bar.set_postfix_str(f"waited {min(share, 1):.0%}{staged}", refresh=False)
        self._bar.update(num_rows)

    def close(self) -> None:
        self._bar.close()
