"""The data files that a loader reads: those whose partitions can match its `where`.

In rank order the files are listed again for each part of an epoch, so that a worker keeps only
those of one part in memory.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from featstore.dispatch.orders import MiniEpoch, rank_splits
from featstore.dispatch.plan import Split, plan_digest
from featstore.errors import SelectionError
from featstore.loader.plan.request import Request
from featstore.redaction import short
from featstore.table.snapshot import DataFile, OrderedDigest, Snapshot

# How many of the largest files are kept to check the staging budget: at least as many as are open
# at once, with `shuffle.interleave` and slot groups.
_LARGEST = 256


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A file's partition.

    Attributes:
        values: Values of the partition keys, as text; None is null.
        is_decided: Whether these values alone make `where` true for all rows of the file.
    """

    values: Mapping[str, str | None]
    is_decided: bool


def partition_value(field: pa.Field, partition: Partition) -> pa.Scalar:
    """The value of a partition key, in the type that the table declares."""
    return pa.scalar(partition.values.get(field.name), pa.string()).cast(field.type)


Listed = tuple[DataFile, Partition]
Files = Mapping[str, Listed]


def matching_files(snapshot: Snapshot, request: Request) -> dict[str, tuple[DataFile, Partition]]:
    """Like `matching`, but raises a SelectionError if `where` excludes every file of the table."""
    files = matching(snapshot, request)
    if snapshot.data_files and not files and request.where is not None:
        found = ", ".join(
            sorted(
                {
                    "/".join(f"{k}={v}" for k, v in file.partition.items())
                    for file in snapshot.data_files
                }
            )[:5]
        )
        raise SelectionError(
            f"where {short(request.where.text)!r}: matches no partition of the table, which has "
            f"{found}"
        )
    return files


def matching(snapshot: Snapshot, request: Request) -> dict[str, Listed]:
    """The data files whose partitions can match `where`, by path, each with the files of those slot
    groups that have requested columns.
    """
    return {
        file.path: (file, partition)
        for file, partition in selected(snapshot, request, snapshot.data_files)
    }


def selected(snapshot: Snapshot, request: Request, files: Iterable[DataFile]) -> Iterator[Listed]:
    """Streams those of `files` that `matching` would give.

    Args:
        snapshot: Where the slot groups are declared.
        request: What is read.
        files: Data files of the snapshot.
    """
    read = {slot.name for slot in request.selection.slots} | {
        field.name for field in request.selection.others
    }
    groups = {group.name for group in snapshot.groups if group.has(read)}
    for file in files:
        matches = None if request.where is None else request.where.matches_partition(file.partition)
        if matches is not False:
            chosen = (
                replace(file, groups=tuple(group for group in file.groups if group.group in groups))
                if file.groups
                else file
            )
            yield chosen, Partition(values=file.partition, is_decided=matches is True)


@dataclass(frozen=True, kw_only=True)
class Census:
    """Facts about all files and splits of a table that is too large to keep in each worker.

    Attributes:
        table: Digest of the table's files.
        plan: Digest of the plan's splits.
        num_splits: Number of splits.
        largest: The largest files, from which the staging budget is checked.
    """

    table: str
    plan: str
    num_splits: int
    largest: Files


@dataclass(frozen=True, kw_only=True)
class Listing:
    """How files are listed anew, without keeping them.

    Attributes:
        stream: Lists the snapshot's files in the order of their paths, each time the same ones.
        select: Gives those that are read.
        cut: Makes splits of files.
    """

    stream: Callable[[], Iterator[DataFile]]
    select: Callable[[Iterable[DataFile]], Iterator[Listed]]
    cut: Callable[[Iterable[DataFile]], Iterator[Split]]

    def count(self, seed: int, *, shuffle: bool) -> Census:
        """Lists all files once and takes their census."""
        table, largest, num_splits = OrderedDigest(), _Largest(_LARGEST), 0

        def counting() -> Iterator[Split]:
            nonlocal num_splits
            for split, item in self._splits(table.over(self.stream())):
                largest.add(item)
                num_splits += 1
                yield split

        plan = plan_digest(counting(), seed=seed, epoch=0, shuffle=shuffle)
        return Census(
            table=table.hexdigest(), plan=plan, num_splits=num_splits, largest=largest.files
        )

    def part(self, part: MiniEpoch, num_splits: int) -> tuple[Files, tuple[Split, ...]]:
        """The splits of one part in its order, and their files by path."""
        found = rank_splits(self._splits(self.stream()), num_splits, part)
        return {split.path: item for split, item in found}, tuple(split for split, _ in found)

    def _splits(self, files: Iterable[DataFile]) -> Iterator[tuple[Split, Listed]]:
        for item in self.select(files):
            for split in self.cut((item[0],)):
                yield split, item


class _Largest:
    """Keeps the `limit` largest of the files that are added, in a min-heap."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[int, str]] = []
        self.files: dict[str, Listed] = {}

    def add(self, item: Listed) -> None:
        path, size_bytes = item[0].path, sum(part.size_bytes for part in item[0].parts)
        if path in self.files or (
            len(self._heap) == self._limit and size_bytes <= self._heap[0][0]
        ):
            return
        self.files[path] = item
        heapq.heappush(self._heap, (size_bytes, path))
        if len(self._heap) > self._limit:
            del self.files[heapq.heappop(self._heap)[1]]
