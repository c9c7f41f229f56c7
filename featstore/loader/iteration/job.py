"""What a loader reads and how, as one immutable value that all of its workers share."""

import hashlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from featstore.base.errors import ConfigError
from featstore.base.processes import cached_property
from featstore.dispatch.orders import MiniEpoch, WorkerInfo, num_static_batches
from featstore.dispatch.plan import Done, Plan, Split, as_ranges
from featstore.dispatch.recording import Recording
from featstore.dispatch.relieving import FEW_ROWS
from featstore.dispatch.terms import Claim, Terms
from featstore.loader.batches.bad_files import ERROR
from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.batches.stats import Stats
from featstore.loader.batches.transform import Transform, transformed
from featstore.loader.iteration.state import LoaderState
from featstore.loader.iteration.step_agreement import JOIN, Tail
from featstore.loader.iteration.worker import HostShare, LoaderWorker
from featstore.loader.plan.follow import Followed, Following, NewFiles
from featstore.loader.plan.ordering import REPLAY, STATIC, Ordering, rank_claims, section_sizes
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.plan.splitting import Census, Listing, make_splits
from featstore.loader.request.matching import SelectedFiles
from featstore.loader.request.request import DROP as DROP_ROW
from featstore.loader.request.request import Request
from featstore.table.snapshot import DataFile
from featstore.tensors.batch import Batch

