"""One pass over a loader's epochs: claims to work, work to blocks, blocks to batches, batches to delivered progress."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Protocol

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.delivered import Done
from featstore.dispatch.keys import EpochKeys
from featstore.dispatch.orders import Seat
from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.errors import ConfigError, DispatchError, StateError
from featstore.loader.agreement import agreement
from featstore.loader.batching import Cut, Segment, cut
from featstore.loader.blocks import Span
from featstore.loader.boundaries import Boundaries
from featstore.loader.endings import ALL_DONE, FOLLOWED, FOLLOWED_BY_WORKER, FORKED, QUARANTINED, SEVERAL_EPOCHS
from featstore.loader.job import Job
from featstore.loader.ordering import rank_claims
from featstore.loader.padding import some_rows
from featstore.loader.parts import Parts, Stream, parts_in_place, parts_staged, stage_items
from featstore.loader.passes import Pass
from featstore.loader.pipeline import Pipeline
from featstore.loader.shared import shared
from featstore.loader.state import LoaderState, delivered
from featstore.loader.stats import Stats
from featstore.loader.stream import Memo, Order, SplitReader, Work, read_blocks
from featstore.loader.tensors import Batch
from featstore.loader.verdict import EpochTimes, verdict
from featstore.staging.stager import Stager
from featstore.table.snapshot import DataFile

_LOG = logging.getLogger(__name__)
_REPORT_EVERY_S = 0.5
_ClaimKey = tuple[int, int, int]  # Claim.key


class _Closeable(Protocol):
    def close(self) -> None: ...


class Run:
    """The threads and the position of one pass in one process; one consumer, close() from any thread."""

    def __init__(self, job: Job, begun: Pass, start: LoaderState, *, stats: Stats, stager: Stager | None) -> None:
        self._job, self._begun, self._stats, self._stager = job, begun, stats, stager
        self._follower, self._closed = None if job.follow is None else job.follow(), threading.Event()
        if self._follower is not None and begun.is_dataloader:
            raise ConfigError(FOLLOWED_BY_WORKER)
        self._place_in_epoch, self._done = start, dict(start.done)
        self._worker = f"{start.workers[0]}-{os.getpid()}"
        self._claims: dict[_ClaimKey, Claim] = {}
        self._unreported: dict[_ClaimKey, int] = {}
        self._lost: set[_ClaimKey] = set()
        self._failed: list[Claim] = []
        self._quarantined: list[str] = []
        self._boundaries = Boundaries(job)
        self._reported_at = time.monotonic()
        self._coordinator: Coordinator | None = None
        self._has_claimed = self._finds_done = False
        self._open: list[_Closeable] = []
        self._pending: deque[Cut] = deque()
        self._num_given, self.is_ahead, self._delivered = 0, False, threading.Condition()
        self._pid, self.is_closed, self.is_exhausted, self.batch_size = os.getpid(), False, False, job.batch_size
        self._ended: LoaderState | None = None
        self._through: dict[_ClaimKey, int] = {}
        self.steps = agreement(job, begun, start)

    @property
    def state(self) -> LoaderState:
        """A copy of where the pass is, at what was delivered last. StateError where the table is followed."""
        if self._follower is not None:
            raise StateError(FOLLOWED)
        return replace(self._place_in_epoch, done=dict(self._done))

    def stop(self) -> None:
        """Ends the pass before its rows have ended: other ranks have none left. Gives back what is left."""
        self._stats.counts["rows_dropped_tail"] += sum(
            (claim.end_row or claim.split.num_rows) - max(claim.start_row, self._through.get(key, 0))
            for key, claim in self._claims.items()
        )
        end = self._begun.first_epoch + self._job.num_epochs
        self._ended = replace(self._place_in_epoch, done=dict(self._done))
        self._place_in_epoch = replace(self._place_in_epoch, epoch=end, first_epoch=end, ended=self._ended_done())
        self._done.clear()
        self.is_exhausted = True
        self.close()

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
        for segment in (segment for given in list(self._pending)[: self._num_given] for segment in given.segments):
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
            self._ended = replace(self._place_in_epoch, done=dict(self._done)) if epoch + 1 == end else None
            first_epoch = end if epoch + 1 == end else self._begun.first_epoch
            ended = self._ended_done()
            self._place_in_epoch = replace(self._place_in_epoch, epoch=epoch + 1, first_epoch=first_epoch, ended=ended)
            for notes in (self._done, self._claims, self._unreported, self._lost, self._through):
                notes.clear()
        if finds_all_done and self._follower is None:
            raise DispatchError(ALL_DONE.format(first=self._begun.first_epoch, last=end - 1, url=self._begun.address.url))
        self.is_exhausted = True
        if self._quarantined:
            raise DispatchError(QUARANTINED.format(num=self._job.terms.max_failures, splits="; ".join(self._quarantined)))

    def _epochs(self, end: int) -> Iterator[int]:
        """The epochs of the pass; of a followed table one for each plan, which the job is then of."""
        yield from range(self._place_in_epoch.epoch, end)
        while self._follower is not None and not self._follower.is_over(self._job.files):
            files = self._follower.next(self._begun.address, EpochKeys(self._begun.prefix, end), self._closed)
            if files is None:
                return
            splits = tuple(Split(path=path, num_rows=file.num_rows) for path, (file, _) in files.items())
            self._job = replace(self._job, files=files, splits=splits)
            self._boundaries = Boundaries(self._job)
            yield end
            end += 1

    def _dispatched(self, epoch: int) -> Iterator[Cut]:
        """What this worker can claim of an epoch."""
        try:
            with self._coordinate(epoch) as coordinator, self._settling():
                while not self.is_closed and (claim := next(self._awaited(coordinator), None)) is not None:
                    yield from self._read(chain([claim], coordinator.claims(wait=False)))
                if not self.is_closed:
                    self._finds_done = not self._has_claimed and coordinator.is_done
                    self._quarantined += [f"epoch {epoch}: {split}" for split in coordinator.quarantined]
        finally:
            self._coordinator = None

    def _ordered(self, epoch: int) -> Iterator[Cut]:
        """What is this worker's of an epoch, in an order for which nobody is asked."""
        seat = Seat(worker=self._begun.place.static_index, num_workers=self._begun.place.num_workers)
        listing = self._job.listing
        if listing is None:
            claims = self._job.ordering.claims(self._job.plan(epoch), seat, self._job.batch_size, dict(self._done))
            yield from self._read(claims)
            return
        for number in range(self._job.ordering.mini_epochs):
            if not self.is_closed:
                part = self._job.ordering.mini_epoch(number, self._job.seed, epoch, seat)
                self._job = self._job.part(part)
                positions = part.positions(listing.num_splits)
                yield from self._read(rank_claims(self._job.splits, positions, dict(self._done)))

    def _times(self) -> EpochTimes:
        return self._stats.times(0.0 if self._stager is None else self._stager.stats().wait_s)

    def _judge(self, epoch: int, times: EpochTimes) -> None:
        self._stats.verdict = f"epoch {epoch}: {verdict(times)}"
        _LOG.info("%s", self._stats.verdict)

    def hand_over(self, with_rows: Cut) -> Batch:
        """The cut's batch, which counts as delivered at the next `acknowledge()`."""
        batch = self.sendable(with_rows.batch())
        self.note(with_rows)
        self._stats.counts["batches"] += 1
        self._stats.counts["rows"] += batch.num_rows
        return batch

    def sendable(self, batch: Batch) -> Batch:
        """The batch, in shared memory where it goes to another process."""
        return shared(batch) if self._begun.is_dataloader else batch

    def require_own_process(self) -> None:
        """DispatchError in a process that was forked off: its copy has no threads, and its rows are the parent's."""
        if os.getpid() != self._pid:
            raise DispatchError(FORKED.format(parent=self._pid, child=os.getpid()))

    def note(self, handed_over: Cut) -> None:
        """It is in the consumer's hands; where a thread runs ahead of it, only once it is given."""
        self._pending.append(replace(handed_over, spans=()))
        self._num_given += not self.is_ahead

    def give(self) -> None:
        """The oldest batch that the thread which runs ahead was handed is in the consumer's hands."""
        self._num_given += 1

    def acknowledge(self) -> None:
        """The batch in the consumer's hands counts as delivered."""
        while self._num_given:
            self._num_given -= 1
            self.deliver(self._pending.popleft())
        with self._delivered:
            self._delivered.notify_all()

    def _await_delivery(self) -> None:
        """A thread that runs ahead waits here: claims may only be given up once their batches are delivered."""
        with self._delivered:
            self._delivered.wait_for(lambda: self.is_closed or not self._pending)

    def deliver(self, delivery: Cut) -> None:
        """The consumer has what the cut stands for: notes it, and tells the store now and then, unless closed."""
        for segment in delivery.segments:
            self._done[segment.split_index] = delivered(self._done, segment)
            self._through[segment.claim_key] = segment.through
            if self._coordinator is not None and not self.is_closed:
                self._tell(segment)
        self._stats.counts["rows_dropped_last"] += delivery.num_dropped_rows
        # A worker that stood still for a whole lease tells the store at its first batch, and so learns of a takeover at once.
        every_s = min(_REPORT_EVERY_S, self._job.terms.lease_s / 4)
        if self._coordinator is not None and not self.is_closed and time.monotonic() - self._reported_at >= every_s:
            self._report()

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
            if self._coordinator is not None:
                parts.callback(self._coordinator.close)
                self._settle()

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """On an error tells the store what was delivered, and what could not be read, before the coordinator gives it back."""
        try:
            yield
        except BaseException:
            with suppress(DispatchError):
                if not self.is_closed:
                    self._settle()
            raise

    def _settle(self) -> None:
        assert self._coordinator is not None
        self._report()
        while self._failed:
            self._coordinator.fail(self._failed.pop())

    def _coordinate(self, epoch: int) -> Coordinator:
        self._coordinator = Coordinator(
            self._begun.address,
            plan=self._job.plan(epoch),
            prefix=self._begun.prefix,
            worker=self._worker,
            terms=replace(self._job.terms, boundaries=self._boundaries.of, is_staged=self._is_staged),
            done=dict(self._done),
        )
        return self._coordinator

    def _read(self, claims: Iterable[Claim]) -> Iterator[Cut]:
        """Batches of all that can be claimed without waiting for others; the last of them may be short."""
        claims = self._noted(claims)
        order = Order(seed=self._job.seed, epoch=self._place_in_epoch.epoch, shuffle=self._job.shuffle)

        memo = None if self._job.ordering.is_dynamic else Memo()

        def open_split(work: Work) -> SplitReader:
            # Workers of a DataLoader are many: each decodes on one core, as torch computes on one there.
            use_threads = not self._begun.is_dataloader
            return SplitReader(
                work, request=self._job.request, order=order, stats=self._stats, use_threads=use_threads, memo=memo
            )

        work = self._direct(claims) if self._stager is None else self._staged(self._stager, claims)
        pipeline = Pipeline(read_blocks(work, open_split, order.interleave), self._job.budget_bytes, self._stats)
        self._open.append(pipeline)
        yield from cut(pipeline.blocks(), self._job.batch_size, drop_last=self._job.drop_last, is_lost=self._is_lost)
        self._await_delivery()
        pipeline.close()
        self._open.clear()

    def _awaited(self, coordinator: Coordinator) -> Iterator[Claim]:
        """Claims for a worker that holds none, as whoever waits for leases of others must: they may be waiting too.

        Nobody waits for those that live: a rank that trains in step with others cannot deliver its last batch before this
        one goes on. Workers of a DataLoader never wait: it asks them in turn, and raises if one dies.
        """
        return coordinator.claims(wait=not self._begun.is_dataloader, wait_for_living=False)

    def _noted(self, claims: Iterable[Claim]) -> Iterator[Claim]:
        for claim in claims:
            self._claims[claim.key] = claim
            self._has_claimed = True
            yield claim

    def _work(self, claim: Claim, parts: Parts) -> Work:
        work = Work(claim=claim, partition=self._job.files[claim.split.path][1], **vars(parts))
        if self._coordinator is None:
            return work
        return replace(
            work,
            reserve=partial(self._coordinator.reserve, claim),
            fail=partial(self._failed.append, claim),
        )

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
        self._open.insert(0, Stream(stream))
        for staged in stream:
            claim = staged.key
            assert isinstance(claim, Claim)
            yield self._work(claim, parts_staged(self._file(claim), staged, stream))

    def _file(self, claim: Claim) -> DataFile:
        return self._job.files[claim.split.path][0]

    def _tell(self, segment: Segment) -> None:
        key = segment.claim_key
        if key in self._lost:
            return
        self._unreported[key] = segment.through
        if segment.is_complete:
            self._unreported.pop(key)
            self._complete(self._claims.pop(key))

    def _complete(self, claim: Claim) -> None:
        assert self._coordinator is not None
        if not self._coordinator.complete(claim):
            self._lose(claim.key)

    def _lose(self, key: _ClaimKey) -> None:
        """Another worker has taken the split over, and delivers what this one has not told the store of."""
        if key not in self._lost:
            self._lost.add(key)
            self._unreported.pop(key, None)
            self._stats.counts["leases_lost"] += 1

    def _is_lost(self, span: Span) -> bool:
        key = span.block.origin.claim_key
        if self._coordinator is None or not self._coordinator.is_lost(key):
            return False
        self._lose(key)
        self._stats.counts["rows_left_to_others"] += span.block.num_rows - span.begin
        return True

    def _report(self) -> None:
        """Tells the store how far partial splits are delivered: where a takeover would begin."""
        assert self._coordinator is not None
        self._reported_at = time.monotonic()
        for key, through in list(self._unreported.items()):
            if not self._coordinator.acknowledge(self._claims[key], through):
                self._lose(key)
        self._unreported.clear()
