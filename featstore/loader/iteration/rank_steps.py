"""Ranks that train in step: which steps all of them make, and padding for ranks without rows."""

import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from featstore.base.errors import DispatchError, StateError
from featstore.decoded.file_sources import files_in_place
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import Claim
from featstore.dispatch.unfinished import open_leases, silent_leases
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.batch_slices import BatchSlice, slice_batches
from featstore.loader.batches.mixing import read_in_order
from featstore.loader.batches.split_reader import SplitReader
from featstore.loader.batches.stats import Stats
from featstore.loader.batches.work import Work
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.hand_over import HandOver, MadeBatch
from featstore.loader.iteration.iterations import StartedIteration
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.step_agreement import JOIN, PAD, Agreed, Counted, Steps
from featstore.loader.plan.shuffle import RowOrder
from featstore.tensors.batch import Batch, Column, Columns
from featstore.tensors.column_keys import WEIGHT, Key, Keys


def agreement(job: Job, started: StartedIteration, start: LoaderState) -> Steps | None:
    """How the ranks of one iteration agree on the number of steps: by counting in order `static`,
    otherwise through the store. None if ranks may end apart, or there is only one.

    Raises:
        DispatchError: Announcements of an earlier start of the run are still in the store.
    """
    worker = started.worker
    if job.tail == JOIN or worker.num_ranks == 1:
        return None
    if (num_steps := job.num_steps(start, worker)) is not None:
        return Counted(num_steps)
    if started.is_repeated:
        raise DispatchError(
            f"tail {job.tail}: this iteration was begun before, in an earlier start of the run, "
            "and ranks do not know how many steps were made then: load the state of a checkpoint "
            "in all ranks, or choose another run_id"
        )
    prefix = f"{started.prefix}{started.first_epoch}/"
    return Agreed(job.tail, started.address.open(), prefix, worker, patience_s=job.terms.stall_s)


class RankSteps:
    """The steps of one rank, as the ranks agree on them. One consumer.

    Args:
        steps: The agreement.
        job: What is read; only options that do not change with a plan are taken from it.
        started: The iteration that all ranks began.
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
        started: StartedIteration,
        parts: Callable[[], Iterable[Job]],
        delivery: Delivery,
        hand_over: HandOver,
        limits: Callable[[], Any],
        num_own_rows: Callable[[], int | None],
    ) -> None:
        self._steps, self._job, self._started, self._parts = steps, job, started, parts
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
            return self._padding() if self._steps.pads(self._num_steps) else None
        if not self._steps.makes(self._num_steps, rows.num_ahead(self._job.batch_size)):
            # The ranks stop while this one has rows left. The iteration ends once everything that
            # was handed over before is delivered.
            end = self._started.first_epoch + self._job.num_epochs
            self._delivery.stop(end, self._limits(), self._num_own_rows())
            return None
        # Returned from a local name: another thread may leave, and so drop `_last`, at any time.
        made = self._hand_over.made(rows)
        self._last = made.batch
        return made

    def leave(self) -> None:
        """Called when the loop is left. May be called more than once, from any thread."""
        self._steps.leave()
        # The run, to which `parts` refers, and the last batch's memory are then freed at once, and
        # not only when the collector finds the cycle.
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
        with closing(self._started.address.open()) as store:
            first_epoch = self._started.first_epoch
            for epoch in range(first_epoch, first_epoch + self._job.num_epochs):
                keys = EpochKeys(self._started.prefix, epoch)
                unread += silent_leases(
                    store, keys, lease_s, threading.Event(), self._started.clock
                )
                if self._job.tail == PAD:
                    unread += [lease for lease in open_leases(store, keys) if not lease.is_held]
        if unread:
            raise DispatchError(
                f"tail {self._job.tail}: all ranks have agreed to stop, and rows are unread whose "
                f"holders have been silent for {lease_s:g} s: {'; '.join(map(str, unread))}; load "
                "the state of a checkpoint in all ranks to read them"
            )

    def _padding(self) -> MadeBatch:
        last = self._last
        if last is None:
            last = self._last = some_rows(self._parts()).batch()
        return self._hand_over.made_padding(padding_of(last))


@dataclass(frozen=True)
class WeightlessColumns:
    """The same columns with all weights zero."""

    columns: Columns

    @property
    def keys(self) -> Keys:
        return self.columns.keys

    def made(self) -> dict[Key, Column]:
        return {key: _weightless(key, column) for key, column in self.columns.made().items()}

    def packed(self) -> "WeightlessColumns":
        return WeightlessColumns(self.columns.packed())

    def moved(self, **how: Any) -> "WeightlessColumns":
        return WeightlessColumns(self.columns.moved(**how))


def _weightless(key: Key, column: Column) -> Column:
    if key[0] == WEIGHT and isinstance(column, torch.Tensor):
        return torch.zeros_like(column)
    return column


def padding_of(batch: Batch) -> Batch:
    """A padding batch: the rows of `batch`, with `is_padding` true, and weights, if any, zero."""
    columns = WeightlessColumns(batch.columns)
    return Batch(columns, num_rows=len(batch), extras=batch.extras, is_padding=True)


def some_rows(jobs: Iterable[Job]) -> BatchSlice:
    """Rows of the first split that has any, read in place, for a rank that has delivered none that
    it could repeat as padding.

    Raises:
        StateError: No split has rows.
    """
    for job in jobs:
        order = RowOrder(seed=job.seed, epoch=0, shuffle=None)
        open_split = partial(SplitReader, request=job.request, order=order, stats=Stats())
        for index, split in enumerate(job.splits):
            file, partition = job.files[split.path]
            claim = Claim(index=index, split=split, fence=0, start_row=0)
            work = Work(claim=claim, partition=partition, files=files_in_place(file))
            assembler = Assembler(job.request, job.batch_size, Stats())
            with closing(read_in_order(iter([work]), open_split)) as mixtures:
                for some in slice_batches(
                    assembler.all_blocks(mixtures), job.batch_size, drop_last=False
                ):
                    if some.blocks:
                        return some
    raise StateError(
        "tail pad: this rank has no rows to pad with, and no split has any: choose tail join, or "
        "another `where`"
    )
