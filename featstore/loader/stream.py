"""A claimed split to its blocks, and several open splits interleaved."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, TypeGuard

import numpy as np

from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.errors import DataFileError, DispatchError, MissingValueError
from featstore.loader.blocks import Block, Origin
from featstore.loader.decode import Partition, block_columns, block_extras
from featstore.loader.filtering import FilteredReader, Picked
from featstore.loader.request import Request
from featstore.loader.shuffle import Shuffle, permutation, windows
from featstore.loader.stats import Stats
from featstore.reading.columns import Array
from featstore.reading.footer import Footer
from featstore.reading.reader import Rows
from featstore.reading.spans import Span, require_held

# Told of a claim whose rows from a row on are left out, and why.
Skip = Callable[[Claim, int, DataFileError], None]


@dataclass(frozen=True, kw_only=True)
class GroupSource:
    """Where a slot group's file for a split is read; fields as of `Work`."""

    path: str
    source: Path | BinaryIO
    held: tuple[Span, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claimed split and where its file is read: a local path, or an open remote file; `release` lets go of a staged one.

    `held`: the bytes that are there of a file staged by ranges, None for all. `groups`: the files of slot groups beside it.
    `reserve(through)` says how far the split may be delivered, None where the claim is lost; `fail` that it cannot be read.
    """

    claim: Claim
    source: Path | BinaryIO
    partition: Partition
    held: tuple[Span, ...] | None = None
    release: Callable[[], None] = lambda: None
    groups: tuple[GroupSource, ...] = ()
    reserve: Callable[[int], int | None] = lambda through: through
    fail: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that the order of a split's rows depends on."""

    seed: int
    epoch: int
    shuffle: Shuffle | None

    @property
    def window_rows(self) -> int | None:
        return self.shuffle.window_rows if self.shuffle else None

    @property
    def interleave(self) -> int:
        return self.shuffle.interleave if self.shuffle else 1

    def permutation(self, num_rows: int, split_index: int, window: int) -> Array | None:
        """The order of rows in a window, or None for the file's own."""
        return permutation(num_rows, self.seed, self.epoch, split_index, window) if self.shuffle else None


class Memo:
    """The window that was read last, kept where the next claim is likely to be of the same one. For one thread, and one
    selection."""

    def __init__(self) -> None:
        self._key: tuple[str, range] | None = None
        self._picked: Picked | None = None

    def read(self, path: str, groups: range, reader: FilteredReader) -> Picked:
        if self._picked is None or self._key != (path, groups):
            self._picked = None
            self._key, self._picked = (path, groups), reader.read(groups)
        return self._picked


class SplitReader:
    """Reads one split window by window; owned by one thread, which closes it."""

    def __init__(
        self, work: Work, *, request: Request, order: Order, stats: Stats, use_threads: bool = True, memo: "Memo | None" = None
    ) -> None:
        self._memo = memo
        self._work, self._request, self._order, self._stats = work, request, order, stats
        self._next, self._row, self._has_ended = 0, 0, False
        self._through = work.claim.start_row
        with stats.timed("decode_s"):
            self._footer, self._groups = Footer(work.source, work.claim.split.path), list[Footer]()
            try:
                self._groups += [Footer(group.source, group.path) for group in work.groups]
                self._reader = FilteredReader(
                    self._footer, self._groups, request, work.partition, stats, use_threads=use_threads
                )
                held = {work.claim.split.path: work.held, **{group.path: group.held for group in work.groups}}
                for footer, columns in self._reader.parts:
                    require_held(footer, columns, held[footer.name])
                self._windows = self._cut()
            except BaseException:
                self._close_files()
                raise
        self._skip_delivered()

    @property
    def is_finished(self) -> bool:
        return self._has_ended or self._next >= len(self._windows) or 0 < self._work.claim.end_row <= self._row

    @property
    def rank(self) -> tuple[bool, int]:
        """Which of several open splits gives the next block: the least. A function of positions alone, so that a resumed
        loader goes on in the same order: a split in the middle of a window first, then the one with the fewest windows read."""
        return self._row >= self._work.claim.start_row, self._next

    def fail(self) -> None:
        """Says that the split cannot be read: there is nothing more of it."""
        self._has_ended = True
        self._work.fail()

    def skip(self, note: Skip, error: DataFileError) -> None:
        """Leaves out what is left of the split."""
        note(self._work.claim, self._through, error)

    def read(self) -> Block | None:
        """The next block; there must be one. An empty one where the rest of the claim went to another worker, None where all
        of it did: then the split is finished."""
        end_row = self._end_row(self._row + self._num_rows(self._windows[self._next]))
        through = self._work.reserve(end_row)
        self._has_ended = through is None or through < end_row
        return None if through is None else self._read(through < end_row)

    def _read(self, is_cut: bool) -> Block:
        window, first_row = self._next, self._row
        self._next += 1
        self._row += 0 if is_cut else self._num_rows(self._windows[window])
        with self._stats.timed("decode_s"):
            rows, places = self._rows(range(0) if is_cut else self._windows[window], window, self._row - first_row)
            origin = Origin(
                split_index=self._work.claim.index,
                fence=self._work.claim.fence,
                part=self._work.claim.part,
                split_rows=self._work.claim.split.num_rows,
                first_row=first_row,
                end_row=self._end_row(self._row),
                is_last=self.is_finished,
                places=places,
            )
            block = Block(
                num_rows=rows.num_rows,
                columns=block_columns(rows, self._request, self._stats),
                extras=block_extras(rows, self._request, self._work.partition),
                origin=origin,
                begin=min(origin.row_at(self._work.claim.start_row), rows.num_rows),
            )
        self._through = origin.end_row
        return block

    def close(self) -> None:
        self._close_files()
        self._work.release()

    def _close_files(self) -> None:
        for footer in (self._footer, *self._groups):
            footer.close()

    def _rows(self, groups: range, window: int, num_rows: int) -> tuple[Rows, Array | None]:
        """The window's rows in the order of delivery without those filtered out, and the places of those that are left."""
        path = self._work.claim.split.path
        picked = self._reader.read(groups) if self._memo is None else self._memo.read(path, groups, self._reader)
        order = self._order.permutation(num_rows, self._work.claim.index, window)
        left = self._end_row(self._row) - (self._row - num_rows)
        if left < num_rows:  # The claim ends within the window.
            order = (np.arange(num_rows) if order is None else order)[:left]
        index, places = picked.index(order)
        return (picked.rows if index is None else picked.rows.take(index)), places

    def _cut(self) -> list[range]:
        """The windows of the split, as ranges of the file's row groups; one without row groups for a file without rows."""
        split, rows = self._work.claim.split, self._footer.row_group_rows
        cuts = split_windows(split, rows, self._order.window_rows)
        if (found := sum(sum(rows[cut.start : cut.stop]) for cut in cuts)) != split.num_rows:
            raise DataFileError(f"{split.path}: expected {split.num_rows} rows, as the table says, found {found}")
        return cuts or [range(0)]

    def _skip_delivered(self) -> None:
        """Passes over windows that were delivered whole; the last one stays, to say that the split has ended."""
        while self._next < len(self._windows) - 1:
            after = self._row + self._num_rows(self._windows[self._next])
            if after > self._work.claim.start_row:
                break
            self._next, self._row = self._next + 1, after

    def _end_row(self, row: int) -> int:
        return min(row, self._work.claim.end_row or row)

    def _num_rows(self, window: range) -> int:
        return sum(self._footer.row_group_rows[index] for index in window)


def split_windows(split: Split, row_group_rows: Sequence[int], window_rows: int | None) -> list[range]:
    """The windows of a split, as ranges of its file's row groups."""
    first = split.first_row_group
    end = len(row_group_rows) if split.last_row_group is None else split.last_row_group + 1
    return [range(cut.start + first, cut.stop + first) for cut in windows(row_group_rows[first:end], window_rows)]


def boundaries(split: Split, footer: Footer, window_rows: int | None) -> list[int]:
    """The rows of a split's stream at which it may be cut: between its windows."""
    cuts = split_windows(split, footer.row_group_rows, window_rows)
    return list(accumulate(sum(footer.row_group_rows[cut.start : cut.stop]) for cut in cuts))[:-1]


def read_blocks(
    work: Iterator[Work], open_split: Callable[[Work], SplitReader], width: int, skip: Skip | None = None
) -> Generator[Block, None, None]:
    """The blocks of all splits, `width` of them open at a time; closes what it opened, however it ends.

    With `skip`, which is told of them, what is left of a split that cannot be read is left out.
    """
    open_splits: list[SplitReader] = []
    try:
        while True:
            while len(open_splits) < width and (item := next(work, None)) is not None:
                open_splits += _opened(item, open_split, skip)
            if not open_splits:
                return
            split = min(open_splits, key=lambda candidate: candidate.rank)
            block = _block(split, skip)
            if block is not None:
                yield block
                del block
            if split.is_finished:
                open_splits.remove(split)
                split.close()
    finally:
        for split in open_splits:
            split.close()


def _block(split: SplitReader, skip: Skip | None) -> Block | None:
    try:
        return split.read()
    except DispatchError:
        raise
    except BaseException as error:
        split.fail()
        if skip is None or not _is_bad_file(error):
            raise
        split.skip(skip, error)
        return None


def _opened(item: Work, open_split: Callable[[Work], SplitReader], skip: Skip | None) -> list[SplitReader]:
    """The open split, or nothing where it is left out."""
    try:
        return [open_split(item)]
    except BaseException as error:
        item.fail()
        item.release()
        if skip is None or not _is_bad_file(error):
            raise
        skip(item.claim, item.claim.start_row, error)
        return []


def _is_bad_file(error: BaseException) -> TypeGuard[DataFileError]:
    """A null label is no bad file: what to do with it is for the user to say."""
    return isinstance(error, DataFileError) and not isinstance(error, MissingValueError)
