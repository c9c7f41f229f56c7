"""The files of a table listed anew for each part of an epoch in rank order, so that a worker keeps those of one part only."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from featstore.dispatch.orders import MiniEpoch, rank_splits
from featstore.dispatch.plan import Split
from featstore.loader.decode import Partition
from featstore.table.snapshot import DataFile

Files = Mapping[str, tuple[DataFile, Partition]]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """`list_files` gives the selected files of the snapshot, each time the same; `cut` makes splits of some, one after the
    other. `plan` and `num_splits` are those of the whole."""

    list_files: Callable[[], Files]
    cut: Callable[[Iterable[DataFile]], Iterator[Split]]
    plan: str = ""
    num_splits: int = 0

    def part(self, part: MiniEpoch) -> tuple[Files, tuple[Split, ...]]:
        """The part's splits in its order, and the files that they are of; the rest is let go of on return."""
        files = self.list_files()
        splits = tuple(rank_splits(self.cut(file for file, _ in files.values()), self.num_splits, part))
        return {split.path: files[split.path] for split in splits}, splits
