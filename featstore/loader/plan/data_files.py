"""The files of a table that is listed in parts.

In rank order the files are listed again for each part of an epoch, so that a worker keeps only
those of one part in memory.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from featstore.dispatch.orders import MiniEpoch, rank_splits
from featstore.dispatch.plan import Split, plan_digest
from featstore.loader.plan.split_list import PackedSplits
from featstore.loader.request.matching import Files, Listed, SelectedFiles
from featstore.table.snapshot import DataFile, OrderedDigest

# How many of the largest files are kept to check the staging budget: at least as many as are open
# at once, with `shuffle.interleave` and slot groups.
_LARGEST = 256


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

    def part(self, part: MiniEpoch, num_splits: int) -> tuple[Files, Sequence[Split]]:
        """The splits of one part in its order, and their files by path."""
        found = rank_splits(self._splits(self.stream()), num_splits, part)
        items = {split.path: item for split, item in found}
        files = SelectedFiles.of(items[path] for path in sorted(items))
        index_of = {path: index for index, path in enumerate(files)}
        splits = PackedSplits(files, ((index_of[split.path], split) for split, _ in found))
        return files, splits

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
