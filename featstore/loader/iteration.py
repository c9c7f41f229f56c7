"""One pass over a loader's epochs: claims to work, work to blocks, blocks to batches, batches to delivered progress."""

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Protocol

from featstore.datafiles import stage_items
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.delivered import Done
from featstore.dispatch.keys import EpochKeys
from featstore.dispatch.orders import Seat
from featstore.dispatch.recording import NOT_RECORDED, Recording, recorded_by
from featstore.dispatch.terms import Claim, WaitFor
from featstore.dispatch.unfinished import LeftOpen, open_leases, silent_leases
from featstore.errors import ConfigError, DispatchError, StateError
from featstore.loader.agreement import agreement
from featstore.loader.assembly import Assembler
from featstore.loader.bad_files import SKIP, BadFiles
from featstore.loader.batching import Cut, cut
from featstore.loader.boundaries import Boundaries
from featstore.loader.budget import Budget
from featstore.loader.endings import ALL_DONE, FOLLOWED_BY_WORKER, FORKED, QUARANTINED, SEVERAL_EPOCHS, UNREAD
from featstore.loader.follow import Follower, NewFiles
from featstore.loader.job import Job
from featstore.loader.pacing import paced
from featstore.loader.padding import some_rows
from featstore.loader.parts import Parts, StagedStream, parts_in_place, parts_staged
from featstore.loader.passes import Pass
from featstore.loader.pipeline import Ahead, Pipeline
from featstore.loader.progress import RowBar
from featstore.loader.reporting import Reports
from featstore.loader.resolved import Resolved
from featstore.loader.shared import shared
from featstore.loader.state import LoaderState, delivered
from featstore.loader.stats import Stats
from featstore.loader.stream import Memo, Order, SplitReader, Work, read_windows
from featstore.loader.tail import PAD
from featstore.loader.tensors import Batch
from featstore.loader.transform import transformed
from featstore.loader.verdict import EpochTimes, verdict
from featstore.loader.watch import Watch
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile

_LOG = logging.getLogger(__name__)


class _Closeable(Protocol):
    def close(self) -> None: ...


