"""One iteration over a loader's epochs in one process: its parts, its epochs and its end."""

import logging
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from featstore.base.errors import ConfigError, DispatchError, StateError
from featstore.base.telemetry import span
from featstore.dispatch.orders import WorkerInfo
from featstore.dispatch.plan import Done
from featstore.dispatch.receipt import read_receipt
from featstore.dispatch.recording import Recording, recording_in
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import Claim
from featstore.files.lineage import LineageDataset, LineageRun
from featstore.loader.batches.bad_files import SKIP
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.batches.stats import (
    NOTHING_WAITS,
    EpochReading,
    EpochTimes,
    padding_note,
    verdict,
)
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.dynamic_epoch import (
    DynamicEpoch,
    report_all_done,
    report_quarantined,
)
from featstore.loader.iteration.hand_over import HandOver, MadeBatch, RowBar
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.rank_steps import RankSteps, agreement
from featstore.loader.iteration.rendezvous import Meeting
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.slice_source import Resources, SliceSource
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.worker import worker_name
from featstore.loader.plan.follow import Follower, NewFiles
from featstore.loader.plan.ordering import REPLAY, uneven_shares
from featstore.loader.request.matching import SelectedFiles

# The documented name of the logger for the verdicts of epochs.
_LOG = logging.getLogger("featstore.loader")
_SHARES_LOG = logging.getLogger(__name__)


