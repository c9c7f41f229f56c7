"""The splits of a plan in columns, since millions of objects would take hundreds of megabytes."""

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from featstore.dispatch.plan import Split
from featstore.loader.request.matching import SelectedFiles


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
