"""Makes splits of data files: whole files, or large ones cut at row groups, for which their footers
are read. A plan keeps them in columns, since millions of objects would take hundreds of megabytes.

In rank order the files are listed again for each part of an epoch, so that a worker keeps only
those of one part in memory.
"""

import heapq
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import overload

from featstore.base.byte_sizes import parse_bytes
from featstore.base.errors import DataFileError
from featstore.dispatch.options import Dispatch
from featstore.dispatch.orders import MiniEpoch, rank_splits
from featstore.dispatch.plan import RowGroups, Split, SplitSize, plan_digest, splits_of
from featstore.files.storage import local_path, open_read
from featstore.loader.request.matching import Files, Listed, SelectedFiles
from featstore.reading.open_file import OpenFile
from featstore.table.snapshot import DataFile, OrderedDigest


def split_size(options: Dispatch) -> SplitSize | None:
    """The size of splits that the options ask for. ConfigError for an invalid one."""
    if options.split_bytes is not None:
        return SplitSize(size_bytes=parse_bytes(options.split_bytes, "dispatch.split_bytes"))
    return None if options.split_rows is None else SplitSize(num_rows=options.split_rows)


def make_splits(
    files: Iterable[DataFile], size: SplitSize | None = None, *, accepts_bad: bool = False
) -> Iterator[Split]:
    """The splits of the files, in their order. Reads the footers of files larger than `size`.

    Args:
        files: Data files.
        size: Size of a split; None makes each file one split.
        accepts_bad: Whether a file that cannot be read becomes one split, whose reader then raises
            the error.

    Raises:
        DataFileError: A footer cannot be read, and `accepts_bad` is false.
    """
    for file in files:
        whole = Split(path=file.path, num_rows=file.num_rows)
        if size is None or not _is_large(file, size):
            yield whole
            continue
        try:
            row_groups = _row_groups(file)
        except DataFileError:
            if not accepts_bad:
                raise
            yield whole
        else:
            yield from splits_of(row_groups, size)


def _is_large(file: DataFile, size: SplitSize) -> bool:
    return (
        file.num_rows > size.num_rows
        if size.num_rows is not None
        else file.size_bytes > (size.size_bytes or 0)
    )


def _row_groups(file: DataFile) -> RowGroups:
    with OpenFile(local_path(file.url) or partial(open_read, file.url), file.path) as opened:
        # Bytes as stored, since `split_bytes` is compared with the size of the file.
        spans = opened.footer.spans
        sizes_bytes = (spans[..., 1] - spans[..., 0]).sum(axis=1).tolist()
        return RowGroups(path=file.path, num_rows=opened.row_group_rows, sizes_bytes=sizes_bytes)


class _Splits(Sequence[Split]):
    """Splits of selected files, each made when it is asked for."""

    def __init__(self, files: SelectedFiles) -> None:
        self._files = files

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | Sequence[Split]:
        found = range(len(self))[index]
        return self._split(found) if isinstance(found, int) else list(map(self._split, found))

    def __iter__(self) -> Iterator[Split]:
        return map(self._split, range(len(self)))

    @abstractmethod
    def _split(self, index: int) -> Split:
        """The split at an index that is in range."""


class WholeFiles(_Splits):
    """Each file as one split. Takes no memory besides that of the files."""

    def __len__(self) -> int:
        return len(self._files)

    def _split(self, index: int) -> Split:
        return Split(path=self._files.path(index), num_rows=self._files.num_rows(index))


class PackedSplits(_Splits):
    """Any splits of the files, in any order. A split takes 20 bytes.

    Args:
        files: The files.
        splits: The splits, each with the index of its file.
    """

    def __init__(self, files: SelectedFiles, splits: Iterable[tuple[int, Split]]) -> None:
        super().__init__(files)
        self._file_of, self._first, self._last = array("I"), array("I"), array("i")
        self._num_rows = array("q")
        for index, split in splits:
            last = split.last_row_group
            self._file_of.append(index)
            self._first.append(split.first_row_group)
            self._last.append(-1 if last is None else last)
            self._num_rows.append(split.num_rows)

    def __len__(self) -> int:
        return len(self._num_rows)

    def _split(self, index: int) -> Split:
        last = self._last[index]
        return Split(
            path=self._files.path(self._file_of[index]),
            num_rows=self._num_rows[index],
            first_row_group=self._first[index],
            last_row_group=None if last < 0 else last,
        )


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
        table, num_splits = OrderedDigest(), 0
        largest: list[tuple[int, str, Listed]] = []  # A heap, the smallest of them first.

        def counting() -> Iterator[Split]:
            nonlocal num_splits
            for item in self.select(table.over(self.stream())):
                file, _ = item
                entry = sum(part.size_bytes for part in file.parts), file.path, item
                if len(largest) < _LARGEST:
                    heapq.heappush(largest, entry)
                else:
                    heapq.heappushpop(largest, entry)
                for split in self.cut((file,)):
                    num_splits += 1
                    yield split

        return Census(
            plan=plan_digest(counting(), seed=seed, epoch=0, shuffle=shuffle),
            table=table.hexdigest(),
            num_splits=num_splits,
            largest={path: item for _, path, item in sorted(largest, key=itemgetter(1))},
        )

    def part(self, part: MiniEpoch, num_splits: int) -> tuple[Files, Sequence[Split]]:
        """The splits of one part in its order, and their files by path."""
        selected = self.select(self.stream())
        listed = ((split, item) for item in selected for split in self.cut((item[0],)))
        found = rank_splits(listed, num_splits, part)
        items = {split.path: item for split, item in found}
        files = SelectedFiles.of(items[path] for path in sorted(items))
        index_of = {path: index for index, path in enumerate(files)}
        splits = PackedSplits(files, ((index_of[split.path], split) for split, _ in found))
        return files, splits
