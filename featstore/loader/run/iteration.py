"""One pass over a loader's epochs: claims to work, work to blocks, blocks to batches, batches to
delivered progress.
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from featstore.dispatch.accounts.recording import NOT_RECORDED, Recording, recorded_by
from featstore.dispatch.accounts.unfinished import open_leases, silent_leases
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.orders import WorkerInfo
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.terms import Claim, WaitFor
from featstore.errors import ConfigError, DispatchError, StateError
from featstore.loader.bad_files import SKIP, BadFiles
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.cutting import Cut, cut
from featstore.loader.batches.pipeline import Ahead, Pipeline
from featstore.loader.batches.transform import transformed
from featstore.loader.plan.follow import Follower, NewFiles
from featstore.loader.rows.memory_budget import Budget
from featstore.loader.rows.resolved import Resolved
from featstore.loader.rows.sources import Parts, StagedStream, parts_in_place, parts_staged
from featstore.loader.rows.split_reader import Memo, Order, SplitReader, Work, read_windows
from featstore.loader.rows.staging_source import stage_items
from featstore.loader.run.agreement import agreement
from featstore.loader.run.boundaries import Boundaries
from featstore.loader.run.delivery import BatchSlice, Delivery
from featstore.loader.run.endings import (
    ALL_DONE,
    FOLLOWED_BY_WORKER,
    QUARANTINED,
    SEVERAL_EPOCHS,
    UNREAD,
)
from featstore.loader.run.job import Job
from featstore.loader.run.padding import some_rows
from featstore.loader.run.passes import Pass
from featstore.loader.run.progress import RowBar
from featstore.loader.run.reporting import Reports
from featstore.loader.run.state import LoaderState
from featstore.loader.run.tail import PAD
from featstore.loader.run.watch import Watch
from featstore.loader.stats import EpochTimes, Stats, verdict
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile
from featstore.tensors.batch import Batch
from featstore.tensors.shared import shared

_LOG = logging.getLogger(__name__)


class _Closeable(Protocol):
    def close(self) -> None: ...


class Run:
    """The threads and the position of one pass in one process; one consumer, close() from any
    thread.
    """

    def __init__(
        self, job: Job, begun: Pass, start: LoaderState, *, stats: Stats, stager: Stager | None
    ) -> None:
        self._job, self._begun, self._stats, self._stager = (
            job.at(start.followed),
            begun,
            stats,
            stager,
        )
        self.follows = job.follow is not None
        if self.follows and begun.is_dataloader:
            raise ConfigError(FOLLOWED_BY_WORKER)
        self._follower = (
            None
            if job.follow is None or start.followed is None
            else Follower(job.follow, start.followed)
        )
        self._worker = f"{start.workers[0]}-{os.getpid()}"
        self._delivery = Delivery(start, stats.counts, tells=job.ordering.is_dynamic)
        self._reports = Reports(self._delivery, stats, job.terms.lease_s)
        self._quarantined: list[str] = []
        self._bad_files = BadFiles(stats)
        self._boundaries = Boundaries(self._job)
        self._has_claimed = self._finds_done = self._is_last_sibling = False
        self._in_step = begun.place.in_step if job.in_step is None else job.in_step
        # What runs for this pass, to be closed with it by any thread, also while another begins it.
        # `_opening` guards the list: nobody closes or waits for a part while holding it. Reentrant
        # for the same reason as the lock of `Delivery`.
        self._open: list[_Closeable] = []
        self._opening = threading.RLock()
        # The consumer waits for the last of the threads.
        self._waits = "wait_s" if job.transform is None else "transform_wait_s"
        self._bar = (
            RowBar("train", job.num_rows_left(start), wait_s=stats.seconds["wait_s"])
            if job.shows(start)
            else None
        )
        self._has_ended, self.batch_size = False, job.batch_size
        self.steps = agreement(job, begun, start)

    @property
    def state(self) -> LoaderState:
        """A copy of where the pass is, at what was delivered last."""
        return self._delivery.state

    @property
    def is_ahead(self) -> bool:
        """Whether a thread asks for batches ahead of the consumer."""
        return self._delivery.is_ahead

    @property
    def is_closed(self) -> bool:
        return self._delivery.is_closed

    @property
    def is_exhausted(self) -> bool:
        """Whether the pass came to its end: no rows are left, or the ranks have stopped."""
        return self._has_ended or self._delivery.is_stopped

    def stop(self) -> None:
        """The ranks agreed to make no further step: the pass ends before its rows have ended, once
        the batches before are delivered."""
        coordinator = self._reports.coordinator
        limits = None if coordinator is None else coordinator.limits()
        self._delivery.stop(self._begun.first_epoch + self._job.num_epochs, limits)

    def finish(self) -> None:
        """No step follows, as the ranks agreed or because no rows are left.

        DispatchError where ranks in step have agreed to stop and a holder that is silent has rows
        of the pass.
        """
        self._await_delivery()
        # Here the last batch is acknowledged, the store knows of it, and an agreed stop has taken
        # effect, unless the run was closed before. Leases of a run that stopped are still held.
        if self.steps is None or self.is_closed:
            return
        if self._delivery.is_stopped:
            self.close()  # Gives back what tail `drop` leaves out on purpose.
        try:
            self._require_nothing_unread()
        except DispatchError:
            self._delivery.reopen()
            raise

    def _require_nothing_unread(self) -> None:
        """Waits for signs of life of those who hold rows, at most a lease. What was dropped on
        purpose is counted."""
        if not self._job.ordering.is_dynamic:
            return
        lease_s, unread = self._job.terms.lease_s, []
        with closing(self._begun.address.open()) as store:
            for epoch in range(
                self._begun.first_epoch, self._begun.first_epoch + self._job.num_epochs
            ):
                keys = EpochKeys(self._begun.prefix, epoch)
                unread += silent_leases(store, keys, lease_s, threading.Event())
                if self._job.tail == PAD:
                    unread += [lease for lease in open_leases(store, keys) if not lease.is_held]
        if unread:
            leases = "; ".join(map(str, unread))
            raise DispatchError(UNREAD.format(tail=self._job.tail, silent_s=lease_s, leases=leases))

    def some_rows(self) -> Cut:
        """Rows of the plan, whoever has delivered them, for a rank that has got none."""
        return some_rows(self._job.parts(self._begun.place))

    @property
    def state_handed_over(self) -> LoaderState:
        """As `state`, with the batch that was handed over last; after the end of the pass, all of
        its last epoch.

        StateError for a DataLoader's worker in a pass of several epochs: others may be in another
        one.
        """
        if (
            self._begun.is_dataloader
            and self._begun.place.num_workers > 1
            and self._job.num_epochs > 1
        ):
            raise StateError(SEVERAL_EPOCHS.format(num=self._job.num_epochs))
        return self._delivery.state_with_given

    def cuts(self) -> Iterator[Cut]:
        """The batches of all epochs that are left, each to be delivered before the next is asked
        for.
        """
        end = self._begun.first_epoch + self._job.num_epochs
        finds_all_done = self._begun.is_repeated
        for epoch in self._epochs(end):
            before = self._times()
            if not self._job.ordering.is_dynamic:
                finds_all_done = False
                yield from self._ordered(epoch)
            else:
                yield from self._dispatched(epoch)
                finds_all_done &= self._finds_done
            if self.is_closed:
                return
            self._stats.counts["epochs"] += 1
            self._judge(epoch, self._times().since(before))
            self._end_epoch(is_last=epoch + 1 == end and not self.follows)
        if finds_all_done and not self.follows:
            told = ALL_DONE.format(
                first=self._begun.first_epoch, last=end - 1, url=self._begun.address.url
            )
            if not self._job.ends_finished:
                raise DispatchError(told)
            _LOG.warning("%s", told)
        self._has_ended = True
        if self._quarantined:
            told = QUARANTINED.format(
                num=self._job.terms.max_failures, splits="; ".join(self._quarantined)
            )
            if self._job.on_bad_file != SKIP:
                raise DispatchError(told)
            _LOG.warning("%s", told)

    def _epochs(self, end: int) -> Iterator[int]:
        """The epochs of the pass; of a followed table one for each plan, which the job is then
        of.
        """
        epoch = self._delivery.epoch
        if self._follower is None:
            yield from range(epoch, end)
            return
        address, closed = self._begun.address, self._delivery.closed
        while (
            new := self._follower.next(address, EpochKeys(self._begun.prefix, epoch), closed)
        ) is not None:
            self._job = self._job.of_plan(new)
            self._boundaries = Boundaries(self._job)
            self._delivery.begin_plan(**self._plan_of_state())
            yield epoch
            epoch += 1

    def _end_epoch(self, *, is_last: bool) -> None:
        """All of the epoch is delivered, unless ranks stopped."""
        if self._follower is not None:
            self._follower.finish(self._job.files)
            self._job = self._job.of_plan(NewFiles(files={}, table=self._job.table))
        self._delivery.end_epoch(is_last=is_last, **self._plan_of_state())
        self._bad_files.clear()

    def _plan_of_state(self) -> dict[str, Any]:
        """What a state says of the plan of a followed table."""
        if self._follower is None:
            return {}
        plan = {"table": self._job.table, "plan": self._job.plan_digest}
        return {"followed": self._follower.followed, **plan}

    def _dispatched(self, epoch: int) -> Iterator[Cut]:
        """What this worker can claim of an epoch."""
        self._is_last_sibling = False
        if self._in_step:
            self._begun.left_open.log_unread()
        try:
            with self._coordinate(epoch) as coordinator, self._settling():
                while (
                    not self.is_closed and (claim := self._awaited(coordinator, epoch)) is not None
                ):
                    yield from self._read(chain([claim], coordinator.claims(WaitFor.NOTHING)))
                    if (
                        self._delivery.has_failed and not self.is_closed
                    ):  # It is offered again, until it is quarantined.
                        self._reports.settle()
                if not self.is_closed:
                    self._finds_done = not self._has_claimed and bool(coordinator.found_all_done)
                    if self._ends_apart and not coordinator.is_done:
                        self._begun.left_open.note(EpochKeys(self._begun.prefix, epoch))
                    self._quarantined += [
                        f"epoch {epoch}: {split}" for split in coordinator.quarantined
                    ]
        finally:
            self._reports.end()

    @property
    def _ends_apart(self) -> bool:
        """Whether this rank ends while others, which live, may still hold rows. Of a DataLoader's
        workers the last one says so. Ranks that agree on their last step look for unread rows after
        it: what `drop` leaves out on purpose is none."""
        is_last = not self._begun.is_dataloader or self._is_last_sibling
        return self._in_step and self.steps is None and is_last

    def _ordered(self, epoch: int) -> Iterator[Cut]:
        """What is this worker's of an epoch, in an order for which nobody is asked."""
        worker_info = WorkerInfo(
            index=self._begun.place.static_index, num_workers=self._begun.place.num_workers
        )
        whole = self._job
        for job, claims in whole.turns(
            epoch, worker_info, self._delivery.done, partial(self._recorded, epoch)
        ):
            self._job = job
            del job
            if not self.is_closed:
                yield from self._read(claims)
            self._job = whole  # Lets go of the files of a part before the next is listed.

    def _recorded(self, epoch: int, loader: str) -> Recording:
        with closing(self._begun.address.open()) as store:
            found = recorded_by(store, loader, self._begun.run_id, epoch)
        if found is None:
            raise DispatchError(NOT_RECORDED.format(epoch=epoch, run_id=self._begun.run_id))
        return found

    def _times(self) -> EpochTimes:
        return self._stats.times(0.0 if self._stager is None else self._stager.stats().wait_s)

    def _judge(self, epoch: int, times: EpochTimes) -> None:
        self._stats.verdict = f"epoch {epoch}: {verdict(times)}"
        _LOG.info("%s", self._stats.verdict)

    def hand_over(self, with_rows: Cut) -> Batch:
        """The cut's batch, which counts as delivered at the next `acknowledge()`."""
        batch = self.sendable(with_rows.batch())
        added = to_deliver(with_rows, Watch(batch) if self._job.debug else None)
        self._stats.counts["batches"] += 1
        self._stats.counts["rows"] += batch.num_rows
        if self._bar is not None:
            self._bar.show(
                batch.num_rows,
                self._stats,
                self._stager.stats().staged_bytes if self._stager else 0,
            )
        # Last: after an error here a thread that runs ahead would wait for a batch that nobody
        # gets.
        self.add(added)
        return batch

    def sendable(self, batch: Batch) -> Batch:
        """The batch, in shared memory where it goes to another process."""
        return shared(batch) if self._begun.is_dataloader else batch

    def require_own_process(self) -> None:
        """DispatchError in a process that was forked off: its copy has no threads, and its rows are
        the parent's.
        """
        self._delivery.require_own_process()

    def run_ahead(self) -> None:
        """From now on a thread asks for batches ahead of the consumer, who gets each by
        `give()`.
        """
        self._delivery.run_ahead()

    def add(self, added: BatchSlice) -> None:
        """It is delivered once it is acknowledged, or, without a batch, once all before it is."""
        if self._delivery.add(added):
            self._reports.tell(is_complete=True)

    def give(self) -> None:
        """The oldest batch that the thread which runs ahead was handed is in the consumer's
        hands.
        """
        self._delivery.give()

    def acknowledge(self) -> None:
        """The batch in the consumer's hands counts as delivered."""
        self._reports.tell(is_complete=self._delivery.acknowledge())

    def wait(self) -> None:
        """A thread that runs ahead waits until all that it added is delivered, or the run
        closed.
        """
        self._delivery.wait()

    def _await_delivery(self) -> None:
        """As `wait`, until the store knows of it too: claims may only be given up then."""
        self.wait()
        self._reports.tell(is_complete=True)

    def close(self) -> None:
        """Gives claims back, ends and joins the threads, lets go of files. May be called more than
        once.
        """
        if not self._delivery.close():
            return
        with ExitStack() as parts:
            if self.steps is not None:
                parts.callback(self.steps.leave)
            with self._opening:
                opened = list(self._open)
            for part in reversed(opened):
                parts.callback(part.close)
            if self._bar is not None:
                parts.callback(self._bar.close)
            if (coordinator := self._reports.coordinator) is not None:
                parts.callback(coordinator.close)
                parts.callback(self._reports.end)
                self._reports.settle()

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """However it ends, tells the store what was delivered, and what could not be read, before
        the coordinator gives it back. A loop that is behind first gets the batches from before an
        error."""
        try:
            yield
        except Exception:
            self.wait()
            raise
        finally:
            self._reports.settle_if_it_can()

    def _coordinate(self, epoch: int) -> Coordinator:
        coordinator = Coordinator(
            self._begun.address,
            plan=self._job.plan(epoch),
            prefix=self._begun.prefix,
            worker=self._worker,
            terms=replace(
                self._job.terms,
                boundaries=self._boundaries.of,
                is_staged=self._is_staged,
                in_step=self._in_step,
            ),
            done=self._delivery.done,
        )
        self._reports.begin(coordinator)
        return coordinator

    def _read(self, claims: Iterable[Claim]) -> Iterator[Cut]:
        """Batches of all that can be claimed without waiting for others; the last of them may be
        short.
        """
        claims = self._noted(claims)
        order = Order(seed=self._job.seed, epoch=self._delivery.epoch, shuffle=self._job.shuffle)

        budget, resolved = Budget(self._job.budget_bytes), Resolved()
        memo = None if self._job.ordering.is_dynamic else Memo()

        def open_split(work: Work) -> SplitReader:
            # Workers of a DataLoader are many: each decodes on one core, as torch computes on one
            # there.
            use_threads = not self._begun.is_dataloader
            return SplitReader(
                work,
                request=self._job.request,
                order=order,
                stats=self._stats,
                use_threads=use_threads,
                memo=memo,
                budget=budget,
                resolved=resolved,
            )

        work = self._direct(claims) if self._stager is None else self._staged(self._stager, claims)
        skip = self._bad_files.skip if self._job.on_bad_file == SKIP else None
        windows = self._stats.paced(
            read_windows(work, open_split, order.interleave, skip), "decode_room_s"
        )
        assembler = Assembler(self._job.request, self._job.batch_size, self._stats, skip)
        pipeline = Pipeline(windows, assembler, budget, self._stats, self._waits)
        self._opened(pipeline)
        cuts = cut(
            pipeline.blocks(),
            self._job.batch_size,
            drop_last=self._job.drop_last,
            is_lost=self._reports.is_lost,
        )
        if self._job.transform is None:
            yield from cuts
        else:
            made = transformed(cuts, self._job.transform, self._delivery.claim_of, self._stats)
            second = Ahead(self._stats.paced(made, "transform_room_s"), self._stats)
            self._opened(second)
            yield from second.items()
            second.close()
        self._await_delivery()
        pipeline.close()
        with self._opening:
            self._open.clear()

    def _opened(self, part: _Closeable, *, is_first: bool = False) -> None:
        """It is closed with the pass: now, where that was closed while this thread began it."""
        with self._opening:
            self._open.insert(0 if is_first else len(self._open), part)
            is_late = self.is_closed
        if is_late:
            part.close()

    def _awaited(self, coordinator: Coordinator, epoch: int) -> Claim | None:
        """A claim for a worker that holds none, as whoever waits for leases of others must: they
        may be waiting too.

        A rank that trains in step with others cannot deliver its last batch before this one goes
        on, so nobody waits for those that live. A DataLoader asks its workers in turn, so only the
        last of them to end waits for workers elsewhere: while it waits the others have nothing to
        deliver. Independent workers wait until every lease is final.
        """
        if self._begun.is_dataloader and not self._is_last_sibling:
            claim = next(coordinator.claims(WaitFor.NOTHING), None)
            self._is_last_sibling = claim is None and self._begun.is_last_sibling(epoch)
            if not self._is_last_sibling:
                return claim
        return next(coordinator.claims(WaitFor.SILENT if self._in_step else WaitFor.ALL), None)

    def _noted(self, claims: Iterable[Claim]) -> Iterator[Claim]:
        for claim in claims:
            self._delivery.claim(claim)
            self._has_claimed = True
            yield claim

    def _work(self, claim: Claim, parts: Parts) -> Work:
        work = Work(claim=claim, partition=self._job.files[claim.split.path][1], **vars(parts))
        coordinator = self._reports.coordinator
        if coordinator is None:
            return work
        return replace(
            work,
            reserve=partial(coordinator.reserve, claim),
            fail=partial(self._delivery.fail, claim),
        )

    def _is_staged(self, path: str) -> bool:
        """Whether the host has the file in its cache already."""
        file, _ = self._job.files[path]
        return self._stager is not None and self._stager.has(
            file.url, file.size_bytes, file.version
        )

    def _direct(self, claims: Iterable[Claim]) -> Iterator[Work]:
        """Files read where they are."""
        for claim in claims:
            yield self._work(claim, parts_in_place(self._file(claim)))

    def _staged(self, stager: Stager, claims: Iterable[Claim]) -> Iterator[Work]:
        """Files brought to the local disk first, in a thread of the stager's that takes the claims,
        unless it leaves one where it is."""
        stream = stager.stage(
            item for claim in claims for item in stage_items(self._file(claim), claim)
        )
        self._opened(StagedStream(stream), is_first=True)
        for staged in stream:
            claim = staged.key
            assert isinstance(claim, Claim)
            yield self._work(claim, parts_staged(self._file(claim), staged, stream))

    def _file(self, claim: Claim) -> DataFile:
        return self._job.files[claim.split.path][0]


def to_deliver(cut_off: Cut, watch: Watch | None = None) -> BatchSlice:
    """What is delivered with a batch, which keeps no memory of its rows."""
    return BatchSlice(cut_off.segments, cut_off.num_dropped_rows, bool(cut_off.spans), watch)
