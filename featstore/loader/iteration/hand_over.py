"""Hands batches over to the consumer: counts them, shows progress, checks for writes, and puts them
into shared memory for another process. Ranks in step make the steps on which they agree, those
without rows with padding.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TextIO

from tqdm import tqdm

from featstore.base.errors import DispatchError, StateError
from featstore.decoded.file_sources import files_in_place
from featstore.dispatch.plan import Split
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import Claim
from featstore.dispatch.unfinished import open_leases, silent_leases
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.bad_files import SKIP, BadFiles
from featstore.loader.batches.batch_slices import BatchSlice, slice_batches
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixtures import Splits, read_in_order
from featstore.loader.batches.progress import Progress
from featstore.loader.batches.split_reader import SplitReader, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.batches.transform import transformed, write_check
from featstore.loader.iteration.delivery import Check, Delivery
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rendezvous import Meeting
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.step_agreement import Agreed, Counted, Steps
from featstore.loader.iteration.worker import LoaderWorker
from featstore.loader.plan.shuffle import RowOrder
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


def agreement(job: Job, meeting: Meeting, start: LoaderState) -> Steps | None:
    """How the ranks of one iteration agree on the number of steps: by counting in order `static`,
    otherwise through the store. None if ranks may end apart, or there is only one.

    Raises:
        DispatchError: Announcements of an earlier start of the run are still in the store.
    """
    worker = meeting.worker
    if not job.tail.agrees or worker.num_ranks == 1:
        return None
    if (num_steps := job.num_steps(start, worker)) is not None:
        return Counted(num_steps)
    if meeting.is_repeated:
        raise DispatchError(
            f"tail {job.tail}: this iteration was begun before, in an earlier start of the run, "
            "and ranks do not know how many steps were made then: load the state of a checkpoint "
            "in all ranks, or choose another run_id"
        )
    prefix = f"{meeting.prefix}{meeting.first_epoch}/"
    return Agreed(job.tail, meeting.address.open(), prefix, worker, patience_s=job.terms.stall_s)


class RankSteps:
    """The steps of one rank, as the ranks agree on them. One consumer.

    Args:
        steps: The agreement.
        job: What is read; only options that do not change with a plan are taken from it.
        meeting: The iteration that all ranks began.
        parts: Gives what is read now, in parts, to a rank that has no rows of its own as padding.
        delivery: What is stopped when the ranks stop.
        hand_over: Makes the batches.
        limits: Gives the rows at which the rank's claims end now, as `Coordinator.limits` does;
            None if no store is asked for claims.
        num_own_rows: Gives the rank's rows from the beginning of the current epoch on, delivered
            ones included; None if a store is asked for claims.
    """

    def __init__(
        self,
        steps: Steps,
        job: Job,
        meeting: Meeting,
        parts: Callable[[], Iterable[Job]],
        delivery: Delivery,
        hand_over: HandOver,
        limits: Callable[[], Any],
        num_own_rows: Callable[[], int | None],
    ) -> None:
        self._steps, self._job, self._meeting, self._parts = steps, job, meeting, parts
        self._delivery, self._hand_over, self._limits = delivery, hand_over, limits
        self._num_own_rows = num_own_rows
        self._num_steps = 0
        self._last: Batch | None = None

    def batch(self, rows: BatchSlice | None) -> MadeBatch | None:
        """The batch of the next step: of these rows, or padding if there are none. None if the
        ranks stop.
        """
        self._num_steps += 1
        if rows is None:
            if not self._steps.pads(self._num_steps):
                return None
            # From a local name, as below.
            last = self._last
            if last is None:
                last = self._last = some_rows(self._parts()).batch()
            return self._hand_over.made_padding(self._job.tail.padding(last))
        if not self._steps.makes(self._num_steps, rows.num_ahead(self._job.batch_size)):
            # The ranks stop while this one has rows left. The iteration ends once everything that
            # was handed over before is delivered.
            end = self._meeting.first_epoch + self._job.num_epochs
            self._delivery.stop(end, self._limits(), self._num_own_rows())
            return None
        # Returned from a local name: another thread may leave, and so drop `_last`, at any time.
        made = self._hand_over.made(rows)
        self._last = made.batch
        return made

    def leave(self) -> None:
        """Called when the loop is left. May be called more than once, from any thread."""
        self._steps.leave()
        # The iteration, to which `parts` refers, and the last batch's memory are then freed at
        # once, and not only when the collector finds the cycle.
        self._last, self._parts = None, lambda: ()

    def require_nothing_unread(self) -> None:
        """Called after the last step. Waits, for at most the length of a lease, for signs of life
        from workers that hold rows. Rows that are dropped on purpose do not count.

        Raises:
            DispatchError: A silent worker holds rows of the iteration.
        """
        if not self._job.ordering.is_dynamic:
            return
        lease_s, unread = self._job.terms.lease_s, []
        with closing(self._meeting.address.open()) as store:
            first_epoch = self._meeting.first_epoch
            for epoch in range(first_epoch, first_epoch + self._job.num_epochs):
                keys = EpochKeys(self._meeting.prefix, epoch)
                unread += silent_leases(
                    store, keys, lease_s, threading.Event(), self._meeting.clock
                )
                if self._job.tail.pads:
                    unread += [lease for lease in open_leases(store, keys) if not lease.is_held]
        if unread:
            raise DispatchError(
                f"tail {self._job.tail}: all ranks have agreed to stop, and rows are unread whose "
                f"holders have been silent for {lease_s:g} s: {'; '.join(map(str, unread))}; load "
                "the state of a checkpoint in all ranks to read them"
            )


def some_rows(jobs: Iterable[Job]) -> BatchSlice:
    """Rows of the first split that has any, read in place, for a rank that has delivered none that
    it could repeat as padding.

    Raises:
        StateError: No split has rows.
    """
    for job in jobs:
        for split in job.splits:
            with closing(rows_in_place(job, [split])) as slices:
                if (rows := next(slices, None)) is not None:
                    return rows
    raise StateError(
        "tail pad: this rank has no rows to pad with, and no split has any: choose tail join, or "
        "another `where`"
    )


def rows_in_place(job: Job, splits: Iterable[Split]) -> Generator[BatchSlice, None, None]:
    """The rows of splits as batches in the order of the files, read where these are stored, without
    a store and in this thread.
    """
    share, stats = job.share_of_host(LoaderWorker.here()), Stats()
    budget, skip = Budget(share.budget_bytes), None
    if job.on_bad_file == SKIP:
        skip = BadFiles(stats).skip

    def work() -> Iterator[Work]:
        for index, split in enumerate(splits):
            claim = Claim(index=index, split=split, fence=0, start_row=0)
            file, partition = job.files[split.path]
            yield Work(claim=claim, partition=partition, files=files_in_place(file))

    open_split = partial(
        SplitReader,
        request=job.request,
        order=RowOrder(seed=job.seed, epoch=0, shuffle=None),
        stats=stats,
        num_threads=share.num_threads,
        budget=budget,
    )
    assembler = Assembler(job.request, job.batch_size, stats, skip, budget)
    with closing(read_in_order(Splits(work=work(), open_split=open_split, skip=skip))) as mixtures:
        blocks = assembler.all_blocks(mixtures)
        slices = slice_batches(blocks, job.batch_size, drop_last=False)
        if job.transform is not None:
            slices = transformed(slices, job.transform, stats, debug=job.debug)
        for rows in slices:
            if rows.blocks:
                yield rows