class Iteration:
    """One iteration: owns its parts and runs its epochs. For one consumer; `close` may be called
    from any thread.

    Args:
        job: What is read.
        meeting: The iteration, as the workers agreed on it.
        start: The state in which it begins.
        resources: What the process has for it.

    Attributes:
        delivery: What is pending and delivered.
        steps: The steps on which ranks agree; None if ranks may make different numbers of steps.
        meeting: The iteration, as the workers agreed on it.
        follows: Whether the table is followed.
        pauses: Whether `slices` yields None between two epochs.
        is_between_epochs: Whether it has just done so.
        lineage: Sends OpenLineage events, after `tell_lineage`.

    Raises:
        ConfigError: A table is followed in a DataLoader worker.
    """

    def __init__(
        self,
        job: Job,
        meeting: Meeting,
        start: LoaderState,
        resources: Resources,
    ) -> None:
        self._job, self.meeting = job.at(start.followed), meeting
        self._stats = stats = resources.stats
        self.pauses = self.is_between_epochs = False
        self.follows = job.follow is not None
        if self.follows and meeting.worker.is_dataloader:
            raise ConfigError(
                "follow: expected a process that reads by itself, found a worker of a DataLoader, "
                "which asks its workers in turn: one that waits for new partitions would hold up "
                "the others; iterate the loader without a DataLoader"
            )
        self._follower = None
        if job.follow is not None and start.followed is not None:
            self._follower = Follower(job.follow, start.followed)
        self._worker = worker_name()
        self._in_step = meeting.worker.in_step if job.in_step is None else job.in_step
        self.delivery = Delivery(start, stats.counts, tells=job.ordering.is_dynamic)
        self._reports = Reports(self.delivery, stats, job.terms)
        self._source = SliceSource(
            resources,
            self.delivery,
            self._reports,
            job.share_of_host(meeting.worker),
            meeting.worker.num_workers if job.ordering.has_whole_splits else 1,
        )
        self._row_bar = None
        if job.shows(start):
            self._row_bar = RowBar(stats, resources.stager, job.num_rows_left(start))
        self._hand_over = HandOver(
            stats, self._row_bar, is_shared=meeting.worker.is_dataloader, debug=job.debug
        )
        steps, self.steps = agreement(job, meeting, start), None
        if steps is not None:
            self.steps = RankSteps(
                steps,
                job,
                meeting,
                lambda: self._job.parts(meeting.worker),
                self.delivery,
                self._hand_over,
                self._reports,
                lambda: self._num_own_rows(start),
            )
        self._quarantined: list[str] = []
        self._has_ended = False
        # The epoch, and the counts and the clocks at its begin.
        self._begun: tuple[int, Counter[str], EpochTimes] | None = None
        self._steps_before = self._num_steps()
        self.lineage, self._num_rows_before = LineageRun("", (), is_on=False), stats.counts["rows"]
        if self._in_step and job.ordering.is_dynamic:
            self._warn_of_uneven_shares()

    @property
    def is_exhausted(self) -> bool:
        """Whether the iteration ended by itself: no rows are left, or the ranks agreed to stop."""
        return self._has_ended or self.delivery.is_stopped

    @property
    def state_handed_over(self) -> LoaderState:
        """The state in which the batch that was handed over last counts as delivered. After the end
        it is at the end of the last epoch.

        Raises:
            StateError: In one of several DataLoader workers, in an iteration of several epochs: the
                others may be in another epoch.
        """
        is_one_of_several = (
            self.meeting.worker.is_dataloader and self.meeting.worker.num_workers > 1
        )
        if is_one_of_several and self._job.num_epochs > 1:
            raise StateError(
                "a StatefulDataLoader of several workers: expected a loader with num_epochs 1, "
                f"found {self._job.num_epochs}: workers may be more than one epoch apart, and such "
                "states cannot be merged; iterate once for each epoch"
            )
        return self.delivery.state_with_given

    @property
    def queues(self) -> dict[str, int]:
        """What waits between the threads, and what is made and reserved ahead of the loop."""
        pending = {"pending_batches": self.delivery.num_pending}
        return NOTHING_WAITS | self._source.waiting | pending | self._reports.row_counts

    def slices(self) -> Generator[BatchSlice | None, None, None]:
        """The batch slices of all remaining epochs. The consumer takes the next one only when the
        last one is added to the delivery. If it `pauses`, None comes between two epochs.

        Raises:
            DispatchError: An earlier start of the run has read all rows, or no worker could read
                some of them.
        """
        end = self.meeting.first_epoch + self._job.num_epochs
        finds_all_done = self.meeting.is_repeated and self._job.ordering.is_dynamic
        for epoch in self._epochs(end):
            num_rows = self._stats.counts["rows"]
            with span("epoch", is_current=False, epoch=epoch, worker=self._worker) as note:
                self._begun = epoch, Counter(self._stats.counts), self._times()
                if self._job.ordering.is_dynamic:
                    with DynamicEpoch(
                        self._job,
                        self.meeting,
                        epoch,
                        worker=self._worker,
                        in_step=self._in_step,
                        delivery=self.delivery,
                        reports=self._reports,
                        stats=self._stats,
                        is_staged=self._is_staged if self._source.stages else None,
                        done=self.delivery.state.done,
                    ) as dynamic:
                        for claims in dynamic.rounds():
                            yield from self._source.slices(self._job, epoch, claims)
                        if self._in_step and self.steps is None:
                            dynamic.note_left_open()
                    self._quarantined += [
                        f"epoch {epoch}: {split}" for split in dynamic.quarantined
                    ]
                    finds_all_done &= dynamic.found_all_done
                else:
                    yield from self._in_order(epoch)
                note(rows=self._stats.counts["rows"] - num_rows)
            if self.delivery.is_closed:
                return
            self._judge()
            self._end_epoch(is_last=epoch + 1 == end and not self.follows)
            if self.pauses and epoch + 1 < end:
                self.is_between_epochs = True
                yield None
                self.is_between_epochs = False
        if finds_all_done and not self.follows:
            report_all_done(self.meeting, end, ends_finished=self._job.ends_finished)
        self._has_ended = True
        report_quarantined(self._quarantined, self._job.terms, skips=self._job.on_bad_file == SKIP)

    def tell_lineage(self, table: LineageDataset) -> None:
        """Sends OpenLineage events of this worker's iteration, if they are configured."""
        self.lineage = LineageRun("featstore.train", [table])

    def complete_lineage(self) -> None:
        """Tells what this worker delivered. The first one adds the receipts of the epochs, in which
        other workers may still be.
        """
        if not self.lineage.is_on:
            return
        meeting, state = self.meeting, self.delivery.state
        epochs = range(meeting.first_epoch, meeting.first_epoch + self._job.num_epochs)
        report: dict[str, Any] = {
            "run_id": meeting.run_id,
            "keys": meeting.prefix,
            "worker": self._worker,
            "index": meeting.worker.index,
            "num_workers": meeting.worker.num_workers,
            "epochs": list(epochs),
            "rows": self._stats.counts["rows"] - self._num_rows_before,
            "plan": state.plan,
            "request": state.request,
        }
        if self._job.ordering.is_dynamic and meeting.worker.index == 0 and not self.follows:
            try:
                report["receipts"] = {str(epoch): self._receipt(epoch) for epoch in epochs}
            except DispatchError as error:  # The epochs are over, and need the store no more.
                _LOG.warning("OpenLineage: no receipts: %s", error)
        self.lineage.note(report)
        self.lineage.end("COMPLETE")

    def _receipt(self, epoch: int) -> dict[str, Any]:
        """The totals of the epoch's receipt."""
        with closing(self.meeting.address.open()) as store:
            found = read_receipt(store, EpochKeys(self.meeting.prefix, epoch)).as_dict()
        return {key: value for key, value in found.items() if key != "splits"}

    def batch(self, rows: BatchSlice | None) -> MadeBatch | None:
        """The next batch, to be added to the delivery.

        Args:
            rows: Its rows; None if there are no more.

        Returns:
            The batch, which is padding if ranks in step need one without rows; None at the end.
        """
        if self.steps is not None:
            return self.steps.batch(rows)
        return None if rows is None else self._hand_over.made(rows)

    def acknowledge(self) -> None:
        """Counts the batch that the consumer has as delivered."""
        if self.delivery.acknowledge():
            self._reports.tell(is_complete=True)

    def add_without_batch(self, rows: BatchSlice) -> None:
        """Adds progress without a batch, which is delivered once everything before it is."""
        if self.delivery.add(rows.progress):
            self._reports.tell(is_complete=True)

    def finish(self) -> None:
        """Called when no step follows, because the ranks agreed to stop or no rows are left.

        Raises:
            DispatchError: The ranks have agreed to stop while a silent worker holds unread rows.
        """
        self._judge()
        self._judge_padding()
        self._reports.await_delivery()
        # From here on the last batch is acknowledged, the store has its report, and an agreed stop
        # has taken effect, unless the iteration was closed. One that stopped still holds its
        # leases.
        if self.steps is None or self.delivery.is_closed:
            return
        if self.delivery.is_stopped:
            self._end()  # Releases the claims of rows that tail `drop` leaves out on purpose.
        try:
            self.steps.require_nothing_unread()
        except DispatchError:
            self.delivery.reopen()
            raise

    def close(self) -> None:
        """Releases claims, ends and joins the threads, and closes files. May be called more than
        once, from any thread. Does not wait long for a store that does not answer.
        """
        self.meeting.address.hurry()
        self._end()

    def _end(self) -> None:
        if not self.delivery.close():
            return
        with ExitStack() as parts:  # Runs from the last line to the first, even if one fails.
            if self.steps is not None:
                parts.callback(self.steps.leave)
            parts.callback(self._source.close)
            parts.callback(self.lineage.end, "ABORT")
            if self._row_bar is not None:
                parts.callback(self._row_bar.close)
            parts.callback(self._reports.close)

    def _is_staged(self, path: str) -> bool:
        return self._source.is_staged(self._job.files[path][0])

    def _epochs(self, end: int) -> Iterator[int]:
        """The remaining epochs of the iteration. A followed table has one epoch per plan, for which
        the job is replaced.
        """
        epoch = self.delivery.state.epoch
        if self._follower is None:
            yield from range(epoch, end)
            return
        address, closed = self.meeting.address, self.delivery.closed
        while True:
            new = self._follower.next(address, EpochKeys(self.meeting.prefix, epoch), closed)
            if new is None:
                return
            self._job = self._job.of_plan(new)
            self.delivery.begin_plan(**self._plan_of_state())
            yield epoch
            epoch += 1

    def _end_epoch(self, *, is_last: bool) -> None:
        """Moves on to the next epoch. All of this one is delivered, unless ranks stopped."""
        if self._follower is not None:
            self._follower.finish(self._job.files)
            none = NewFiles(files=SelectedFiles.of(()), table=self._job.table)
            self._job = self._job.of_plan(none)
        plan = self._plan_of_state()
        self.delivery.end_epoch(is_last=is_last, **plan)
        self._reports.bad_files.clear()  # They are counted and warned of again.

    def _plan_of_state(self) -> dict[str, Any]:
        """The fields of a state that change with the plan of a followed table."""
        if self._follower is None:
            return {}
        plan = {"table": self._job.table, "plan": self._job.plan_digest}
        return {"followed": self._follower.followed, **plan}

    def _in_order(self, epoch: int) -> Iterator[BatchSlice]:
        """The worker's batch slices of an epoch in order `static`, `rank` or `replay`."""
        for job, claims in self._turns(epoch, self.delivery.state.done):
            if not self.delivery.is_closed:
                yield from self._source.slices(job, epoch, claims)
            del job  # The files of a part are freed before those of the next are listed.

    def _num_own_rows(self, start: LoaderState) -> int | None:
        """The rows of this worker's claims from the current epoch on; None in order `dynamic`."""
        if self._job.ordering.is_dynamic:
            return None
        end = start.first_epoch + self._job.num_epochs
        return sum(
            (claim.end_row or claim.split.num_rows) - claim.start_row
            for epoch in range(self.delivery.state.epoch, end)
            for _, claims in self._turns(epoch, start.delivered.get(epoch, {}))
            for claim in claims
        )

    def _turns(self, epoch: int, done: Done) -> Iterator[tuple[Job, Iterator[Claim]]]:
        worker, is_replay = self.meeting.worker, self._job.ordering.kind == REPLAY
        worker_info = WorkerInfo(  # Recorded orders name workers by the index in their leases.
            index=worker.index if is_replay else worker.static_index,
            num_workers=worker.num_workers,
        )
        return self._job.turns(epoch, worker_info, done, partial(self._recorded, epoch))

    def _recorded(self, epoch: int, loader: str) -> Recording:
        with closing(self.meeting.address.open()) as store:
            return recording_in([store], loader, self.meeting.run_id, epoch)

    def _times(self) -> EpochTimes:
        return self._stats.times(**self._source.staging_waits())

    def _judge(self) -> None:
        """Counts and judges the epoch that was begun, once: at its end, or where ranks stop."""
        if self._begun is None:
            return
        (epoch, counts_before, before), self._begun = self._begun, None
        stats = self._stats
        stats.counts["epochs"] += 1
        counts = {name: number - counts_before[name] for name, number in stats.counts.items()}
        reading = EpochReading(
            awaited=stats.awaited,
            wanted_budget_bytes=stats.budget_wanted(counts),
            is_dynamic=self._job.ordering.is_dynamic,
        )
        told = verdict(self._times().since(before), counts.get("batches", 0), reading)
        stats.verdict = f"epoch {epoch}: {told}"
        _LOG.info("%s", self._stats.verdict)

    def _warn_of_uneven_shares(self) -> None:
        """Warns once of a table of too few splits, in the first worker."""
        worker = self.meeting.worker
        text = uneven_shares(len(self._job.splits), worker.num_workers)
        if text and worker.index == 0 and self._stats.is_first("uneven_shares"):
            _SHARES_LOG.warning("%s (logged once)", text)

    def _num_steps(self) -> tuple[int, int]:
        """Padding batches, and all batches, of the loader."""
        counts = self._stats.counts
        return counts["padding_batches"], counts["padding_batches"] + counts["batches"]

    def _judge_padding(self) -> None:
        """Adds to the verdict of the last epoch if much of the iteration was padding."""
        padding, steps = (
            now - before for now, before in zip(self._num_steps(), self._steps_before, strict=True)
        )
        if note := padding_note(padding, steps):
            self._stats.verdict += f"; {note}"
            _LOG.info("%s", note)
