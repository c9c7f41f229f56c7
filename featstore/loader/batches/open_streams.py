"""The splits whose rows are mixed: their open windows, and what is drawn of them."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import Future
from operator import attrgetter

import numpy as np

from featstore.loader.batches.mixtures import Mixture, WindowShare
from featstore.loader.batches.split_reader import SplitReader, Window
from featstore.loader.plan.shuffle import MOST_SHARES, RowOrder

# The numbers of a stream, as of `kernels.draw_rows`.
_SPLIT, _SPLIT_ROWS, _POSITION, _NUM_LEFT, _SHARE, _NUMBERS = range(6)
_place = attrgetter("place")


class WindowStream:
    """A split whose rows are mixed: its reader, its open window, and the window after it if that is
    read already. Its files are closed when its last window is read.
    """

    def __init__(self, reader: SplitReader) -> None:
        # Of the largest window, not of the next one: whether another split may be opened beside
        # this one is then the same after a resume at any row.
        self.reader, self.size_bytes = reader, reader.most_bytes
        self.has_several = reader.num_windows > 1
        claim = reader.claim
        # Claims on one split are on rows of their own, so this is the order of their positions.
        self.place = claim.index, claim.start_row, claim.part, claim.fence
        self.window: Window | None = None
        self._ahead: Future[Window | None] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether no window follows the open one."""
        return self._ahead is None and self.reader.is_finished

    @property
    def may_read_ahead(self) -> bool:
        return self._ahead is None and not self.reader.is_finished

    @property
    def has_rows_ahead(self) -> bool:
        """Whether the window after the open one is read, and has rows to draw."""
        if self._ahead is None or self._ahead.exception() is not None:
            return False
        window = self._ahead.result()
        return window is not None and self.num_delivered(window) < window.num_rows

    def read_ahead(self) -> None:
        """Reads the window after the open one. An error is raised when the window is asked for,
        since the rows before it are to be delivered.
        """
        self._ahead = Future()
        try:
            self._ahead.set_result(self._read())
        except BaseException as error:  # noqa: BLE001  raised by `next_window`
            self._ahead.set_exception(error)

    def next_window(self) -> Window | None:
        """The window after the open one; None if the split ends there."""
        if self._ahead is None:
            return self._read()
        ahead, self._ahead = self._ahead, None
        return ahead.result()

    def _read(self) -> Window | None:
        window = next(self.reader.read(), None)
        if self.reader.is_finished:
            self.reader.close()
        return window

    def num_delivered(self, window: Window) -> int:
        """How many rows of a window were delivered before a restart, and are not drawn again."""
        return min(max(0, self.reader.claim.start_row - window.first_row), window.num_rows)


