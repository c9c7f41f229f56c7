"""From claimed splits to rows in the order of delivery, if rows are shuffled: those of several open
splits, mixed.
"""

import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.mixtures import Mixture, Splits, WindowShare, next_window
from featstore.loader.batches.open_streams import OpenStreams, WindowStream
from featstore.loader.batches.stats import Stats
from featstore.loader.plan.shuffle import RowOrder, round_size

_LOG = logging.getLogger(__name__)
# Rows are gathered while the next windows are read, so a mixture has only a part of the rows of the
# open windows, with two mixtures for each of them; but many rows for each call. Chosen, not
# measured.
_MIXTURES_PER_WINDOW, _LEAST_MIXED_ROWS = 2, 32_768
# A mixture takes some 0.5 ms of CPU whatever its rows, as much as 150 with 50 events each: of fewer
# rows than this reading takes half as much again, or more (2 cores, beside other work).
_FEW_GATHERED = 512
# Rows that are as many calls as thousands, whatever the size of a batch. Chosen, not measured.
_FEW_ROWS = 32


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
        batch_rows: Rows of a batch. A mixture of fewer is not handed on while the next split can be
            read at once, since its batch waits for those rows. Of more, a slow worker would claim
            small splits that others could deliver.
        most_bytes: What is gathered at a time at most, however large the memory budget is, unless
            it is a single batch.
        whole_rows: Rows of a batch if all batches have as many, else 1.
    """

    order: RowOrder
    width: int
    section_of: Callable[[int], range]
    num_sharing: int = 1
    batch_rows: int = 1
    most_bytes: int = sys.maxsize
    whole_rows: int = 1


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
        self._num_waiting = 0  # Rows after the last whole batch, if all are delivered.
        self._is_exhausted = False  # Whether all work is taken.
        # Of the splits that are open, or of which the mixture has rows.
        self._section: range | None = None
        self._streams = OpenStreams(terms.order)

    def _gathered(self, num_rows: int) -> int:
        """As many of these rows as can be gathered from the open windows at a time. They end with a
        batch where one is whole by then, if all are delivered: others are copied twice.
        """
        row_bytes, whole_rows = self._streams.row_bytes, self._terms.whole_rows
        most_bytes = max(self._terms.most_bytes, whole_rows * row_bytes)
        most_bytes = min(self._budget.most_gathered_bytes, most_bytes)
        most_rows = max(1, min(num_rows, int(most_bytes / row_bytes)))
        whole = most_rows - (self._num_waiting + most_rows) % whole_rows
        return whole if whole > 0 else most_rows

    def fill(self) -> bool:
        """Opens splits until as many are open as may be, or the next one has to wait. Returns
        whether any is open.
        """
        if not self._streams:
            self._section = None
        while self._has_place():
            if self._coming:
                self._add_coming()
            elif not self._open_next():
                break
        self._limit_windows()
        return bool(self._streams)

    def _replace_ended(self) -> bool:
        """Closes splits that have ended. Those take their places whose first windows are read, or,
        while few rows are drawn, can be read at once. Returns whether the rows after that may be
        drawn now: nothing has ended, all places are taken again, or no work is left. At the end of
        a section they may not, so that a worker with few rows gets no further ahead of the others.
        """
        if not self.drop_finished():
            return True
        while self._has_place() and self._has_rows_coming():
            self._add_coming()
            self._limit_windows()
        if not self._coming:
            return self._is_exhausted or not self._has_place()
        return not self._has_place() and self._is_of_section(self._coming[0])

    def _add_coming(self) -> None:
        stream = self._coming.popleft()
        self._section = self._section or self._terms.section_of(stream.reader.claim.index)
        self._streams.add(stream)

    def _has_rows_coming(self) -> bool:
        """Whether the next split may be mixed with those that are open, and its first window is
        read. Opens and reads it if few rows are drawn.
        """
        are_few = self._streams.num_drawn < max(_FEW_ROWS, self._terms.batch_rows)
        if not (self._coming or (are_few and self._opens_ahead())):
            return False
        stream = self._coming[0]
        if not self._may_mix(stream):
            return False
        if are_few and stream.may_read_ahead and self._budget.fits_ahead(*stream.reader.next_bytes):
            stream.read_ahead()
        return stream.has_rows_ahead

    def _has_place(self) -> bool:
        """Whether the next split, as far as it is known, may be mixed with those that are open."""
        if len(self._streams) >= self._most_open:
            return False
        return not self._coming or self._may_mix(self._coming[0])

    def _limit_windows(self) -> None:
        self._budget.limit_windows(self._streams.size_bytes, self._streams.largest_bytes)

    @property
    def _most_open(self) -> int:
        """How many splits may be open: as many as belong to the round of the first open one."""
        section = self._section
        if not self._streams or section is None:
            return self._terms.width
        first = self._streams.first
        share = max(1, len(section) // self._terms.num_sharing)
        return round_size(first - section.start, len(section), min(self._terms.width, share))

    def _may_mix(self, stream: WindowStream) -> bool:
        if not self._is_of_section(stream):
            return False
        total = self._streams.size_bytes + stream.size_bytes
        if not self._streams or self._budget.fits_open(total):
            return True
        if stream is not self._noted:
            self._noted = stream
            if self._stats.is_first("interleave_reduced"):
                _LOG.warning(
                    "shuffle.interleave: %d instead of %d splits open at once, since the windows "
                    "of more would take more than half of memory_budget: raise memory_budget, "
                    "write smaller row groups, or lower shuffle.window_rows (logged once)",
                    *(len(self._streams), self._most_open),
                )
        return False

    def _is_of_section(self, stream: WindowStream) -> bool:
        """Whether a split may be mixed with those that are open, or drawn, if there are any."""
        return self._section is None or stream.reader.claim.index in self._section

    def ended(self) -> Iterator[Mixture]:
        """Reads the next window of every split that has none. Gives those without rows to draw,
        with which the end of a claim is reported.
        """
        for stream in list(self._streams.waiting):
            while stream.window is None and not stream.is_finished:
                if (mixture := self._begin_next(stream)) is not None:
                    yield mixture

    def _begin_next(self, stream: WindowStream) -> Mixture | None:
        """Begins the next window of a split. Returns a mixture if it has no rows to draw."""
        window = next_window(stream.next_window, stream.reader, self._splits.skip)
        if window is None or self._streams.begin(stream, window):
            return None
        self._budget.drawn(window.held_bytes)
        end = window.num_rows
        share = WindowShare(window=window, begin=end, end=end)
        return Mixture(shares=(share,), draws=np.zeros(0, np.uint16))

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
        total = self._streams.size_bytes
        for stream in self._streams.by_rows_left():
            if not stream.is_finished:
                if stream.may_read_ahead:
                    yield stream
            elif (following := next(coming, None)) is not None:
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
        streams = self._streams
        streams.begin_mixture()
        # What is gathered of these rows fits into its part of the budget, from whichever windows
        # they come.
        num_mixtures = _MIXTURES_PER_WINDOW * len(streams)
        most_rows = self._gathered(max(_LEAST_MIXED_ROWS, streams.num_rows // num_mixtures))
        # A mixture takes this part of the rows of the open windows, so about as many of them end
        # with it, rounded up, and their next windows should be read by then.
        self._ahead_due = -(-len(streams) * most_rows // streams.num_rows)
        while (window := streams.draw(most_rows)) is not None:
            self._budget.drawn(window.held_bytes)
            if not self._begins_next():
                break
            most_rows = self._gathered(most_rows)  # Of longer rows fewer.
            if streams.num_drawn >= most_rows:
                break
        self._note_pieces(most_rows)
        self._num_waiting = (self._num_waiting + streams.num_drawn) % self._terms.whole_rows
        return streams.mixture()

    def _note_pieces(self, most_rows: int) -> None:
        """Counts the rows of a mixture that has few since the budget holds no more, and warns once.

        Args:
            most_rows: How many rows the mixture may have.
        """
        row_bytes, num_rows = self._streams.row_bytes, self._streams.num_drawn
        enough = max(_FEW_GATHERED, self._terms.whole_rows)
        fitting = int(self._budget.most_gathered_bytes / row_bytes)
        if num_rows < most_rows or fitting >= enough:
            return
        wanted = max(2 * _FEW_GATHERED, self._terms.whole_rows) * row_bytes
        wanted_bytes = max(
            self._budget.bytes_to_gather_at_once(math.ceil(wanted)),
            self._budget.bytes_to_decode_at_once(self._streams.largest_bytes),
        )
        if self._stats.note_pieces(num_rows, wanted_bytes):
            _LOG.warning(
                "memory_budget: the quarter of %d bytes in which rows are gathered holds %d rows "
                "of %d bytes, fewer than %d: gathered in small pieces they can take several times "
                "as long; set memory_budget to %d or more, or select fewer slots or shorter lists "
                "(logged again only with more)",
                *(self._budget.most_bytes, fitting, row_bytes, enough),
                self._stats.wanted_budget_bytes,
            )

    def _begins_next(self) -> bool:
        """Begins the windows that are read ahead where one, or a split, has ended. Returns whether
        the rows after that are known: no split that is not read yet takes a place, and all have an
        open window.
        """
        has_all = self._replace_ended()
        for stream in list(self._streams.waiting):
            if stream.has_rows_ahead:
                self._begin_next(stream)
        return has_all and bool(self._streams) and not self._streams.waiting

    def drop_finished(self) -> bool:
        """Closes the splits whose last window is drawn. Returns whether there were any."""
        finished = [stream for stream in self._streams.waiting if stream.is_finished]
        for stream in finished:
            self._streams.remove(stream)
            stream.reader.close()
        return bool(finished)

    def close(self) -> None:
        for stream in (*self._streams, *self._coming):
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
