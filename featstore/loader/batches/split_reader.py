"""Reads one claimed split, window by window."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from featstore.base.errors import DataFileError, OutOfMemoryError
from featstore.decoded.decoded_file import DecodedFile
from featstore.decoded.file_sources import FileSource, Release
from featstore.dispatch.terms import Claim
from featstore.loader.batches.bad_files import Skip
from featstore.loader.batches.filtering import Filtered, FilteredReader, PassingRows, WindowCache
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder, split_windows
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import Request
from featstore.reading.buffers import Array
from featstore.reading.file_columns import ColumnCache
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import Take
from featstore.reading.reader import Rows
from featstore.reading.spans import require_held

_LOG = logging.getLogger(__name__)
# Slices with fewer rows cost more in calls than they save in memory. Chosen, not measured.
_MIN_SLICE_ROWS = 1_024
# Small row groups are read together, up to these rows and bytes, since each read takes some
# microseconds for every column, and a hand-over between threads. Windows of 131,072 rows took 0.83
# to 0.86 of the time of 32,768 on two cores, 0.96 on one (benchmarks/loader.md, the DLRM shape).
# The first of a split has fewer, since somebody may wait for it, and those with text, of which
# nobody knows the size before.
MOST_ROWS, _MOST_BYTES, _WINDOWS_IN_BUDGET = 1 << 17, 64 << 20, 8
_MOST_FIRST_ROWS, _MOST_TEXT_ROWS = 1 << 13, 1 << 15


@dataclass(frozen=True, kw_only=True)
class Work:
    """A claim whose files can be read now.

    The `SliceSource` makes it, in the thread that decodes, once the files are staged or opened in
    place. One `SplitReader` consumes it; it owns the files' pins, and calls `release` when it is
    closed.

    Attributes:
        claim: Which rows of which split.
        partition: The partition that the split's data file belongs to.
        files: The data file, and after it those of its slot groups; none if `decoded` is there.
        decoded: The data file's decoded columns, which are read instead.
        deleted_rows: As of a `DataFile`.
        release: Unpins the staged files, or the decoded columns. Called once, when the files are
            closed.
        limit: Called before rows are read. Returns the row at which the claim ends now, since other
            workers may have taken rows of it; None if the claim is lost.
        fail: Records that the claim cannot be read.
    """

    claim: Claim
    partition: Partition
    files: tuple[FileSource, ...]
    decoded: DecodedFile | None = None
    deleted_rows: Callable[[], Array | None] = lambda: None
    release: Release = lambda: None
    limit: Callable[[], int | None] = lambda: sys.maxsize
    fail: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """Rows of one split as read, before they are put in order: a window of row groups, or a slice
    of a large row group.

    Made by `SplitReader` in the decoding thread. Handed on as part of a `Mixture`. Owns the decoded
    rows, and `held_bytes` of the memory budget.

    Attributes:
        work: The claim for which the rows were read.
        rows: The rows: in the file's order, or in that of delivery if the reader could put them in
            it.
        mask: Which of them are delivered; None: all are.
        order: The order in which `rows` are delivered, up to the claim's end: a
            `RowOrder.permutation`, or None for the one in which they are.
        first_row: The row of the split's stream at which the window begins.
        end_row: The row of the stream at which it ends.
        is_last: Whether the claim ends with this window.
        held_bytes: What the window takes of the memory budget, kept if its rows are gathered.
        group_rows: How many rows each of several row groups has, which are in the file's order.
    """

    work: Work
    rows: Rows
    mask: PassingRows | None
    order: Array | None
    first_row: int
    end_row: int
    is_last: bool
    held_bytes: int = 0
    group_rows: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of the stream, whether they are delivered or left out."""
        return self.end_row - self.first_row

    @property
    def gathered_bytes(self) -> int:
        """About what the rows take once they are gathered, each with a history of its own."""
        return self.held_bytes + self.rows.history_bytes

    def by_row_group(self) -> "Iterator[Window]":
        """The rows of each of several row groups, as far as the window goes, without those that
        were delivered before the claim.
        """
        end = 0
        for num_rows in self.group_rows:
            begin, end = end, min(end + num_rows, self.num_rows)
            is_delivered = self.first_row + end <= self.work.claim.start_row
            if begin < end and (end == self.num_rows or not is_delivered):
                yield replace(
                    self,
                    order=np.arange(begin, end),
                    first_row=self.first_row + begin,
                    end_row=self.first_row + end,
                    is_last=self.is_last and end == self.num_rows,
                    group_rows=(),
                )

    def select(self) -> tuple[Array | None, Array | None]:
        """Which of `rows` are delivered, and in which order.

        Returns:
            Their indices in `rows` (None: all rows in their order), and their positions in the
            stream, counted from `first_row` (None: every row of it).
        """
        return (self.order, None) if self.mask is None else self.mask.select(self.order)