_MOST_HISTORY_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """Parameters of `FeatureLoader` that say which epochs are read, in which order."""

    seed: int = 0
    num_epochs: int = 1
    ordering: Ordering = field(default_factory=Ordering)
    shuffle: Shuffle | None = None


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Parameters of `FeatureLoader` that say what batches are made."""

    batch_size: int = 8192
    cap: BatchCap | None = None
    drop_last: bool = False
    tail: Tail = JOIN
    transform: Transform | None = None
    debug: bool = False


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """Parameters of `FeatureLoader` that say what a worker takes and does.

    Attributes:
        budget_bytes: The memory budget; None: its share of the host's memory.
        decode_threads: Decoding threads; None: its share of the host's cores.
        on_bad_file: What becomes of files that cannot be read.
        progress: Whether the first worker shows a progress bar.
    """

    budget_bytes: int | None = None
    decode_threads: int | None = None
    on_bad_file: str = ERROR
    progress: bool = False


@dataclass(frozen=True, kw_only=True)
class Job(EpochOptions, BatchOptions, ProcessOptions):
    """What a loader reads and how: equal in all of its workers.

    Attributes:
        files: The data files by path, each with its partition; empty in order `rank`.
        table: Digest of the snapshot.
        terms: Lease times and limits of dispatch.
        splits: The splits of the files, in the order of the files.
        positions: The positions of the epoch's order at which the splits of a part are, in order
            `rank`; None: the job is no part.
        cut: Makes splits of files.
        listing: How files are listed again, in order `rank`; otherwise None.
        census: Counts of all files, in order `rank`; otherwise None.
        in_step: `Dispatch.in_step`; None is `auto`.
        section_key: The partition key of `shuffle.within`, in the order of which the files are.
        most_open: How many splits may be open at once because of the staging budget; None: any
            number.
        candidates: Makes what adds candidates to batches, as of `CandidatePool.drawing`; None:
            there are none.
        num_sharing: How many loaders one loop reads in turn, which share the memory, the threads
            and the staging budget of their process.
        ends_finished: Whether an iteration that an earlier start of the run has read ends empty;
            otherwise that is an error.
    """

    request: Request
    files: SelectedFiles
    table: str
    terms: Terms = field(default_factory=Terms)
    splits: Sequence[Split] = ()
    positions: range | None = None
    cut: Callable[[Iterable[DataFile]], Iterator[Split]] = make_splits
    follow: Following | None = None
    listing: Listing | None = None
    census: Census | None = None
    in_step: bool | None = None
    ends_finished: bool = False
    most_open: int | None = None
    section_key: pa.Field | None = None
    candidates: Callable[[int, int, int], Callable[[Batch], Batch]] | None = None
    num_sharing: int = 1

    def share_of_host(self, worker: LoaderWorker) -> HostShare:
        """The threads and the memory budget of one of its workers."""
        share = HostShare.of(worker, is_shuffled=self.shuffle is not None)
        return HostShare(
            num_threads=max(1, (self.decode_threads or share.num_threads) // self.num_sharing),
            budget_bytes=max(1, (self.budget_bytes or share.budget_bytes) // self.num_sharing),
        )

    def part(self, part: MiniEpoch) -> "Job":
        """The job with the files of one part only. Its `splits` are in the order of its
        `positions`.
        """
        assert self.listing is not None
        assert self.census is not None
        files, splits = self.listing.part(part, self.census.num_splits)
        return replace(
            self, files=files, splits=splits, positions=part.positions(self.census.num_splits)
        )

    def of_plan(self, new: NewFiles) -> "Job":
        """The job with the files of one plan of a followed table."""
        return replace(
            self,
            files=new.files,
            splits=tuple(self.cut(file for file, _ in new.files.values())),
            table=new.table,
        )

    def at(self, followed: Followed | None) -> "Job":
        """The job at a saved state: with the plan that was current then, if the table is
        followed.
        """
        if self.follow is None or followed in (None, (None, self.follow.version)):
            return self
        return self.of_plan(self.follow.files(followed))

    def turns(
        self, epoch: int, worker_info: WorkerInfo, done: Done, recorded: Callable[[str], Recording]
    ) -> Iterator[tuple["Job", Iterator[Claim]]]:
        """A worker's claims of an epoch in order `static`, `rank` or `replay`.

        Args:
            epoch: The epoch.
            worker_info: The worker, and how many there are.
            done: Rows that were delivered before.
            recorded: Looks up the recorded order of a loader by its key, for a replay whose options
                hold no recording.

        Returns:
            This job with its claims, or, in order `rank`, each part in turn with its claims.
        """
        if self.listing is None:
            recording = self.ordering.given
            if recording is None and self.ordering.kind == REPLAY:
                recording = recorded(self.key)
            plan = self.plan(epoch)
            yield self, self.ordering.claims(plan, worker_info, self.batch_size, done, recording)
            return
        for number in range(self.ordering.mini_epochs):
            part = MiniEpoch(
                seed=self.seed,
                epoch=epoch,
                worker_info=worker_info,
                number=number,
                num_mini_epochs=self.ordering.mini_epochs,
            )
            yield self._turn(part, done)

    def _turn(self, part: MiniEpoch, done: Done) -> tuple["Job", Iterator[Claim]]:
        job = self.part(part)
        assert job.positions is not None
        return job, rank_claims(job.splits, job.positions, done)

    def parts(self, worker: LoaderWorker) -> Iterator["Job"]:
        """The job; in order `rank` the parts of all workers, one after the other."""
        if self.listing is None:
            yield self
            return
        for index in range(worker.num_workers):
            worker_info = WorkerInfo(index=index, num_workers=worker.num_workers)
            yield self.part(MiniEpoch(seed=self.seed, epoch=0, worker_info=worker_info))

    @property
    def makes_batches(self) -> bool:
        """Whether batches are made in a thread of their own, as more is done to them."""
        return self.transform is not None or self.candidates is not None

    def made(
        self, slices: Iterator[BatchSlice], epoch: int, num_threads: int, stats: Stats
    ) -> Generator[BatchSlice, None, None]:
        """The batch slices with their batches made: with candidates, and transformed.

        Args:
            slices: Batch slices of the epoch.
            epoch: The epoch.
            num_threads: In how many threads the slots of candidates are gathered.
            stats: Where seconds are counted.
        """
        draw = self.candidates and self.candidates(self.seed, epoch, num_threads)
        return transformed(slices, draw, self.transform, stats, debug=self.debug)

    @property
    def least_rows(self) -> int:
        """Fewer rows are not taken from a worker that lives: those of a batch, or few of them where
        a cap says how many a batch has.
        """
        return self.batch_size if self.cap is None else min(self.batch_size, FEW_ROWS)

    @property
    def num_open(self) -> int:
        """How many splits are open at once."""
        wanted = self.shuffle.interleave if self.shuffle else 1
        return wanted if self.most_open is None else min(wanted, self.most_open)

    @property
    def is_gathered(self) -> bool:
        """Whether batches are gathered; otherwise they are views of rows in the file's order."""
        return self.shuffle is not None or self.request.is_gathered

    @property
    def most_gathered_bytes(self) -> int:
        """What is gathered at a time at most. Of histories, which are much larger once they are
        gathered, no more than makes calls few: more was no faster.
        """
        return _MOST_HISTORY_BYTES if self.request.histories else sys.maxsize

    @cached_property
    def most_parts(self) -> int:
        """The most files that a split is read from: its data file and those of its slot groups."""
        return int(self.files.files.num_parts.max(initial=1))

    @cached_property
    def plan_digest(self) -> str:
        """A hash of the files and their splits."""
        return self.plan(epoch=0).digest if self.census is None else self.census.plan

    def plan(self, epoch: int) -> Plan:
        return Plan(
            splits=self.splits,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle is not None,
            window_rows=self.shuffle.split_window_rows if self.shuffle else None,
            section_sizes=section_sizes(self.splits, self.files, self.section_key),
        )

    def section_of(self, epoch: int) -> Callable[[int], range]:
        """Gives the positions of the epoch's order that may be mixed with a position: those of its
        section, or of its part in order `rank`.
        """
        positions = self.positions
        return self.plan(epoch).section_of if positions is None else lambda _: positions

    @property
    def has_rows(self) -> bool:
        """Whether any data file has rows."""
        files = self.files if self.census is None else self.census.largest
        return bool(files.files.values("num_rows").any())

    @property
    def filters_rows(self) -> bool:
        """Whether rows are left out that only reading shows."""
        drops = any(number.null == DROP_ROW for number in self.request.numbers)
        return (
            drops
            or self.files.files.has_masks
            or self.request.negatives is not None
            or (self.request.where is not None and not self.files.are_decided)
        )

    def num_static_batches(self, start: LoaderState, worker_info: WorkerInfo) -> int:
        """How many batches of the remaining epochs a worker gets in order `static`."""
        count = partial(
            num_static_batches,
            worker_info=worker_info,
            batch_rows=self.batch_size,
            drop_last=self.drop_last,
        )
        return sum(times * count(num_rows) for num_rows, times in self._rows_left(start))

    def require_dealt(self, worker: LoaderWorker) -> None:
        """ConfigError if batches are dealt out to several workers by number, and where they end
        depends on the rows of all batches before.
        """
        if self.cap is not None and self.ordering.kind == STATIC and worker.num_workers > 1:
            raise ConfigError(
                f"batch: with order static expected one worker, found {worker.num_workers}: static "
                "order deals batches out by number, and which rows the n-th batch of max_values "
                "has depends on the lengths of all rows before it: choose order dynamic or rank"
            )

    def shows(self, start: LoaderState) -> bool:
        """Whether this worker shows the progress bar: only the first of all does."""
        return self.progress and start.workers == (0,)

    def num_rows_left(self, start: LoaderState) -> int | None:
        """How many rows an iteration still has for its only worker; None: unknown, or there are
        several.
        """
        if (
            start.num_workers > 1
            or self.filters_rows
            or self.follow is not None
            or self.listing is not None
        ):
            return None
        return sum(times * num_rows for num_rows, times in self._rows_left(start))

    def _rows_left(self, start: LoaderState) -> list[tuple[int, int]]:
        """The rows that the remaining epochs still have, and of how many epochs that is so."""
        left = []
        for epoch, done in start.delivered.items():
            plan = self.plan(epoch)
            num_done = sum(
                end - first
                for index, rows in done.items()
                for first, end in as_ranges(rows, plan[index].num_rows)
            )
            left.append((plan.num_rows - num_done, 1))
        num_whole = start.first_epoch + self.num_epochs - start.epoch - len(left)
        return [*left, (plan.num_rows, num_whole)]

    def num_steps(self, start: LoaderState, worker: LoaderWorker) -> int | None:
        """How many steps a worker makes if all ranks make the same number, as `tail` says; None if
        that cannot be counted in advance.
        """
        if self.ordering.kind != STATIC or not self.tail.agrees:
            return None
        if self.filters_rows or self.cap is not None:
            return None
        worker_infos = [
            WorkerInfo(index=rank, num_workers=worker.num_ranks) for rank in range(worker.num_ranks)
        ]
        counts = [self.num_static_batches(start, worker_info) for worker_info in worker_infos]
        # The steps of a rank are dealt out to the workers of its DataLoader in turn.
        place = worker.index % worker.num_siblings
        return -((place - self.tail.num_steps(counts)) // worker.num_siblings)

    @property
    def key(self) -> str:
        """A hash of what is read: 16 hex digits. Loaders with the same key share their reading,
        under the same keys in the store.

        A followed table is identified by its URL, since workers may open different versions of it.
        """
        what = self.plan_digest if self.follow is None else f"follow {self.follow.url} {self.seed}"
        return hashlib.sha256(f"{what}\n{self.request.digest}".encode()).hexdigest()[:16]

    def start(self, epoch: int, first_epoch: int, worker: LoaderWorker) -> LoaderState:
        """The state of a worker that has delivered nothing of the epoch."""
        return LoaderState(
            table=self.table,
            plan=self.plan_digest,
            request=self.request.digest,
            seed=self.seed,
            window_rows=self.shuffle.split_window_rows if self.shuffle else None,
            num_epochs=self.num_epochs,
            epoch=epoch,
            first_epoch=first_epoch,
            num_workers=worker.num_workers,
            workers=(worker.index,),
            followed=None if self.follow is None else (None, self.follow.version),
        )

    def resumed(self, saved: LoaderState, worker: LoaderWorker) -> LoaderState:
        """The state of a worker that continues from a saved one."""
        return replace(saved, num_workers=worker.num_workers, workers=(worker.index,), ended=None)
