"""The orders other than claiming the next: who reads what is a pure function, and nobody asks a
store.

`static`: the epoch's rows in plan order, dealt out in batches. Batch `g` is the rows `g *
batch_rows` to `(g + 1) * batch_rows` of the whole, whoever reads it: worker `g % num_workers`. So
step `s` of all workers together is the same rows for any number of workers with the same global
batch, and a run goes on with another number where it was.

`rank`: each worker has its part of the files, in mini-epochs, and knows no others. `replay`: what
each worker of an earlier epoch acknowledged, in its order.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from featstore.dispatch.leases.delivered import Done, as_ranges
from featstore.dispatch.plan import Plan, order_keys, permute

_Listed = TypeVar("_Listed")


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rows `first` to `end` of the split at a position of the plan, in its delivery order."""

    index: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Which of how many workers."""

    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.num_workers:
            raise ValueError(
                f"worker {self.worker} of {self.num_workers}: expected 0 <= worker < num_workers"
            )


def static_stretches(
    plan: Plan, seat: Seat, batch_rows: int, done: Done | None = None
) -> Iterator[Stretch]:
    """What the worker reads, in its order: its batches of what `done` leaves of the plan. Streamed;
    O(1) memory.
    """
    before = 0
    held: Stretch | None = None
    for left in _left(plan, done or {}):
        for stretch in _dealt(left, before, seat, batch_rows):
            if held is not None and (held.index, held.end) == (stretch.index, stretch.first):
                held = Stretch(index=held.index, first=held.first, end=stretch.end)
            else:
                if held is not None:
                    yield held
                held = stretch
        before += left.end - left.first
    if held is not None:
        yield held


def num_static_batches(num_rows: int, seat: Seat, batch_rows: int, *, drop_last: bool) -> int:
    """How many batches the worker gets of `num_rows` rows; only the epoch's last batch may be
    short, or is dropped.
    """
    num_batches = num_rows // batch_rows if drop_last else -(-num_rows // batch_rows)
    return max(0, -((seat.worker - num_batches) // seat.num_workers))


@dataclass(frozen=True, kw_only=True)
class MiniEpoch:
    """Which part of an epoch a worker holds: mini-epoch `number` of `num_mini_epochs` of its
    own.
    """

    seed: int
    epoch: int
    seat: Seat
    number: int = 0
    num_mini_epochs: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.num_mini_epochs:
            raise ValueError(
                f"mini-epoch {self.number} of {self.num_mini_epochs}: expected 0 <= number < "
                f"num_mini_epochs"
            )

    def positions(self, num_splits: int) -> range:
        """The positions of the epoch's order that are read here: parts that differ by one split at
        most.
        """
        num_parts = self.seat.num_workers * self.num_mini_epochs
        part = self.seat.worker * self.num_mini_epochs + self.number
        return range(num_splits * part // num_parts, num_splits * (part + 1) // num_parts)


def rank_splits(listing: Iterable[_Listed], num_splits: int, part: MiniEpoch) -> list[_Listed]:
    """The part's splits, or what stands for one each, in the epoch's order, out of the snapshot's
    listing, which is streamed: nothing else is kept.

    ValueError where the listing has not `num_splits` splits.
    """
    keys = order_keys(part.seed, part.epoch)
    wanted = {
        permute(position, num_splits, keys): place
        for place, position in enumerate(part.positions(num_splits))
    }
    found: list[_Listed | None] = [None] * len(wanted)
    count = 0
    for listed, split in enumerate(listing):
        count += 1
        if (place := wanted.get(listed)) is not None:
            found[place] = split
    if count != num_splits:
        raise ValueError(f"a listing of {count} splits, where {num_splits} were expected")
    return [split for split in found if split is not None]


def replayed(recording: Mapping[int, Iterable[Stretch]], worker: int) -> Iterator[Stretch]:
    """What the worker of an earlier epoch delivered, in its order; KeyError for a worker that was
    not there.
    """
    return iter(recording[worker])


def _left(plan: Plan, done: Done) -> Iterator[Stretch]:
    for index, split in enumerate(plan):
        row = 0
        for first, end in as_ranges(done.get(index, 0), split.num_rows):
            if row < first:
                yield Stretch(index=index, first=row, end=first)
            row = end
        if row < split.num_rows:
            yield Stretch(index=index, first=row, end=split.num_rows)


def _dealt(left: Stretch, before: int, seat: Seat, batch_rows: int) -> Iterator[Stretch]:
    """The worker's batches within rows that begin at row `before` of the whole."""
    after = before + left.end - left.first
    batch = before // batch_rows
    batch += (seat.worker - batch) % seat.num_workers
    while batch * batch_rows < after:
        first, end = max(before, batch * batch_rows), min(after, (batch + 1) * batch_rows)
        yield Stretch(
            index=left.index, first=left.first + first - before, end=left.first + end - before
        )
        batch += seat.num_workers