class Run:
    """The threads and the position of one pass in one process; one consumer, close() from any thread."""

    def __init__(self, job: Job, begun: Pass, start: LoaderState, *, stats: Stats, stager: Stager | None) -> None:
        self._job, self._begun, self._stats, self._stager = job.at(start.followed), begun, stats, stager
        self.follows, self._closed = job.follow is not None, threading.Event()
        if self.follows and begun.is_dataloader:
            raise ConfigError(FOLLOWED_BY_WORKER)
        self._follower = None if job.follow is None or start.followed is None else Follower(job.follow, start.followed)
        self._place_in_epoch, self._done = start, dict(start.done)
        self._worker = f"{start.workers[0]}-{os.getpid()}"
        self._reports = Reports(stats, job.terms.lease_s)
        self._quarantined: list[str] = []
        self._bad_files = BadFiles(stats)
        self._boundaries = Boundaries(self._job)
        self._has_claimed = self._finds_done = self._is_last_sibling = False
        self.left_open = LeftOpen(begun.address)
        self._in_step = begun.place.in_step if job.in_step is None else job.in_step
        self._open: list[_Closeable] = []
        # The consumer waits for the last of the threads.
        self._waits = "wait_s" if job.transform is None else "transform_wait_s"
        self._pending: deque[tuple[Cut, Watch | None]] = deque()
        self._num_given, self.is_ahead, self._delivered = 0, False, threading.Condition()
        self._bar = RowBar("train", job.num_rows_left(start), wait_s=stats.seconds["wait_s"]) if job.shows(start) else None
        self._pid, self.is_closed, self.is_exhausted, self.batch_size = os.getpid(), False, False, job.batch_size
        self._ended: LoaderState | None = None
        self.steps = agreement(job, begun, start)

    @property
    def state(self) -> LoaderState:
        """A copy of where the pass is, at what was delivered last."""
        at = replace(self._place_in_epoch, done=dict(self._done))
        if self._follower is None:
            return at
        return replace(at, followed=self._follower.followed, table=self._job.table, plan=self._job.plan_digest)

    def stop(self) -> None:
        """Ends the pass before its rows have ended: other ranks have none left. Gives back what is left."""
        self._stats.counts["rows_dropped_tail"] += self._reports.num_rows_left
        end = self._begun.first_epoch + self._job.num_epochs
        self._ended = replace(self._place_in_epoch, done=dict(self._done))
        self._place_in_epoch = replace(self._place_in_epoch, epoch=end, first_epoch=end, ended=self._ended_done())
        self._done.clear()
        self.is_exhausted = True
        self.close()

    def require_nothing_unread(self) -> None:
        """To be called once all ranks have agreed to stop. DispatchError where a holder that is silent has rows of the pass.

        Waits for signs of life, at most a lease. What tail `drop` leaves out on purpose was given back, and is counted.
        """
        if not self._job.ordering.is_dynamic:
            return
        lease_s, unread = self._job.terms.lease_s, []
        with closing(self._begun.address.open()) as store:
            for epoch in range(self._begun.first_epoch, self._begun.first_epoch + self._job.num_epochs):
                keys = EpochKeys(self._begun.prefix, epoch)
                unread += silent_leases(store, keys, lease_s, threading.Event())
                if self._job.tail == PAD:
                    unread += [lease for lease in open_leases(store, keys) if not lease.is_held]
        if unread:
            leases = "; ".join(map(str, unread))
            raise DispatchError(UNREAD.format(tail=self._job.tail, silent_s=lease_s, leases=leases))

    def _ended_done(self) -> Done | None:
        """What one of several workers has delivered of the epoch that its pass ended with."""
        return None if self._ended is None or self._ended.num_workers == 1 else self._ended.done

    def some_rows(self) -> Cut:
        """Rows of the plan, whoever has delivered them, for a rank that has got none."""
        return some_rows(self._job.parts(self._begun.place))

    @property
    def state_handed_over(self) -> LoaderState:
        """As `state`, with the batch that was handed over last; after the end of the pass, all of its last epoch.

        StateError for a DataLoader's worker in a pass of several epochs: others may be in another one.
        """
        if self._begun.is_dataloader and self._begun.place.num_workers > 1 and self._job.num_epochs > 1:
            raise StateError(SEVERAL_EPOCHS.format(num=self._job.num_epochs))
        if self._ended is not None:
            return self._ended
        state, done = self.state, dict(self._done)
        for segment in (segment for given, _ in list(self._pending)[: self._num_given] for segment in given.segments):
            done[segment.split_index] = delivered(done, segment)
        return replace(state, done=done)

    def cuts(self) -> Iterator[Cut]:
        """The batches of all epochs that are left, each to be delivered before the next is asked for."""
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
            is_end = epoch + 1 == end and not self.follows
            self._ended = replace(self._place_in_epoch, done=dict(self._done)) if is_end else None
            first_epoch, ended = end if is_end else self._begun.first_epoch, self._ended_done()
            self._place_in_epoch = replace(self._place_in_epoch, epoch=epoch + 1, first_epoch=first_epoch, ended=ended)
            for notes in (self._done, self._reports, self._bad_files):
                notes.clear()
        if finds_all_done and not self.follows:
            told = ALL_DONE.format(first=self._begun.first_epoch, last=end - 1, url=self._begun.address.url)
            if not self._job.ends_finished:
                raise DispatchError(told)
            _LOG.warning("%s", told)
        self.is_exhausted = True
        if self._quarantined:
            told = QUARANTINED.format(num=self._job.terms.max_failures, splits="; ".join(self._quarantined))
            if self._job.on_bad_file != SKIP:
                raise DispatchError(told)
            _LOG.warning("%s", told)

    def _epochs(self, end: int) -> Iterator[int]:
        """The epochs of the pass; of a followed table one for each plan, which the job is then of."""
        if self._follower is None:
            yield from range(self._place_in_epoch.epoch, end)
            return
        epoch = self._place_in_epoch.epoch
        while (new := self._follower.next(self._begun.address, EpochKeys(self._begun.prefix, epoch), self._closed)) is not None:
            self._job = self._job.of_plan(new)
            self._boundaries = Boundaries(self._job)
            yield epoch
            self._follower.finish(new.files)
            self._job = self._job.of_plan(NewFiles(files={}, table=new.table))
            epoch += 1

    def _dispatched(self, epoch: int) -> Iterator[Cut]:
        """What this worker can claim of an epoch."""
        self._is_last_sibling = False
        self.left_open.name()
        try:
            with self._coordinate(epoch) as coordinator, self._settling():
                while not self.is_closed and (claim := self._awaited(coordinator, epoch)) is not None:
                    yield from self._read(chain([claim], coordinator.claims(WaitFor.NOTHING)))
                    if self._reports.has_failed and not self.is_closed:  # It is offered again, until it is quarantined.
                        self._reports.settle()
                if not self.is_closed:
                    self._finds_done = not self._has_claimed and coordinator.is_done
                    if not coordinator.is_done:
                        self.left_open.note(EpochKeys(self._begun.prefix, epoch))
                    self._quarantined += [f"epoch {epoch}: {split}" for split in coordinator.quarantined]
        finally:
            self._reports.coordinator = None

    def _ordered(self, epoch: int) -> Iterator[Cut]:
        """What is this worker's of an epoch, in an order for which nobody is asked."""
        seat = Seat(worker=self._begun.place.static_index, num_workers=self._begun.place.num_workers)
        whole = self._job
        for job, claims in whole.turns(epoch, seat, dict(self._done), partial(self._recorded, epoch)):
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
        self.note(with_rows, Watch(batch) if self._job.debug else None)
        self._stats.counts["batches"] += 1
        self._stats.counts["rows"] += batch.num_rows
        if self._bar is not None:
            self._bar.show(batch.num_rows, self._stats, self._stager.stats().staged_bytes if self._stager else 0)
        return batch

    def sendable(self, batch: Batch) -> Batch:
        """The batch, in shared memory where it goes to another process."""
        return shared(batch) if self._begun.is_dataloader else batch

    def require_own_process(self) -> None:
        """DispatchError in a process that was forked off: its copy has no threads, and its rows are the parent's."""
        if os.getpid() != self._pid:
            raise DispatchError(FORKED.format(parent=self._pid, child=os.getpid()))

    def note(self, handed_over: Cut, watch: Watch | None = None) -> None:
        """It is in the consumer's hands; where a thread runs ahead of it, only once it is given."""
        self._pending.append((handed_over.without_rows(), watch))
        self._num_given += not self.is_ahead

    def give(self) -> None:
        """The oldest batch that the thread which runs ahead was handed is in the consumer's hands."""
        self._num_given += 1

    def acknowledge(self) -> None:
        """The batch in the consumer's hands counts as delivered."""
        while self._num_given:
            self._num_given -= 1
            pending, watch = self._pending.popleft()
            if watch is not None:
                watch.require_unwritten()
            self.deliver(pending)
        if self.is_ahead:
            with self._delivered:
                self._delivered.notify_all()

    def _await_delivery(self) -> None:
        """A thread that runs ahead waits here: claims may only be given up once their batches are delivered."""
        with self._delivered:
            self._delivered.wait_for(lambda: self.is_closed or not self._pending)

    def deliver(self, delivery: Cut) -> None:
        """The consumer has what the cut stands for: notes it, and tells the store now and then, unless closed."""
        is_told = self._reports.coordinator is not None and not self.is_closed
        for segment in delivery.segments:
            self._done[segment.split_index] = delivered(self._done, segment)
            self._reports.note(segment, is_told=is_told)
        self._stats.counts["rows_dropped_last"] += delivery.num_dropped_rows
        if is_told:
            self._reports.tell_now_and_then()

    def close(self) -> None:
        """Gives claims back, ends and joins the threads, lets go of files. May be called more than once."""
        if self.is_closed or os.getpid() != self._pid:
            return
        self.is_closed = True
        self._closed.set()
        with self._delivered:
            self._delivered.notify_all()
        with ExitStack() as parts:
            if self.steps is not None:
                parts.callback(self.steps.leave)
            for part in reversed(self._open):
                parts.callback(part.close)
            if self._bar is not None:
                parts.callback(self._bar.close)
            if self._reports.coordinator is not None:
                parts.callback(self._reports.coordinator.close)
                self._reports.settle()

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """On an error tells the store what was delivered, and what could not be read, before the coordinator gives it back."""
        try:
            yield
        except BaseException:
            if not self.is_closed:
                self._reports.settle_if_it_can()
            raise

    def _coordinate(self, epoch: int) -> Coordinator:
        coordinator = self._reports.coordinator = Coordinator(
            self._begun.address,
            plan=self._job.plan(epoch),
            prefix=self._begun.prefix,
            worker=self._worker,
            terms=replace(self._job.terms, boundaries=self._boundaries.of, is_staged=self._is_staged, in_step=self._in_step),
            done=dict(self._done),
        )
        return coordinator

    def _read(self, claims: Iterable[Claim]) -> Iterator[Cut]:
        """Batches of all that can be claimed without waiting for others; the last of them may be short."""
        claims = self._noted(claims)
        order = Order(seed=self._job.seed, epoch=self._place_in_epoch.epoch, shuffle=self._job.shuffle)

        budget, resolved = Budget(self._job.budget_bytes), Resolved()
        memo = None if self._job.ordering.is_dynamic else Memo()

        def open_split(work: Work) -> SplitReader:
            # Workers of a DataLoader are many: each decodes on one core, as torch computes on one there.
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
        windows = paced(read_windows(work, open_split, order.interleave, skip), self._stats, "decode_room_s")
        assembler = Assembler(self._job.request, self._job.batch_size, self._stats, skip)
        pipeline = Pipeline(windows, assembler, budget, self._stats, self._waits)
        self._open.append(pipeline)
        cuts = cut(pipeline.blocks(), self._job.batch_size, drop_last=self._job.drop_last, is_lost=self._reports.is_lost)
        if self._job.transform is None:
            yield from cuts
        else:
            made = transformed(cuts, self._job.transform, self._reports.claims.__getitem__, self._stats)
            second = Ahead(paced(made, self._stats, "transform_room_s"), self._stats)
            self._open.append(second)
            yield from second.items()
            second.close()
        self._await_delivery()
        pipeline.close()
        self._open.clear()

    def _awaited(self, coordinator: Coordinator, epoch: int) -> Claim | None:
        """A claim for a worker that holds none, as whoever waits for leases of others must: they may be waiting too.

        A rank that trains in step with others cannot deliver its last batch before this one goes on, so nobody waits for those
        that live. A DataLoader asks its workers in turn, so only the last of them to end waits for workers elsewhere: while
        it waits the others have nothing to deliver. Independent workers wait until every lease is final.
        """
        if self._begun.is_dataloader and not self._is_last_sibling:
            claim = next(coordinator.claims(WaitFor.NOTHING), None)
            self._is_last_sibling = claim is None and self._begun.is_last_sibling(epoch)
            if not self._is_last_sibling:
                return claim
        return next(coordinator.claims(WaitFor.SILENT if self._in_step else WaitFor.ALL), None)

    def _noted(self, claims: Iterable[Claim]) -> Iterator[Claim]:
        for claim in claims:
            self._reports.claims[claim.key] = claim
            self._has_claimed = True
            yield claim

    def _work(self, claim: Claim, parts: Parts) -> Work:
        work = Work(claim=claim, partition=self._job.files[claim.split.path][1], **vars(parts))
        coordinator = self._reports.coordinator
        if coordinator is None:
            return work
        return replace(work, reserve=partial(coordinator.reserve, claim), fail=partial(self._reports.fail, claim))

    def _is_staged(self, path: str) -> bool:
        """Whether the host has the file in its cache already."""
        file, _ = self._job.files[path]
        return self._stager is not None and self._stager.has(file.url, file.size_bytes, file.version)

    def _direct(self, claims: Iterable[Claim]) -> Iterator[Work]:
        """Files read where they are."""
        for claim in claims:
            yield self._work(claim, parts_in_place(self._file(claim)))

    def _staged(self, stager: Stager, claims: Iterable[Claim]) -> Iterator[Work]:
        """Files brought to the local disk first, in a thread of the stager's that takes the claims, unless it leaves one where
        it is."""
        stream = stager.stage(item for claim in claims for item in stage_items(self._file(claim), claim))
        self._open.insert(0, StagedStream(stream))
        for staged in stream:
            claim = staged.key
            assert isinstance(claim, Claim)
            yield self._work(claim, parts_staged(self._file(claim), staged, stream))

    def _file(self, claim: Claim) -> DataFile:
        return self._job.files[claim.split.path][0]
