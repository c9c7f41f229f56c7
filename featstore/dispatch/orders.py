"""The orders other than `dynamic`: pure functions that say which worker reads which rows, without
a store.

`static`: the epoch's rows in plan order, dealt out in batches. Batch `g` holds the rows `g *
batch_rows` to `(g + 1) * batch_rows` of the epoch, and worker `g % num_workers` reads it. For a
given global batch, step `s` of all workers together therefore has the same rows for any number of
workers, and a run can resume with a different number.

`rank`: each worker reads its own part of the files, in mini-epochs, and knows no others. What a
recorded epoch (`replay`) says is in recording.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from featstore.dispatch.plan import Done, Plan, as_ranges, order_keys, permute

_Listed = TypeVar("_Listed")


@dataclass(frozen=True, kw_only=True)
class SplitRange:
    """A range of rows of one split, in its delivery order.

    Attributes:
        index: The split's position in the plan.
        first: The first row.
        end: The row after the last one.
    """

    index: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """Which of how many workers this is: `0 <= index < num_workers`."""

    index: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.num_workers:
            raise ValueError(
                f"worker {self.index} of {self.num_workers}: expected 0 <= index < num_workers"
            )


def static_ranges(
    plan: Plan, worker_info: WorkerInfo, batch_rows: int, done: Done | None = None
) -> Iterator[SplitRange]:
    """The rows that one worker reads in order `static`: its batches of the rows that remain.

    Streamed, in O(1) memory. Adjacent batches of one worker are joined into one range.

    Args:
        plan: The epoch's plan.
        worker_info: The worker, and how many there are.
        batch_rows: Rows of one worker's batch.
        done: Rows that were delivered before; batches are counted over the remaining ones.
    """
    num_rows_before = 0
    pending: SplitRange | None = None
    for remaining in _remaining(plan, done or {}):
        for own in _own_batches(remaining, num_rows_before, worker_info, batch_rows):
            if pending is not None and (pending.index, pending.end) == (own.index, own.first):
                pending = SplitRange(index=own.index, first=pending.first, end=own.end)
            else:
                if pending is not None:
                    yield pending
                pending = own
        num_rows_before += remaining.end - remaining.first
    if pending is not None:
        yield pending


def num_static_batches(
    num_rows: int, worker_info: WorkerInfo, batch_rows: int, *, drop_last: bool
) -> int:
    """How many batches one worker reads in order `static`.

    Args:
        num_rows: Rows of the epoch.
        worker_info: The worker, and how many there are.
        batch_rows: Rows of one worker's batch.
        drop_last: Whether to drop the epoch's last batch if it is short.
    """
    num_batches = num_rows // batch_rows if drop_last else -(-num_rows // batch_rows)
    # The ceiling of (num_batches - index) / num_workers: batches index, index + num_workers, ...
    return max(0, -((worker_info.index - num_batches) // worker_info.num_workers))


@dataclass(frozen=True, kw_only=True)
class MiniEpoch:
    """The part of an epoch that one worker reads at a time in order `rank`.

    Attributes:
        seed: The seed of the shuffle.
        epoch: The epoch's number.
        worker_info: The worker, and how many there are.
        number: The mini-epoch.
        num_mini_epochs: How many mini-epochs each worker reads per epoch.
    """

    seed: int
    epoch: int
    worker_info: WorkerInfo
    number: int = 0
    num_mini_epochs: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.num_mini_epochs:
            raise ValueError(
                f"mini-epoch {self.number} of {self.num_mini_epochs}: expected 0 <= number < "
                f"num_mini_epochs"
            )

    def positions(self, num_splits: int) -> range:
        """The positions of the epoch's order that belong to this part.

        The parts of all workers cover the epoch, and their sizes differ by at most one split.
        """
        num_parts = self.worker_info.num_workers * self.num_mini_epochs
        part = self.worker_info.index * self.num_mini_epochs + self.number
        return range(num_splits * part // num_parts, num_splits * (part + 1) // num_parts)


def rank_splits(splits: Sequence[_Listed], num_splits: int, part: MiniEpoch) -> list[_Listed]:
    """The part's splits, in the epoch's order.

    Args:
        splits: The splits of the snapshot, or one value for each, in the snapshot's order.
        num_splits: How many splits the snapshot has.
        part: The mini-epoch.

    Raises:
        ValueError: There are not `num_splits` of them.
    """
    if len(splits) != num_splits:
        raise ValueError(f"a listing of {len(splits)} splits, where {num_splits} were expected")
    keys = order_keys(part.seed, part.epoch)
    return [splits[permute(at, num_splits, keys)] for at in part.positions(num_splits)]


def _remaining(plan: Plan, done: Done) -> Iterator[SplitRange]:
    """The rows of the plan that were not delivered, in plan order."""
    for index, split in enumerate(plan):
        row = 0
        for first, end in as_ranges(done.get(index, 0), split.num_rows):
            if row < first:
                yield SplitRange(index=index, first=row, end=first)
            row = end
        if row < split.num_rows:
            yield SplitRange(index=index, first=row, end=split.num_rows)


def _own_batches(
    remaining: SplitRange, num_rows_before: int, worker_info: WorkerInfo, batch_rows: int
) -> Iterator[SplitRange]:
    """The worker's batches within a range whose first row is row `num_rows_before` of the epoch."""
    before, after = num_rows_before, num_rows_before + remaining.end - remaining.first
    batch = before // batch_rows
    # The first batch at or after this one that falls to the worker.
    batch += (worker_info.index - batch) % worker_info.num_workers
    while batch * batch_rows < after:
        first, end = max(before, batch * batch_rows), min(after, (batch + 1) * batch_rows)
        yield SplitRange(
            index=remaining.index,
            first=remaining.first + first - before,
            end=remaining.first + end - before,
        )
        batch += worker_info.num_workers