class OpenStreams:
    """The streams that are mixed, in the order of their splits and positions, and the mixture that
    is drawn of them. What drawing asks of each stream lies in arrays, and nothing is looked at for
    each of thousands of streams when a row of one is drawn. For one thread.

    Attributes:
        size_bytes: What the largest windows of all of them take.
        num_rows: Rows of the open windows, drawn or not.
        row_bytes: What a row takes of memory, in the window where it takes most, since the mixture
            was begun.
        waiting: The streams without an open window.
        num_drawn: How many rows of the mixture are drawn.
    """

    def __init__(self, order: RowOrder) -> None:
        self._order = order
        self._streams: list[WindowStream] = []
        self._numbers, self._sizes, self._row_bytes = array("q"), array("q"), array("d")
        self.size_bytes = self.num_rows = self.num_drawn = 0
        self.row_bytes = 1.0
        self.waiting: list[WindowStream] = []
        self._draws, self._shares = np.empty(0, np.uint16), np.empty((MOST_SHARES, 2), np.int64)
        self._begun: list[tuple[Window, int]] = []  # Of each share, its window and first row.

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[WindowStream]:
        return iter(self._streams)

    @property
    def first(self) -> int:
        """The position in the plan of the first split."""
        return self._streams[0].reader.claim.index

    @property
    def largest_bytes(self) -> int:
        """What the largest window of all streams takes."""
        return max(self._sizes, default=0)

    def by_rows_left(self) -> Iterator[WindowStream]:
        """The streams of several windows, those whose open windows end first first."""
        left = self._numbers[_NUM_LEFT::_NUMBERS]
        several = [at for at, stream in enumerate(self._streams) if stream.has_several]
        return map(self._streams.__getitem__, sorted(several, key=left.__getitem__))

    def add(self, stream: WindowStream) -> None:
        at, claim = self._at(stream), stream.reader.claim
        self._streams.insert(at, stream)
        self._sizes.insert(at, stream.size_bytes)
        self._row_bytes.insert(at, 0.0)
        numbers = array("q", (claim.index, max(1, claim.split.num_rows), 0, 0, -1))
        self._numbers[at * _NUMBERS : at * _NUMBERS] = numbers
        self.size_bytes += stream.size_bytes
        self.waiting.append(stream)

    def remove(self, stream: WindowStream) -> None:
        """Removes a stream that has no open window."""
        at = self._at(stream)
        del self._streams[at], self._sizes[at], self._row_bytes[at]
        del self._numbers[at * _NUMBERS : (at + 1) * _NUMBERS]
        self.size_bytes -= stream.size_bytes
        self.waiting.remove(stream)

    def _at(self, stream: WindowStream) -> int:
        return bisect_left(self._streams, stream.place, key=_place)

    def begin(self, stream: WindowStream, window: Window) -> bool:
        """Opens the next window of a stream. Returns whether it has rows to draw, and is open."""
        num_drawn = stream.num_delivered(window)
        if num_drawn == window.num_rows:
            return False
        at = self._at(stream)
        first = at * _NUMBERS
        self._numbers[first + _POSITION] = window.first_row + num_drawn
        self._numbers[first + _NUM_LEFT] = window.num_rows - num_drawn
        self._row_bytes[at] = window.gathered_bytes / window.num_rows
        self.row_bytes = max(self.row_bytes, self._row_bytes[at])
        self.num_rows += window.num_rows
        self.waiting.remove(stream)
        stream.window = window
        return True

    def begin_mixture(self) -> None:
        """Begins to draw a mixture. All streams have open windows."""
        self._numbers[_SHARE::_NUMBERS] = array("q", [-1]) * len(self)
        self._begun, self.num_drawn = [], 0
        self.row_bytes = max(1.0, *self._row_bytes)

    def draw(self, most_rows: int) -> Window | None:
        """Draws the next rows of the mixture, until it has so many or a window ends, which is
        returned and no longer open.
        """
        if len(self._draws) < most_rows:
            self._draws = np.concatenate([self._draws, np.empty(most_rows, np.uint16)])
        num_shares = len(self._begun)
        drawn = self._order.draw(
            self._numbers, self._draws[self.num_drawn : most_rows], self._shares, num_shares
        )
        for at, num_rows in self._shares[num_shares : drawn.num_shares].tolist():
            window = self._streams[at].window
            assert window is not None
            num_left = self._numbers[at * _NUMBERS + _NUM_LEFT]
            self._begun.append((window, window.num_rows - num_left - num_rows))
        self.num_drawn += drawn.num_rows
        return self._end(drawn.ended) if drawn.ended >= 0 else None

    def _end(self, at: int) -> Window:
        stream = self._streams[at]
        window, stream.window = stream.window, None  # Owned by the mixture from here on.
        assert window is not None
        self._numbers[at * _NUMBERS + _SHARE], self._row_bytes[at] = -1, 0.0
        self.num_rows -= window.num_rows
        self.waiting.append(stream)
        return window

    def mixture(self) -> Mixture:
        """What was drawn since the mixture was begun."""
        begun, self._begun = self._begun, []
        num_rows = self._shares[: len(begun), 1].tolist()
        return Mixture(
            shares=tuple(
                WindowShare(window=window, begin=begin, end=begin + count)
                for (window, begin), count in zip(begun, num_rows, strict=True)
            ),
            draws=self._draws[: self.num_drawn].copy(),
        )
