"""Makes splits of data files: whole files, or large ones cut at row groups, for which their footers
are read. A plan keeps them in columns, since millions of objects would take hundreds of megabytes.

In rank order the files are listed again for each part of an epoch, so that a worker keeps only
those of one part in memory.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from featstore.base.errors import DataFileError, parse_bytes
from featstore.dispatch.options import Dispatch
from featstore.dispatch.orders import MiniEpoch, rank_splits
from featstore.dispatch.plan import Plan, Split, SplitList, SplitSize, splits_of
from featstore.files.storage import source_of
from featstore.loader.request.matching import SelectedFiles
from featstore.native.columns import lines
from featstore.reading.open_file import OpenFile
from featstore.table.metadata import KEY, FileMetadata
from featstore.table.snapshot import DataFile, FileList

Cut: TypeAlias = Callable[[Iterable[DataFile]], Iterator[Split]]


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
            num_rows, sizes_bytes = _row_groups(file)
        except DataFileError:
            if not accepts_bad:
                raise
            yield whole
        else:
            yield from splits_of(file.path, num_rows, sizes_bytes, size)


def _is_large(file: DataFile, size: SplitSize) -> bool:
    return (
        file.num_rows > size.num_rows
        if size.num_rows is not None
        else file.size_bytes > (size.size_bytes or 0)
    )


def _row_groups(file: DataFile) -> tuple[Sequence[int], Sequence[int]]:
    """The rows and the bytes of each row group, by the file's footer."""
    with OpenFile(source_of(file.url), file.path) as opened:
        # Bytes as stored, since `split_bytes` is compared with the size of the file.
        spans = opened.footer.spans
        return opened.row_group_rows, (spans[..., 1] - spans[..., 0]).sum(axis=1).tolist()


def clustered_by(file: DataFile) -> str | None:
    """The raw column whose equal values have their rows side by side in the file, by its footer;
    None where there is none, or the file cannot be read, which its reader will say.
    """
    try:
        with OpenFile(source_of(file.url), file.path) as opened:
            text = opened.footer.key_values.get(KEY.encode())
            return None if text is None else FileMetadata.from_json(text, file.path).cluster_by
    except (DataFileError, OSError):
        return None


class WholeFiles(SplitList):
    """Each file as one split. Takes no memory besides that of the files."""

    def __init__(self, files: SelectedFiles) -> None:
        self.files = files.files

    def __len__(self) -> int:
        return len(self.files)

    @property
    def num_rows(self) -> int:
        return int(self.files.values("num_rows").sum())

    def digest_lines(self) -> Iterable[memoryview]:
        columns = self.files.columns
        # As `Split.id` and its rows.
        found = lines(columns["path"], "#0-\n", columns["num_rows"], "\n")
        return [memoryview(found.buffers()[2] or b"")]

    def _split(self, index: int) -> Split:
        rows = self.files.columns["num_rows"][index].as_py()
        return Split(path=self.files.path(index), num_rows=rows)


class PackedSplits(SplitList):
    """Any splits of the files, in any order. A split takes 20 bytes.

    Args:
        files: The files.
        splits: The splits, each with the index of its file.
    """

    def __init__(self, files: SelectedFiles, splits: Iterable[tuple[int, Split]]) -> None:
        self.files = files.files
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

    @property
    def num_rows(self) -> int:
        return sum(self._num_rows)

    def _split(self, index: int) -> Split:
        last = self._last[index]
        return Split(
            path=self.files.path(self._file_of[index]),
            num_rows=self._num_rows[index],
            first_row_group=self._first[index],
            last_row_group=None if last < 0 else last,
        )


def split_list(files: SelectedFiles, cut: Cut, *, whole: bool) -> SplitList:
    """The splits of files, in their order.

    Args:
        files: The files.
        cut: Makes splits of files.
        whole: Whether it makes one of each.
    """
    if whole:
        return WholeFiles(files)
    numbered = enumerate(files.files)
    return PackedSplits(files, ((i, split) for i, file in numbered for split in cut((file,))))


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
    largest: SelectedFiles


@dataclass(frozen=True, kw_only=True)
class Listing:
    """How files are listed again, without keeping them.

    Attributes:
        list_files: Lists the snapshot's files, each time the same ones.
        select: Gives those that are read.
        split: Makes splits of files, in their order.
    """

    list_files: Callable[[], FileList]
    select: Callable[[FileList], SelectedFiles]
    split: Callable[[SelectedFiles], Sequence[Split]]

    def count(self, seed: int, *, shuffle: bool) -> Census:
        """Lists all files once and takes their census."""
        every = self.list_files()
        files = self.select(every)
        splits = self.split(files)
        smaller_first = np.argsort(files.files.total_bytes, kind="stable")
        return Census(
            table=every.digest,
            plan=Plan(splits=splits, seed=seed, shuffle=shuffle).digest,
            num_splits=len(splits),
            largest=files.take(np.sort(smaller_first[-_LARGEST:])),
        )

    def part(self, part: MiniEpoch, num_splits: int) -> tuple[SelectedFiles, PackedSplits]:
        """The splits of one part in its order, and their files by path."""
        every = self.select(self.list_files())
        splits = rank_splits(self.split(every), num_splits, part)
        found = [every.files.find(split.path) for split in splits]
        own, index_of = np.unique(found, return_inverse=True)
        files = every.take(own)
        return files, PackedSplits(files, zip(index_of.tolist(), splits, strict=True))
