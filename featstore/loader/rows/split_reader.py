"""A claimed split to its windows, as they are read, and several open splits interleaved."""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np

from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.errors import DataFileError, DispatchError, StateError
from featstore.loader.bad_files import Skip, is_bad_file
from featstore.loader.plan.data_files import Partition
from featstore.loader.plan.request import Request
from featstore.loader.plan.shuffle import Shuffle, permutation, windows
from featstore.loader.rows.filtering import FilteredReader, Picked
from featstore.loader.rows.memory_budget import Budget
from featstore.loader.rows.resolved import Resolved
from featstore.loader.rows.stopping import StoppingFooter
from featstore.loader.stats import Stats
from featstore.reading.buffers import Array
from featstore.reading.footer import Footer
from featstore.reading.spans import Span, require_held

_LOG = logging.getLogger(__name__)
_MIN_SLICE_ROWS = 1_024


@dataclass(frozen=True, kw_only=True)
class GroupSource:
    """Where a slot group's file for a split is read; fields as of `Work`."""

    path: str
    source: Path | BinaryIO
    held: tuple[Span, ...] | None = None
    is_checked: bool = False


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claimed split and where its file is read: a local path, or an open remote file; `release`
    lets go of a staged one.

    `held`: the bytes that are there of a file staged by ranges, None for all. `is_checked`: as of
    `Footer`. `groups`: the files of slot groups beside it. `reserve(through)` says how far the
    split may be delivered, None where the claim is lost; `fail` that it cannot be read.
    """

    claim: Claim
    source: Path | BinaryIO
    partition: Partition
    held: tuple[Span, ...] | None = None
    is_checked: bool = False
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
        return (
            permutation(num_rows, self.seed, self.epoch, split_index, window)
            if self.shuffle
            else None
        )


class Memo:
    """The window that was read last, kept where the next claim is likely to be of the same one. For
    one thread, and one selection."""

    def __init__(self) -> None:
        self._key: tuple[str, range] | None = None
        self._picked: Picked | None = None

    def read(self, path: str, groups: range, reader: FilteredReader) -> Picked:
        if self._picked is None or self._key != (path, groups):
            self._picked = None
            self._key, self._picked = (path, groups), reader.read(groups)
        return self._picked


@dataclass(frozen=True, kw_only=True)
class Window:
    """Rows of one split as read, before they are put in order: those of a window of row groups, or
    a slice of a large one.

    They stand for the stream's rows `first_row` to `end_row`. `order`: how they are delivered, as
    of `Order.permutation`, so far as the claim goes. `held_bytes`: what was taken of the memory
    budget for them.
    """

    work: Work
    picked: Picked
    order: Array | None
    is_shuffled: bool
    first_row: int
    end_row: int
    is_last: bool
    held_bytes: int = 0


class SplitReader:
    """Reads one split window by window; owned by one thread, which closes it."""

    def __init__(
        self,
        work: Work,
        *,
        request: Request,
        order: Order,
        stats: Stats,
        use_threads: bool = True,
        memo: "Memo | None" = None,
        budget: Budget | None = None,
        resolved: Resolved | None = None,
    ) -> None:
        self._memo, self._budget = memo, budget or Budget(None)
        self._work, self._order, self._stats = work, order, stats
        self._next, self._row, self._has_ended = 0, 0, False
        self._through = work.claim.start_row
        with stats.timed("decode_s"):
            self._groups = list[Footer]()
            resolved = resolved or Resolved()
            self._footer = self._open(work.source, work.claim.split.path, resolved, work.is_checked)
            try:
                for part in work.groups:
                    self._groups.append(
                        self._open(part.source, part.path, resolved, part.is_checked)
                    )
                self._reader = FilteredReader(
                    self._footer,
                    self._groups,
                    request,
                    work.partition,
                    stats,
                    use_threads=use_threads,
                    most_room_bytes=self._budget.most_room_bytes,
                )
                held = {
                    work.claim.split.path: work.held,
                    **{group.path: group.held for group in work.groups},
                }
                for footer, columns in self._reader.parts:
                    require_held(footer, columns, held[footer.name])
                self._windows = self._cut()
            except BaseException:
                self._close_files()
                raise
        self._skip_delivered()

    @property
    def is_finished(self) -> bool:
        return (
            self._has_ended
            or self._next >= len(self._windows)
            or 0 < self._work.claim.end_row <= self._row
        )

    @property
    def rank(self) -> tuple[bool, int]:
        """Which of several open splits gives the next window: the least. A function of positions
        alone, so that a resumed loader goes on in the same order: a split in the middle of a window
        first, then the one with the fewest windows read."""
        return self._row >= self._work.claim.start_row, self._next

    def fail(self) -> None:
        """Says that the split cannot be read: there is nothing more of it."""
        self._has_ended = True
        self._work.fail()

    def skip(self, note: Skip, error: DataFileError) -> None:
        """Leaves out what is left of the split."""
        note(self._work.claim, self._through, error)

    def read(self) -> Iterator[Window]:
        """The next window, in slices where it takes much memory; there must be one. An empty one
        where the rest of the claim went to another worker, none where all of it did: then the split
        is finished."""
        end_row = self._end_row(self._row + self._num_rows(self._windows[self._next]))
        through = self._work.reserve(end_row)
        self._has_ended = through is None or through < end_row
        if through is not None:
            yield from self._read(through < end_row)

    def _read(self, is_cut: bool) -> Iterator[Window]:
        number, first_row = self._next, self._row
        groups = range(0) if is_cut else self._windows[number]
        self._next += 1
        self._row += self._num_rows(groups)
        size_bytes = self._reader.size_bytes(groups)
        num_slices = 1 if self._order.shuffle else self._budget.num_slices(size_bytes)
        if (
            num_slices > 1
            and len(groups) == 1
            and (slices := self._slices(groups[0], num_slices)) is not None
        ):
            self._stats.counts["row_groups_sliced"] += 1
            yield from self._sliced(slices, size_bytes // num_slices)
            return
        needed_bytes = size_bytes * (2 if self._order.shuffle else 1)
        room_bytes = self._room_bytes(groups)
        with (
            self._budget.held(needed_bytes + room_bytes) as held_bytes,
            self._stats.timed("decode_s"),
        ):
            path = self._work.claim.split.path
            picked = (
                self._reader.read(groups)
                if self._memo is None
                else self._memo.read(path, groups, self._reader)
            )
            order = self._order.permutation(self._row - first_row, self._work.claim.index, number)
        held_bytes = self._budget.exchange(held_bytes, needed_bytes)
        yield self._window(picked, order, first_row, self._row, held_bytes)

    def _room_bytes(self, groups: range) -> int:
        """What decoding takes besides the decoded rows; says so where one column alone takes more
        than it may.
        """
        room_bytes, most = self._reader.room_bytes(groups), self._budget.most_room_bytes
        if most is not None and room_bytes > most:
            self._stats.counts["row_groups_beyond_budget"] += len(groups)
            if self._stats.counts["row_groups_beyond_budget"] == len(groups):
                _LOG.warning(
                    "%s: decoding one column takes %d bytes besides its rows, more than the "
                    "quarter of memory_budget that "
                    "is kept for that (%d): it goes on alone; raise memory_budget, or write "
                    "smaller row groups (told once)",
                    *(self._work.claim.split.path, room_bytes, most),
                )
        return room_bytes

    def _slices(self, group: int, num_slices: int) -> Iterator[Picked] | None:
        rows = max(_MIN_SLICE_ROWS, -(-self._footer.row_group_rows[group] // num_slices))
        return (
            self._reader.slices(group, rows) if rows < self._footer.row_group_rows[group] else None
        )

    def _sliced(self, slices: Iterator[Picked], size_bytes: int) -> Iterator[Window]:
        """A row group's slices, but those that were delivered whole, as far as the claim goes."""
        end, picked_slices = self._end_row(self._row), self._stats.each("decode_s", slices)
        while True:
            with self._budget.held(size_bytes) as held_bytes:
                picked, at = self._next_slice(picked_slices)
            yield self._window(picked, None, at - picked.rows.num_rows, at, held_bytes)
            if at >= end:
                return

    def _next_slice(self, slices: Iterator[Picked]) -> tuple[Picked, int]:
        """The first slice that was not delivered whole, and the row at its end."""
        for picked in slices:
            at = self._row - picked.num_following
            if at > self._work.claim.start_row or at >= self._end_row(self._row):
                return picked, at
        raise DataFileError(
            f"{self._work.claim.split.path}: expected {self._row} rows, as its footer says, found "
            f"fewer"
        )

    def _window(
        self, picked: Picked, order: Array | None, first_row: int, row: int, held_bytes: int
    ) -> Window:
        """The rows from `first_row` to `row` of the stream, as far as the claim goes."""
        self._through = self._end_row(row)
        left = self._through - first_row
        if left < row - first_row:
            order = (np.arange(row - first_row) if order is None else order)[:left]
        return Window(
            work=self._work,
            picked=picked,
            order=order,
            is_shuffled=self._order.shuffle is not None,
            first_row=first_row,
            end_row=self._through,
            is_last=self.is_finished and self._through == self._end_row(self._row),
            held_bytes=held_bytes,
        )

    def close(self) -> None:
        self._close_files()
        self._work.release()

    def _open(
        self, source: Path | BinaryIO, path: str, resolved: Resolved, is_checked: bool
    ) -> Footer:
        return StoppingFooter(source, path, self._budget, resolved, is_checked=is_checked)

    def _close_files(self) -> None:
        for footer in (self._footer, *self._groups):
            footer.close()

    def _cut(self) -> list[range]:
        """The windows of the split, as ranges of the file's row groups; one without row groups for
        a file without rows.
        """
        split, rows = self._work.claim.split, self._footer.row_group_rows
        cuts = split_windows(split, rows, self._order.window_rows)
        if (found := sum(sum(rows[cut.start : cut.stop]) for cut in cuts)) != split.num_rows:
            raise DataFileError(
                f"{split.path}: expected {split.num_rows} rows, as the table says, found {found}"
            )
        return cuts or [range(0)]

    def _skip_delivered(self) -> None:
        """Passes over windows that were delivered whole; the last one stays, to say that the split
        has ended.
        """
        while self._next < len(self._windows) - 1:
            after = self._row + self._num_rows(self._windows[self._next])
            if after > self._work.claim.start_row:
                break
            self._next, self._row = self._next + 1, after

    def _end_row(self, row: int) -> int:
        return min(row, self._work.claim.end_row or row)

    def _num_rows(self, window: range) -> int:
        return sum(self._footer.row_group_rows[index] for index in window)


