"""From claims to batch slices: files are staged, decoded, assembled and sliced ahead of the
consumer.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from featstore.base.closing import Closing
from featstore.base.host import allow_descriptors
from featstore.base.redaction import redact
from featstore.decoded.decoded_file import DecodedFile
from featstore.decoded.decoding import DecodedFiles, DecodeTerms
from featstore.decoded.file_sources import (
    FileSource,
    Release,
    files_in_place,
    files_staged,
    stage_items,
)
from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.loader.batches.assembly import Assembler
from featstore.loader.batches.bad_files import SKIP, BadFiles, Skip
from featstore.loader.batches.batch_slices import BatchSlice, slice_batches
from featstore.loader.batches.blocks import ColumnDemand
from featstore.loader.batches.filtering import WindowCache
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixing import MixTerms, read_mixed
from featstore.loader.batches.mixtures import Mixture, Splits, read_in_order
from featstore.loader.batches.pipeline import Pipeline, Stage, fill
from featstore.loader.batches.split_reader import SplitReader, Work
from featstore.loader.batches.stats import Stats
from featstore.loader.iteration.delivery import Delivery
from featstore.loader.iteration.job import Job
from featstore.loader.iteration.reports import Reports
from featstore.loader.iteration.worker import HostShare, LoaderWorker
from featstore.loader.plan.shuffle import RowOrder
from featstore.loader.request.matching import Listed, Partition
from featstore.reading.file_columns import ColumnCache
from featstore.staging.fetcher import StageItem
from featstore.staging.stager import Stager
from featstore.staging.stream import Stream
from featstore.table.snapshot import DataFile
from featstore.tensors.buffer_pool import BufferPools

# A claim with its data file and partition. It is looked up once, and is the key that the stager
# gives back with each staged file.
Claimed = tuple[Claim, DataFile, Partition]
# With whether the stager leaves the file where it is.
Coming = tuple[Claimed, bool]
# A local file is open twice if Arrow reads it, and a staged one is pinned by a third descriptor. As
# many splits as are mixed may be open ahead of them. Spare ones are for all else that a process
# opens while an epoch begins: stores, pipes, files that are staged.
_FILE_DESCRIPTORS, _SPLITS_AHEAD, _SPARE_DESCRIPTORS = 3, 2, 64


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a loader keeps in one process from one iteration to the next.

    Attributes:
        stats: Metrics.
        pools: Memory for batches.
        demand: Whether columns of batches are asked for.
        stager: Stages files; None reads them in place.
        decoded: Decoded columns of files, in the stager's cache; None decodes each time.
    """

    stats: Stats = field(default_factory=Stats)
    pools: BufferPools = field(default_factory=BufferPools)
    demand: ColumnDemand = field(default_factory=ColumnDemand)
    stager: Stager | None = None
    decoded: DecodedFiles | None = None


