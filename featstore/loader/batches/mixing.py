"""From claimed splits to rows in the order of delivery, if rows are shuffled: those of several open
splits, mixed.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixtures import (
    Mixture,
    Splits,
    WindowShare,
    WindowStream,
    next_window,
)
from featstore.loader.batches.split_reader import Window
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder, round_size
from featstore.reading.buffers import Array

_LOG = logging.getLogger(__name__)
# How many rows are drawn beyond those after which a window is expected to end, so that it usually
# does within one call. Chosen, not measured.
_MORE_DRAWS = 1_024
# Rows are gathered while the next windows are read, so a mixture has only a part of the rows of the
# open windows, with two mixtures for each of them; but many rows for each call. Chosen, not
# measured.
_MIXTURES_PER_WINDOW, _LEAST_MIXED_ROWS = 2, 32_768


@dataclass(frozen=True, kw_only=True)
class MixTerms:
    """How the rows of several splits are mixed.

    Attributes:
        order: The order of rows.
        width: How many splits are open at once at most. Fewer are as long as the largest windows of
            that many would take more than half of the memory budget.
        section_of: The positions of the plan with which a position may be mixed.
        num_sharing: How many workers share the splits of a section. Each opens its part of them at
            most, and at least one.
    """

    order: RowOrder
    width: int
    section_of: Callable[[int], range]
    num_sharing: int = 1


def read_mixed(
    splits: Splits, terms: MixTerms, budget: Budget, stats: Stats
) -> Generator[Mixture, None, None]:
    """Reads all splits, `terms.width` of them at once, and mixes their rows. Closes every split
    that it opened, however it ends.

    Each row is drawn from one of the open splits, and is the next row of that split's stream. When
    a split ends, the next one takes its place; one of another section waits until all that are open
    have ended. While the last of several windows of a split is open, the next split of the section
    is opened if its files are there, and its first window is read if it fits into the budget.

    Args:
        splits: The splits to read.
        terms: How they are mixed.
        budget: The memory budget.
        stats: Where splits that have to wait for it are counted.
    """
    mixer = _Mixer(splits, terms, budget, stats)
    try:
        while mixer.fill():
            yield from mixer.ended()
            mixer.read_ahead()  # After those that are needed now.
            if not mixer.drop_finished():  # Otherwise others take their places first.
                yield mixer.draw()
                mixer.drop_finished()
    finally:
        mixer.close()


class _Mixer:
    """The open splits, and the draws among them. For one thread."""

    def __init__(self, splits: Splits, terms: MixTerms, budget: Budget, stats: Stats) -> None:
        self._splits, self._terms, self._budget, self._stats = splits, terms, budget, stats
        self._coming = deque[WindowStream]()  # Open, but not mixed with the others yet.
        self._error: BaseException | None = None  # Of opening the split after these.
        self._noted: WindowStream | None = None  # The last one that did not fit.
        self._ahead_due = 0  # How many windows are to be read ahead.
        self._is_exhausted = False  # Whether all work is taken.
        self.streams: list[WindowStream] = []

    @property
    def _open_rows(self) -> int:
        """Rows of the open windows, drawn or not."""
        return sum(stream.window.num_rows for stream in self.streams if stream.window is not None)

    def _gathered(self, num_rows: int) -> int:
        """As many of these rows as can be gathered from the open windows at a time."""
        windows = [stream.window for stream in self.streams if stream.window is not None]
        row_bytes = max(window.held_bytes / window.num_rows for window in windows)
        return max(1, min(num_rows, int(self._budget.most_gathered_bytes / max(1.0, row_bytes))))

    def fill(self) -> bool:
        """Opens splits until as many are open as may be, or the next one has to wait. Returns
        whether any is open.
        """
        while self._has_place():
            if self._coming:
                self.streams.append(self._coming.popleft())
            elif not self._open_next():
                break
        self._limit_windows()
        return bool(self.streams)

    def _replace_ended(self) -> bool:
        """Closes splits that have ended. Those take their places whose first windows are read.
        Returns whether the rows after that may be drawn now: nothing has ended, all places are
        taken again, or no work is left. At the end of a section they may not, so that a worker with
        few rows gets no further ahead of the others.
        """
        if not self.drop_finished():
            return True
        while self._has_place() and self._coming and self._coming[0].has_rows_ahead:
            self.streams.append(self._coming.popleft())
            self._limit_windows()
        if not self._coming:
            return self._is_exhausted or not self._has_place()
        return not self._has_place() and self._is_of_section(self._coming[0])

    def _has_place(self) -> bool:
        """Whether the next split, as far as it is known, may be mixed with those that are open."""
        if len(self.streams) >= self._most_open:
            return False
        return not self._coming or self._may_mix(self._coming[0])

    def _limit_windows(self) -> None:
        sizes = [stream.size_bytes for stream in self.streams]
        self._budget.limit_windows(sum(sizes), max(sizes, default=0))

    @property
    def _most_open(self) -> int:
        """How many splits may be open: as many as belong to the round of the first open one."""
        if not self.streams:
            return self._terms.width
        first = min(stream.reader.claim.index for stream in self.streams)
        section = self._terms.section_of(first)
        share = max(1, len(section) // self._terms.num_sharing)
        return round_size(first - section.start, len(section), min(self._terms.width, share))

    def _may_mix(self, stream: WindowStream) -> bool:
        if not self._is_of_section(stream):
            return False
        total = sum(each.size_bytes for each in self.streams) + stream.size_bytes
        if not self.streams or self._budget.fits_open(total):
            return True
        if stream is not self._noted:
            self._noted = stream
            if self._stats.is_first("interleave_reduced"):
                _LOG.warning(
                    "shuffle.interleave: %d instead of %d splits open at once, since the windows "
                    "of more would take more than half of memory_budget: raise memory_budget, "
                    "write smaller row groups, or lower shuffle.window_rows (logged once)",
                    *(len(self.streams), self._most_open),
                )
        return False

    def _is_of_section(self, stream: WindowStream) -> bool:
        """Whether a split may be mixed with those that are open, if there are any."""
        if not self.streams:
            return True
        return stream.reader.claim.index in self._terms.section_of(
            self.streams[0].reader.claim.index
        )

    def ended(self) -> Iterator[Mixture]:
        """Reads the next window of every split that has none. Gives those without rows to draw,
        with which the end of a claim is reported.
        """
        for stream in self.streams:
            while stream.window is None and not stream.is_finished:
                window = next_window(stream.next_window, stream.reader, self._splits.skip)
                if window is None:
                    continue
                stream.begin(window)
                del window
                if not stream.num_left:
                    yield Mixture(shares=(self._share(stream, 0),), draws=np.zeros(0, np.uint16))

    def read_ahead(self) -> None:
        """Reads windows that will be needed, as far as they fit into the budget: as large a part of
        them as the last mixture is of the open windows. So they are read in the same time in which
        these are gathered, although all of them end at nearly the same time.
        """
        for stream in islice(self._due_ahead(), self._ahead_due):
            if not self._budget.fits_ahead(*stream.reader.next_bytes):
                break
            stream.read_ahead()

    def _due_ahead(self) -> Iterator[WindowStream]:
        """The splits whose next windows may be read ahead, in the order in which they are needed.
        Where an open split has no further window, it is the next split, which takes its place.

        But not where it had only one window: of small splits a worker would hold twice as many,
        for which others may be waiting.
        """
        coming = self._coming_ahead()
        total = sum(stream.size_bytes for stream in self.streams)
        for stream in sorted(self.streams, key=lambda stream: stream.num_left):
            if not stream.is_finished:
                if stream.may_read_ahead:
                    yield stream
            elif stream.reader.num_windows > 1 and (following := next(coming, None)) is not None:
                total += following.size_bytes - stream.size_bytes
                if not self._budget.fits_open(total):
                    coming = iter(())  # Like it, those after it wait until others end.
                elif following.may_read_ahead:
                    yield following

    def _coming_ahead(self) -> Iterator[WindowStream]:
        """The splits of this section that take the next places, opened when they are asked for."""
        number = 0
        while number < len(self._coming) or self._opens_ahead():
            if not self._is_of_section(self._coming[number]):
                return
            yield self._coming[number]
            number += 1

    def _opens_ahead(self) -> bool:
        """Opens the next split if its files are there. An error is raised when the split is asked
        for, since the rows before it are to be delivered.
        """
        if self._is_exhausted or self._error is not None or not self._splits.is_ready():
            return False
        try:
            return self._open_next()
        except BaseException as error:  # noqa: BLE001  raised by `_open_next`
            self._error = error
            return False

    def draw(self) -> Mixture:
        """Rows of the open windows. Ends early where a window ends and the next one, or that of the
        split that takes its place, is not read yet.
        """
        num_mixtures = _MIXTURES_PER_WINDOW * len(self.streams)
        # What is gathered of these rows fits into its part of the budget, from whichever windows
        # they come.
        most_rows = self._gathered(max(_LEAST_MIXED_ROWS, self._open_rows // num_mixtures))
        num_rows, draws = 0, list[Array]()
        # A mixture takes this part of the rows of the open windows, so about as many of them end
        # with it, rounded up, and their next windows should be read by then.
        self._ahead_due = -(-len(self.streams) * most_rows // self._open_rows)
        shares = dict[Window, WindowShare]()
        numbers = dict[Window, int]()
        while True:
            # A window that goes on from one call to the next stays one share of the mixture; draws
            # by stream become draws by share.
            more, drawn = self._draw_to_end(most_rows - num_rows)
            of_place = np.zeros(len(more), np.uint16)
            for place, share in enumerate(more):
                if share.begin < share.end:
                    before = shares.get(share.window, share)
                    shares[share.window] = replace(share, begin=before.begin)
                    of_place[place] = numbers.setdefault(share.window, len(numbers))
            draws.append(of_place[drawn])
            num_rows += len(drawn)
            if (
                num_rows == most_rows
                or not self._begins_next()
                or num_rows >= (most_rows := self._gathered(most_rows))  # Of longer rows fewer.
            ):
                return Mixture(shares=tuple(shares.values()), draws=np.concatenate(draws))

    def _draw_to_end(self, most_rows: int) -> tuple[list[WindowShare], Array]:
        """Rows of the open windows until one of these ends: a share of each, in the order of the
        streams, and the place in them to which each row belongs.
        """
        streams = self.streams
        streams.sort(key=lambda stream: (stream.reader.claim.index, stream.position))
        claims = [stream.reader.claim for stream in streams]
        # Splits are drawn in proportion to their rows, whatever is left of their windows: so draws
        # are a function of the open splits and their positions, which a state has.
        split_rows = np.array([max(1, claim.split.num_rows) for claim in claims])
        left = np.array([stream.num_left for stream in streams])
        # After this many draws the first window is expected to be empty. Draws beyond its end are
        # cut off below, and made again by the next call.
        expected = int((left * (split_rows.sum() / split_rows)).min()) + _MORE_DRAWS
        draws = self._terms.order.draws(
            [claim.index for claim in claims],
            split_rows.tolist(),
            sum(stream.position for stream in streams),
            min(expected, int(left.sum()), most_rows),
        )
        # Where each window has given its last row: the first of these ends the draws.
        drawn = np.bincount(draws, minlength=len(streams))
        ends = [
            int(np.flatnonzero(draws == number)[left[number] - 1])
            for number in np.flatnonzero((drawn >= left) & (left > 0))
        ]
        draws = draws[: min([len(draws) - 1, *ends]) + 1]
        counts = np.bincount(draws, minlength=len(streams)).tolist()
        shares = [self._share(stream, count) for stream, count in zip(streams, counts, strict=True)]
        return shares, draws

    def _share(self, stream: WindowStream, num_rows: int) -> WindowShare:
        """The next rows of a stream."""
        share = stream.draw(num_rows)
        if share.is_end:
            self._budget.drawn(share.window.held_bytes)
        return share

    def _begins_next(self) -> bool:
        """Begins the windows that are read ahead where one, or a split, has ended. Returns whether
        the rows after that are known: no split that is not read yet takes a place, and all have an
        open window.
        """
        has_all = self._replace_ended()
        for stream in self.streams:
            if stream.window is None and stream.has_rows_ahead:
                window = next_window(stream.next_window, stream.reader, self._splits.skip)
                assert window is not None
                stream.begin(window)
        windows = [stream.window for stream in self.streams]
        return has_all and bool(windows) and None not in windows

    def drop_finished(self) -> bool:
        """Closes the splits whose last window is drawn. Returns whether there were any."""
        finished = [
            stream for stream in self.streams if stream.window is None and stream.is_finished
        ]
        for stream in finished:
            self.streams.remove(stream)
            stream.reader.close()
        return bool(finished)

    def close(self) -> None:
        for stream in (*self.streams, *self._coming):
            stream.reader.close()

    def _open_next(self) -> bool:
        """Opens the next split. Returns whether there is one."""
        if self._error is not None:
            raise self._error
        while (item := next(self._splits.work, None)) is not None:
            if (reader := self._splits.opened(item)) is not None:
                self._coming.append(WindowStream(reader))
                return True
        self._is_exhausted = True
        return False
