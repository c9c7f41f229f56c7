"""The files of a table streamed anew for each part of an epoch in rank order, so that a worker keeps those of one part only."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from featstore.dispatch.orders import MiniEpoch, rank_splits
from featstore.dispatch.plan import Split, plan_digest
from featstore.loader.decode import Partition
from featstore.table.snapshot import DataFile, OrderedDigest

_LARGEST = 256
Listed = tuple[DataFile, Partition]
Files = Mapping[str, Listed]


@dataclass(frozen=True, kw_only=True)
class Census:
    """What is to be known of the whole: the digests of table and plan, how many splits, and the largest of the files."""

    table: str
    plan: str
    num_splits: int
    largest: Files


@dataclass(frozen=True, kw_only=True)
class Listing:
    """`stream` lists the snapshot's files by path, each time the same; `select` gives those that are read, `cut` makes
    splits of some. All three one after the other, keeping none."""

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
        return Census(table=table.hexdigest(), plan=plan, num_splits=num_splits, largest=largest.files)

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
        if path in self.files or (len(self._heap) == self._limit and size_bytes <= self._heap[0][0]):
            return
        self.files[path] = item
        heapq.heappush(self._heap, (size_bytes, path))
        if len(self._heap) > self._limit:
            del self.files[heapq.heappop(self._heap)[1]]