class SliceSource:
    """The threads of one iteration, with the caches and the memory budget that they share.

    For one consumer; `close` may be called from any thread. Locks: `_opening` guards the list of
    open parts, since another thread may close the source while this one starts a part. No part is
    closed or waited for under the lock. It is reentrant because a finalizer or a signal handler may
    close the source in the thread that holds it.

    Args:
        resources: What the process has for it.
        delivery: Where claims are recorded.
        reports: Where the coordinator is, which is asked before rows are read.
        share: The threads that decode, and the memory budget.
        num_sharing: As of `MixTerms`.
    """

    def __init__(
        self,
        resources: Resources,
        delivery: Delivery,
        reports: Reports,
        share: HostShare,
        num_sharing: int = 1,
    ) -> None:
        self._stats, self._pools, self._demand = resources.stats, resources.pools, resources.demand
        self._stager, self._decoded = resources.stager, resources.decoded
        self._delivery, self._reports = delivery, reports
        self._share, self._num_sharing = share, num_sharing
        self._open: list[Closing] = []
        self._opening = threading.RLock()
        self._is_closed = False

    def slices(self, job: Job, epoch: int, claims: Iterable[Claim]) -> Iterator[BatchSlice]:
        """The batch slices of these claims. The last one may have fewer rows.

        Ends when all of them are delivered.

        Args:
            job: What is read now.
            epoch: The epoch.
            claims: Claims, taken in another thread as far ahead as staging or decoding allows.
        """
        most_files = job.most_parts * (_SPLITS_AHEAD * job.num_open if job.is_gathered else 1)
        allow_descriptors(_FILE_DESCRIPTORS * most_files + _SPARE_DESCRIPTORS)
        column_cache = ColumnCache()
        peak_bytes = self._stats.memory()["peak_bytes"]
        budget = Budget(self._share.budget_bytes, job.num_sharing, peak_bytes)
        self._stats.budget = budget
        skip = self._skip() if job.on_bad_file == SKIP else None
        mixtures = self._mixtures(job, epoch, claims, budget, column_cache, skip)
        assembler = Assembler(
            job.request,
            job.batch_size,
            self._stats,
            skip,
            budget,
            self._pools,
            self._demand,
            self._share.num_threads,
            cap=job.cap,
        )
        # The consumer waits for the last thread: the transform's if there is one.
        waits = "transform_wait_s" if job.makes_batches else "wait_s"
        paced = self._stats.paced(mixtures, "decode_room_s")
        pipeline = Pipeline(paced, assembler, budget, self._stats, waits)
        self._begin(pipeline)
        slices = slice_batches(
            pipeline.blocks(),
            job.batch_size,
            drop_last=job.drop_last,
            reserve=self._reports.reserve,
            pool=self._pools.joined,
            cap=job.cap,
        )
        if not job.makes_batches:
            yield from slices
        else:
            made = job.made(slices, epoch, self._share.num_threads, self._stats)
            made = self._stats.paced(made, "transform_room_s")
            ahead = Stage[BatchSlice](ahead=2)
            ahead.begin("featstore-transform", fill, made)
            self._begin(ahead)
            yield from self._stats.each("wait_s", iter(ahead.get, None))
            ahead.close()
        self._reports.await_delivery()
        pipeline.close()
        for file, _ in islice(job.files.values(), 1):
            column_cache.warn_if_none(redact(file.table_url))
        with self._opening:
            self._open.clear()

    def _mixtures(
        self,
        job: Job,
        epoch: int,
        claims: Iterable[Claim],
        budget: Budget,
        column_cache: ColumnCache,
        skip: Skip | None,
    ) -> Generator[Mixture, None, None]:
        """The rows of the claims, decoded, in the order of delivery."""
        order = RowOrder(seed=job.seed, epoch=epoch, shuffle=job.shuffle)
        open_split = partial(
            SplitReader,
            request=job.request,
            order=order,
            stats=self._stats,
            num_threads=self._share.num_threads,
            # In order `dynamic` the next claim of a worker is rarely of the same window.
            window_cache=None if job.ordering.is_dynamic else WindowCache(),
            budget=budget,
            column_cache=column_cache,
            # Batches that are not gathered are views of the columns, each of which may be kept
            # without the others.
            take=self._pools.of_window if job.is_gathered else None,
        )
        work, is_ready = self._work_on(job, claims, budget)
        splits = Splits(work=work, open_split=open_split, skip=skip, is_ready=is_ready)
        if not job.is_gathered:
            return read_in_order(splits, job.batch_size, budget)
        terms = MixTerms(
            order=order,
            width=job.num_open,
            section_of=job.section_of(epoch),
            num_sharing=self._num_sharing,
            batch_rows=job.batch_size,
            most_bytes=job.most_gathered_bytes,
            whole_rows=job.batch_size if job.cap is None else 1,
        )
        return read_mixed(splits, terms, budget, self._stats)

    @property
    def stages(self) -> bool:
        """Whether files come from the host's cache."""
        return self._stager is not None

    @property
    def waiting(self) -> dict[str, int]:
        """How many items wait in the queue behind each thread that runs now."""
        found = dict[str, int]()
        for part in list(self._open):
            if isinstance(part, Pipeline):
                found |= part.waiting
            elif isinstance(part, Stage):
                found["transformed"] = part.num_items
        return found

    def is_staged(self, file: DataFile) -> bool:
        """Whether the file, or its decoded columns, are already in the host's cache."""
        stager, decoded = self._stager, self._decoded
        is_decoded = decoded is not None and decoded.has(file)
        return is_decoded or (
            stager is not None and stager.has(file.url, file.size_bytes, file.version)
        )

    def staging_waits(self) -> dict[str, float]:
        """Seconds for which decoding has waited for staged files, and these for room."""
        if self._stager is None:
            return {"staging_wait_s": 0.0}
        staging = self._stager.stats()
        return {"staging_wait_s": staging.wait_s, "staging_room_s": staging.room_wait_s}

    def close(self) -> None:
        """Ends and joins the threads, and closes files. May be called more than once."""
        with self._opening:
            self._is_closed = True
            opened = list(self._open)
        with ExitStack() as parts:
            for part in reversed(opened):
                parts.callback(part.close)

    def _skip(self) -> Skip:
        """Leaves out what cannot be read. Where others may try it again, `reports` give it up."""
        bad_files = self._reports.bad_files
        return bad_files.skip if self._reports.coordinator is None else bad_files.note

    def _begin(self, part: Closing) -> None:
        """Registers a part to be closed with the source. Closes it at once if that was closed
        while the part was started.
        """
        with self._opening:
            self._open.append(part)
            is_late = self._is_closed
        if is_late:
            part.close()

    def _claimed(self, files: Mapping[str, Listed], claims: Iterable[Claim]) -> Iterator[Claimed]:
        for claim in claims:
            self._delivery.claim(claim)
            yield claim, *files[claim.split.path]

    def _work_on(
        self, job: Job, claims: Iterable[Claim], budget: Budget
    ) -> tuple[Iterator[Work], Callable[[], bool]]:
        """The claims with their files, and whether those of the next one are there."""
        claimed = self._claimed(job.files, claims)
        if self._stager is None:
            return (self._work(item, files_in_place(item[1])) for item in claimed), lambda: True
        stream = self._stager.stage(self._items(claimed))
        self._begin(stream)
        # To decode a file takes room in the budget, which others may have to leave first.
        return self._staged(
            stream, budget
        ), lambda: self._decoded is None and stream.is_ready(job.most_parts)

    def _staged(self, stream: Stream[Coming], budget: Budget) -> Iterator[Work]:
        """Work on files that the stager brings to the local disk, except those that it leaves in
        place, and on decoded columns instead of files. The stager's thread takes the claims.
        """
        for staged in stream:
            item, is_left = staged.key
            if is_left:
                staged.release()
                yield self._decoded_work(item, partial(files_in_place, item[1]), budget)
            else:
                files, release = files_staged(item[1], staged, stream)
                yield self._decoded_work(item, partial(tuple, files), budget, release)

    def _items(self, claimed: Iterable[Claimed]) -> Iterator[StageItem[Coming]]:
        """What to stage. A file that is left has a place in the order, too."""
        for item in claimed:
            file = item[1]
            if self._decoded is not None and self._decoded.leaves(file):
                yield StageItem(
                    key=(item, True), url=file.url, size_bytes=file.size_bytes, in_place=True
                )
            else:
                yield from stage_items(file, (item, False))

    def _decoded_work(
        self,
        claimed: Claimed,
        sources: Callable[[], tuple[FileSource, ...]],
        budget: Budget,
        release: Release = lambda: None,
    ) -> Work:
        """Work on decoded columns, or on files if there are none."""
        if self._decoded is None:
            return self._work(claimed, sources(), release)
        terms = DecodeTerms(
            num_threads=self._share.num_threads,
            most_room_bytes=budget.most_room_bytes,
            cancelled=budget.closed,
            holding=budget.held_within,
        )
        try:
            with self._stats.timed("decode_s"):
                found = self._decoded.open(claimed[1], sources, terms)
        except BaseException:
            release()
            raise
        if found is None:
            return self._work(claimed, sources(), release)
        release()
        return self._work(claimed, (), found.close, found)

    def _work(
        self,
        claimed: Claimed,
        files: tuple[FileSource, ...],
        release: Release = lambda: None,
        decoded: DecodedFile | None = None,
    ) -> Work:
        claim, file, partition = claimed
        coordinator, asks = self._reports.coordinator, dict[str, Any]()
        if coordinator is not None:
            asks = {
                "limit": partial(coordinator.start, claim),
                "fail": partial(self._fail, coordinator, claim),
            }
        return Work(
            claim=claim,
            partition=partition,
            files=files,
            decoded=decoded,
            deleted_rows=file.deleted_rows,
            release=release,
            **asks,
        )

    def _fail(self, coordinator: Coordinator, claim: Claim) -> None:
        """Records that a claim cannot be read. Reserved, it is not taken in parts meanwhile, which
        others would try in vain.
        """
        coordinator.reserve(claim, claim.end_row)
        self._delivery.fail(claim)


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
            yield Work(
                claim=claim,
                partition=partition,
                files=files_in_place(file),
                deleted_rows=file.deleted_rows,
            )

    order = RowOrder(seed=job.seed, epoch=0, shuffle=None)
    open_split = partial(
        SplitReader,
        request=job.request,
        order=order,
        stats=stats,
        num_threads=share.num_threads,
        budget=budget,
    )
    assembler = Assembler(job.request, job.batch_size, stats, skip, budget, cap=job.cap)
    to_read = Splits(work=work(), open_split=open_split, skip=skip)
    terms = MixTerms(order=order, width=1, section_of=lambda index: range(index, index + 1))
    in_order = (
        read_mixed(to_read, terms, budget, stats)
        if job.request.is_gathered
        else read_in_order(to_read)
    )
    with closing(in_order) as mixtures:
        blocks = assembler.all_blocks(mixtures)
        slices = slice_batches(blocks, job.batch_size, drop_last=False, cap=job.cap)
        if job.makes_batches:
            slices = job.made(slices, 0, share.num_threads, stats)
        for rows in slices:
            if rows.blocks:
                yield rows