def split_windows(
    split: Split, row_group_rows: Sequence[int], window_rows: int | None
) -> list[range]:
    """The windows of a split, as ranges of its file's row groups."""
    first = split.first_row_group
    end = len(row_group_rows) if split.last_row_group is None else split.last_row_group + 1
    return [
        range(cut.start + first, cut.stop + first)
        for cut in windows(row_group_rows[first:end], window_rows)
    ]


def boundaries(split: Split, footer: Footer, window_rows: int | None) -> list[int]:
    """The rows of a split's stream at which it may be cut: between its windows."""
    cuts = split_windows(split, footer.row_group_rows, window_rows)
    return list(accumulate(sum(footer.row_group_rows[cut.start : cut.stop]) for cut in cuts))[:-1]


def read_windows(
    work: Iterator[Work],
    open_split: Callable[[Work], SplitReader],
    width: int,
    skip: Skip | None = None,
) -> Generator[Window, None, None]:
    """The windows of all splits, `width` of them open at a time; closes what it opened, however it
    ends.

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
            yield from _windows(split, skip)
            if split.is_finished:
                open_splits.remove(split)
                split.close()
    finally:
        for split in open_splits:
            split.close()


def _windows(split: SplitReader, skip: Skip | None) -> Iterator[Window]:
    windows_ = split.read()
    while (window := _next_window(windows_, split, skip)) is not None:
        yield window
        del window


def _next_window(found: Iterator[Window], split: SplitReader, skip: Skip | None) -> Window | None:
    try:
        return next(found, None)
    except (DispatchError, StateError):
        raise
    except BaseException as error:
        split.fail()
        if skip is None or not is_bad_file(error):
            raise
        split.skip(skip, error)
        return None


def _opened(
    item: Work, open_split: Callable[[Work], SplitReader], skip: Skip | None
) -> list[SplitReader]:
    """The open split, or nothing where it is left out."""
    try:
        return [open_split(item)]
    except BaseException as error:
        item.fail()
        item.release()
        if skip is None or not is_bad_file(error):
            raise
        skip(item.claim, item.claim.start_row, error)
        return []
