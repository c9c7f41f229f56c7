"""The data files that a loader reads: those whose partitions can match its `where`.

In rank order they are streamed anew for each part of an epoch, so that a worker keeps those of one
part only.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from featstore.dispatch.orders import MiniEpoch, rank_splits
from featstore.dispatch.plan import Split, plan_digest
from featstore.errors import SelectionError
from featstore.loader.plan.request import Request
from featstore.redaction import short
from featstore.table.snapshot import DataFile, OrderedDigest, Snapshot

_LARGEST = 256


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A file's partition values, and whether they alone decide that all of its rows match
    `where`.
    """

    values: Mapping[str, str | None]
    is_decided: bool


Listed = tuple[DataFile, Partition]
Files = Mapping[str, Listed]


def matching_files(snapshot: Snapshot, request: Request) -> dict[str, tuple[DataFile, Partition]]:
    """The data files whose partitions can match `where`, by path. SelectionError where there are
    none of those in the table.
    """
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
    """The data files whose partitions can match `where`, by path, with the files of slot groups
    that have what is read.
    """
    return {
        file.path: (file, partition)
        for file, partition in selected(snapshot, request, snapshot.data_files)
    }


def selected(snapshot: Snapshot, request: Request, files: Iterable[DataFile]) -> Iterator[Listed]:
    """Those of the snapshot's files that are read, one after the other; the groups are the
    snapshot's.
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
    """What is to be known of the whole: the digests of table and plan, how many splits, and the
    largest of the files.
    """

    table: str
    plan: str
    num_splits: int
    largest: Files


@dataclass(frozen=True, kw_only=True)
class Listing:
    """`stream` lists the snapshot's files by path, each time the same; `select` gives those that
    are read, `cut` makes splits of some. All three one after the other, keeping none."""

    stream: Callable[[], Iterator[DataFile]]
    select: Callable[[Iterable[DataFile]], Iterator[Listed]]
    cut: Callable[[Iterable[DataFile]], Iterator[Split]]

    def count(self, seed: int, *, shuffle: bool) -> Census:
        """Lists all once."""
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
        """The part's splits in its order, and the files that they are of."""
        found = rank_splits(self._splits(self.stream()), num_splits, part)
        return {split.path: item for split, item in found}, tuple(split for split, _ in found)

    def _splits(self, files: Iterable[DataFile]) -> Iterator[tuple[Split, Listed]]:
        for item in self.select(files):
            for split in self.cut((item[0],)):
                yield split, item


class _Largest:
    """The largest of the files that it is given."""

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