class SplitReader:
    """Reads one split window by window. Owned by one thread, which closes it.

    Args:
        work: The claim and its files.
        request: What is delivered.
        order: In which order.
        stats: Where rows, bytes and seconds are counted.
        num_threads: As of `RowGroupReader`.
        window_cache: Keeps the last window for the next claim; None keeps nothing.
        budget: The memory budget; None is no limit.
        column_cache: Remembers how files' columns resolve, across files; None resolves each again.
        take: Memory for the columns of windows that live no longer than the assembler needs them,
            as of `PageReader`.

    Raises:
        DataFileError: A file cannot be read, or is not what the table says. `work` is not released
            then.
    """

    def __init__(
        self,
        work: Work,
        *,
        request: Request,
        order: RowOrder,
        stats: Stats,
        num_threads: int | None = None,
        window_cache: WindowCache | None = None,
        budget: Budget | None = None,
        column_cache: ColumnCache | None = None,
        take: Take | None = None,
    ) -> None:
        self._window_cache, self._budget = window_cache, budget or Budget()
        self._work, self._order, self._stats = work, order, stats
        # Whether windows are kept until all their rows are gathered; otherwise batches are views.
        self._is_gathered = order.shuffle is not None or request.is_gathered
        self._next, self._row, self._has_ended = 0, 0, False
        self._known: tuple[range | None, tuple[int, int]] = None, (0, 0)
        self.claim, self._through = work.claim, work.claim.start_row
        self._limit = self.claim.end_row or sys.maxsize
        with stats.timed("decode_s"), ExitStack() as opened:
            files = [
                opened.enter_context(
                    OpenFile(
                        source.source,
                        source.path,
                        is_checked=source.is_checked,
                        cancelled=self._budget.closed,
                        column_cache=column_cache,
                    )
                )
                for source in work.files
            ]
            self._file: OpenFile | DecodedFile = work.decoded or files[0]
            if work.decoded and column_cache:
                column_cache.note(request.selection, has_found=work.decoded.has_columns)
            self._reader = FilteredReader(
                self._file,
                files[1:],
                request,
                work.partition,
                stats,
                deleted=work.deleted_rows(),
                num_threads=num_threads,
                most_room_bytes=self._budget.most_room_bytes,
                take=take,
            )
            held = {source.path: source.held for source in work.files}
            for file, columns in self._reader.parts:
                require_held(file, columns, held[file.name])
            self._windows = self._plan_windows()
            self._closing = ExitStack()  # Runs from the last line to the first.
            self._closing.callback(work.release)
            self._closing.push(opened.pop_all())
            self._closing.callback(self._let_go)
        self._skip_delivered()

    @property
    def is_finished(self) -> bool:
        if self._has_ended or self._next >= len(self._windows):
            return True
        return self._limit <= self._row

    @property
    def num_windows(self) -> int:
        """The windows of the split, whatever has been read of it."""
        return len(self._windows)

    @property
    def next_bytes(self) -> tuple[int, int]:
        """The memory that the next window takes, and that of decoding it; 0 once finished."""
        if self.is_finished:
            return 0, 0
        return self._bytes_of(self._windows[self._next])

    def _bytes_of(self, window: range) -> tuple[int, int]:
        """The memory that a window takes, and that of decoding it. Mixing asks for that of the next
        one several times.
        """
        if self._known[0] is not window:
            room_bytes = self._reader.room_bytes(window, in_order=self._order.shuffle is not None)
            self._known = window, (self._reader.size_bytes(window), room_bytes)
        return self._known[1]

    @property
    def most_bytes(self) -> int:
        """The memory that the split's largest window takes, whatever has been read of it."""
        return max(map(self._reader.size_bytes, self._windows))

    def fail(self) -> None:
        """Records that the split cannot be read, and ends it."""
        self._has_ended = True
        self._work.fail()

    def skip(self, note: Skip, error: DataFileError) -> None:
        """Leaves out the remaining rows of the split, because of `error`."""
        note(self.claim, self._through, error)

    def read(self) -> Iterator[Window]:
        """The next window, in slices if it takes much memory. Not to be called once finished.

        If other workers have taken over all of the window, it is empty: with it the claim's end is
        reported. If they have taken rows before it, too, or the claim is lost, there is no window.
        In each case the split is finished then.
        """
        limit = self._work.limit()
        if limit is None or limit < self._row:
            self._has_ended = True
            return
        self._limit = min(self._limit, limit)
        self._has_ended = self._limit == self._row
        with self._inflated_as_damage():
            yield from self._read(range(0) if self._has_ended else self._windows[self._next])

    @contextmanager
    def _inflated_as_damage(self) -> Iterator[None]:
        """Where there is no memory in the block because a file declares sizes beyond the budget, of
        which it stores next to nothing, raises DataFileError: other memory would not help.
        """
        try:
            yield
        except OutOfMemoryError as error:
            most_bytes = self._budget.most_bytes
            for file, columns in self._reader.parts:
                if (where := file.inflated(columns, most_bytes)) is not None:
                    raise DataFileError(
                        f"{where}: expected bytes for what it declares, which is more than "
                        f"memory_budget ({most_bytes} bytes), found next to nothing ({error}); if "
                        f"that is right, raise memory_budget, else write the file again"
                    ) from error
            raise

    def _read(self, row_groups: range) -> Iterator[Window]:
        number, first_row = self._next, self._row
        self._next += 1
        self._row += self._num_rows(row_groups)
        size_bytes, room_bytes = self._bytes_of(row_groups)
        is_gathered = self._is_gathered
        num_slices = 1 if is_gathered else self._budget.num_slices(size_bytes)
        if num_slices > 1 and (slices := self._slices(row_groups, num_slices)) is not None:
            wanted_bytes = self._budget.bytes_to_decode_at_once(size_bytes)
            self._stats.counts["row_groups_sliced"] += 1
            if self._stats.note_pieces(self._num_rows(row_groups), wanted_bytes):
                _LOG.warning(
                    "%s: a row group of %d bytes is more than half of memory_budget: it is decoded "
                    "in slices, which takes two to three times as long; set memory_budget to %d or "
                    "more, select fewer slots, or write smaller row groups (logged again only with "
                    "more)",
                    *(self._file.name, size_bytes, self._stats.wanted_budget_bytes),
                )
            yield from self._sliced(slices, first_row, size_bytes // num_slices)
            return
        self._warn_of_room(row_groups, room_bytes)
        holding = (
            self._budget.held_window(size_bytes, room_bytes)
            if is_gathered
            else self._budget.held(size_bytes + room_bytes)
        )
        try:
            with holding as held_bytes, self._stats.timed("decode_s"):
                order = self._order.permutation(self._row - first_row, self.claim.index, number)
                if self._reader.reorders:
                    # Each column while it is in the cache. Later its rows would be looked up all
                    # over the window.
                    (rows, mask), order = self._rows(row_groups, order), None
                else:
                    rows, mask = self._rows(row_groups, None)
        except DataFileError:
            if self._order.shuffle is not None or len(row_groups) == 1:
                raise
            # One by one: those before the one that cannot be read are delivered.
            self._windows[number : number + 1] = [range(i, i + 1) for i in row_groups]
            self._next, self._row = number, first_row
            self._skip_delivered()
            yield from self._read(self._windows[self._next])
            return
        held_bytes = self._budget.exchange(held_bytes, size_bytes + rows.own_lists_bytes)
        if is_gathered:
            self._budget.keep(held_bytes)
        window = self._window(rows, mask, order, first_row, self._row, held_bytes)
        if not is_gathered and len(row_groups) > 1:
            group_rows = tuple(self._file.row_group_rows[index] for index in row_groups)
            window = replace(window, group_rows=group_rows)
        yield window

    def _rows(self, row_groups: range, order: Array | None) -> Filtered:
        if self._window_cache is None:
            return self._reader.read(row_groups, order)
        return self._window_cache.read(self._file.name, row_groups, order, self._reader)

    def _warn_of_room(self, row_groups: range, room_bytes: int) -> None:
        """Warns, once, if a single column takes more working memory than the budget reserves."""
        most = self._budget.most_room_bytes
        if room_bytes > most and self._stats.is_first("row_groups_beyond_budget", len(row_groups)):
            _LOG.warning(
                "%s: decoding one column takes %d bytes of working memory, more than the "
                "quarter of memory_budget that is reserved for it (%d): the column is decoded "
                "alone; raise memory_budget, or write smaller row groups (logged once)",
                *(self._file.name, room_bytes, most),
            )

    def _slices(self, row_groups: range, num_slices: int) -> Iterator[Rows] | None:
        """A row group in slices; None for several of them, and one that is read at once."""
        num_rows = self._num_rows(row_groups)
        slice_rows = max(_MIN_SLICE_ROWS, -(-num_rows // num_slices))
        if len(row_groups) != 1 or slice_rows >= num_rows:
            return None
        return self._reader.slices(row_groups[0], slice_rows)

    def _sliced(self, slices: Iterator[Rows], first_row: int, size_bytes: int) -> Iterator[Window]:
        """A row group's slices up to the claim's end, without those that were delivered before.
        There is at least one, which is empty if the claim ends where the window begins: with it the
        end of the claim is reported.
        """
        row, end_row = first_row, self._end_row(self._row)
        timed = self._stats.each("decode_s", slices)
        while True:
            with self._budget.held(size_bytes) as held_bytes:
                rows, row = self._next_slice(timed, row)
            yield self._window(rows, None, None, row - rows.num_rows, row, held_bytes)
            del rows  # Frees its memory before the next slice is decoded.
            if row >= end_row:
                return

    def _next_slice(self, slices: Iterator[Rows], row: int) -> tuple[Rows, int]:
        """The first slice after `row` that was not delivered before, and the row after it."""
        for rows in slices:
            row += rows.num_rows
            if row > self.claim.start_row or row >= self._end_row(self._row):
                return rows, row
        raise DataFileError(
            f"{self._file.name}: expected {self._row} rows, as its footer says, found fewer"
        )

    def _window(
        self,
        rows: Rows,
        mask: PassingRows | None,
        order: Array | None,
        first_row: int,
        row: int,
        held_bytes: int,
    ) -> Window:
        """The window of the stream's rows from `first_row` to `row`, up to the claim's end."""
        self._through = self._end_row(row)
        num_left = self._through - first_row
        if num_left < row - first_row:
            order = (np.arange(row - first_row) if order is None else order)[:num_left]
        return Window(
            work=self._work,
            rows=rows,
            mask=mask,
            order=order,
            first_row=first_row,
            end_row=self._through,
            is_last=self.is_finished and self._through == self._end_row(self._row),
            held_bytes=held_bytes,
        )

    def close(self) -> None:
        """Closes the files and unpins those that are staged. May be called more than once."""
        self._closing.close()

    def _let_go(self) -> None:
        """Frees the footers. While rows are mixed, who draws them keeps this object."""
        del self._reader, self._file

    def _plan_windows(self) -> list[range]:
        """The windows of the split as ranges of the file's row groups; one empty window for a file
        without rows. DataFileError if the file has not as many rows as the table says.
        """
        split, rows = self.claim.split, self._file.row_group_rows
        windows = split_windows(split, rows, self._order.window_rows)
        if self._order.shuffle is None and len(windows) > 1:
            windows = list(self._joined(windows))
        if (found := sum(self._num_rows(window) for window in windows)) != split.num_rows:
            raise DataFileError(
                f"{split.path}: expected {split.num_rows} rows, as the table says, found {found}"
            )
        return windows or [range(0)]

    def _joined(self, row_groups: Iterable[range]) -> Iterator[range]:
        """Small row groups, each of them given as a range, in ranges that are read together."""
        most_bytes = min(_MOST_BYTES, self._budget.most_bytes // _WINDOWS_IN_BUDGET)
        most_rows_later = min(MOST_ROWS, _MOST_TEXT_ROWS) if self._has_text else MOST_ROWS
        joined, joined_bytes, most_rows = range(0), 0, min(MOST_ROWS, _MOST_FIRST_ROWS)
        for next_one in row_groups:
            more_bytes = self._reader.size_bytes(next_one)
            both = range(joined.start if joined else next_one.start, next_one.stop)
            is_small = joined_bytes + more_bytes <= most_bytes
            if joined and not (is_small and self._num_rows(both) <= most_rows):
                yield joined
                both, joined_bytes, most_rows = next_one, 0, most_rows_later
            joined, joined_bytes = both, joined_bytes + more_bytes
        if joined:
            yield joined

    @property
    def _has_text(self) -> bool:
        """Whether columns are read whose size in memory their footers do not tell."""
        return any(
            file.footer.leaves[leaf.place].physical_type == "BYTE_ARRAY"
            for file, columns in self._reader.parts
            for leaf in columns.leaves
        )

    def _skip_delivered(self) -> None:
        """Skips windows that were delivered before, except the last one of the claim, with which
        its end is reported.
        """
        claim = self.claim
        while self._next < len(self._windows) - 1:
            after = self._row + self._num_rows(self._windows[self._next])
            if after > claim.start_row or self._limit <= after:
                break
            self._next, self._row = self._next + 1, after

    def _end_row(self, row: int) -> int:
        return min(row, self._limit)

    def _num_rows(self, window: range) -> int:
        return sum(self._file.row_group_rows[index] for index in window)
