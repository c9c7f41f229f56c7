"""What a loader reads and how, as one value that all of its workers have alike."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from featstore.dispatch.delivered import as_ranges
from featstore.dispatch.orders import MiniEpoch, Seat, num_static_batches
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.terms import Terms
from featstore.loader.decode import Partition
from featstore.loader.follow import Follower
from featstore.loader.listing import Listing
from featstore.loader.ordering import STATIC, Ordering
from featstore.loader.place import Place
from featstore.loader.request import DROP as DROP_ROW
from featstore.loader.request import Request
from featstore.loader.shuffle import Shuffle
from featstore.loader.state import LoaderState
from featstore.loader.tail import DROP, JOIN
from featstore.table.snapshot import DataFile


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a loader reads and how: equal in all of its workers."""

    request: Request
    files: Mapping[str, tuple[DataFile, Partition]]
    table: str
    seed: int = 0
    num_epochs: int = 1
    batch_size: int = 8192
    drop_last: bool = False
    shuffle: Shuffle | None = None
    budget_bytes: int = 1_000_000_000
    terms: Terms = field(default_factory=Terms)
    ordering: Ordering = field(default_factory=Ordering)
    splits: tuple[Split, ...] = ()
    follow: Callable[[], Follower] | None = None
    tail: str = JOIN
    listing: Listing | None = None

    def in_parts(self, listing: Listing) -> "Job":
        """The job without its files, for rank order: each part lists its own."""
        return replace(
            self, files={}, splits=(), listing=replace(listing, plan=self.plan(epoch=0).digest, num_splits=len(self.splits))
        )

    def part(self, part: MiniEpoch) -> "Job":
        """The job with the files of one part and no others; `splits` are in the order of `part.positions`."""
        assert self.listing is not None
        files, splits = self.listing.part(part)
        return replace(self, files=files, splits=splits)

    def parts(self, place: Place) -> Iterator["Job"]:
        """The job; in rank order the parts of all workers, one after the other."""
        if self.listing is None:
            yield self
            return
        for worker in range(place.num_workers):
            seat = Seat(worker=worker, num_workers=place.num_workers)
            yield self.part(MiniEpoch(seed=self.seed, epoch=0, seat=seat))

    @property
    def plan_digest(self) -> str:
        """Names the files and their splits."""
        return self.plan(epoch=0).digest if self.listing is None else self.listing.plan

    def plan(self, epoch: int) -> Plan:
        return Plan(splits=self.splits, seed=self.seed, epoch=epoch, shuffle=self.shuffle is not None)

    @property
    def filters_rows(self) -> bool:
        """Whether rows are left out that have to be read first."""
        is_decided = all(partition.is_decided for _, partition in self.files.values())
        drops = any(number.null == DROP_ROW for number in self.request.numbers)
        return drops or (self.request.where is not None and not is_decided)

    def num_static_batches(self, start: LoaderState, seat: Seat) -> int:
        """How many batches a worker gets in static order of the epochs that are left."""
        plan = self.plan(start.epoch)
        before = sum(end - first for index, rows in start.done.items() for first, end in as_ranges(rows, plan[index].num_rows))
        later = start.first_epoch + self.num_epochs - start.epoch - 1
        count = partial(num_static_batches, seat=seat, batch_rows=self.batch_size, drop_last=self.drop_last)
        return count(plan.num_rows - before) + later * count(plan.num_rows)

    def num_steps(self, start: LoaderState, place: Place) -> int | None:
        """How many steps a worker makes if all ranks make equally many, as `tail` says; None where it cannot be counted."""
        if self.ordering.kind != STATIC or self.filters_rows or self.tail == JOIN:
            return None
        seats = [Seat(worker=rank, num_workers=place.num_ranks) for rank in range(place.num_ranks)]
        counts = [self.num_static_batches(start, seat) for seat in seats]
        per_rank = place.num_workers // place.num_ranks
        return -((place.index % per_rank - (min(counts) if self.tail == DROP else max(counts))) // per_rank)

    @property
    def key(self) -> str:
        """Names what is read, and so the keys in the store of all who share its reading: 16 hex digits."""
        return hashlib.sha256(f"{self.plan_digest}\n{self.request.digest}".encode()).hexdigest()[:16]

    def start(self, epoch: int, first_epoch: int, place: Place) -> LoaderState:
        """The state of a worker that has delivered nothing of the epoch."""
        return LoaderState(
            table=self.table,
            plan=self.plan_digest,
            request=self.request.digest,
            seed=self.seed,
            window_rows=self.shuffle.window_rows if self.shuffle else None,
            num_epochs=self.num_epochs,
            epoch=epoch,
            first_epoch=first_epoch,
            num_workers=place.num_workers,
            workers=(place.index,),
        )

    def resumed(self, saved: LoaderState, place: Place) -> LoaderState:
        """The state of a worker that goes on from a saved one."""
        return replace(saved, num_workers=place.num_workers, workers=(place.index,), ended=None)
