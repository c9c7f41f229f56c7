"""From claimed splits to rows in the order of delivery, one split after the other. `mixing.py`
mixes the rows of several.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from featstore.base.errors import DispatchError, StateError
from featstore.loader.batches.bad_files import Skip, is_bad_file
from featstore.loader.batches.memory_budget import Budget
from featstore.loader.batches.split_reader import SplitReader, Window, Work
from featstore.reading.buffers import Array

# Small windows are handed on together, since each hand-over wakes another thread: so many, with at
# most this part of the memory budget. To assemble files of one row then takes half of the CPU. More
# of them would save little, and each is of a claim that others may be waiting for.
_MOST_TOGETHER, _TOGETHER_SHARE = 16, 8


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The splits to read.

    Attributes:
        work: The claims. The next one is taken when another split is to be opened.
        open_split: Opens the split of a claim.
        skip: Called for a split that cannot be read, whose remaining rows are then left out. None:
            a file that cannot be read is an error.
        is_ready: Whether `work` gives the next claim, or ends, without waiting for its files or
            for room in the memory budget.
    """

    work: Iterator[Work]
    open_split: Callable[[Work], SplitReader]
    skip: Skip | None = None
    is_ready: Callable[[], bool] = lambda: True

    def opened(self, item: Work) -> SplitReader | None:
        """The open split of a claim; None if it cannot be read and is left out."""
        try:
            return self.open_split(item)
        except BaseException as error:
            item.fail()
            item.release()
            if self.skip is None or not is_bad_file(error):
                raise
            self.skip(item.claim, item.claim.start_row, error)
            return None


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowShare:
    """Consecutive rows of one window in a mixture.

    Attributes:
        window: The window.
        begin: The first of them, counted in the window's stream, from `window.first_row`.
        end: The row after the last one.
    """

    window: Window
    begin: int
    end: int

    @property
    def is_end(self) -> bool:
        """Whether nothing of the window follows."""
        return self.end == self.window.num_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixture:
    """Rows of one or more windows, in the order of delivery.

    Made by `read_in_order` or `read_mixed` in the decoding thread. Consumed by the `Assembler` in
    its thread, which makes blocks of it. Owns its windows, together with the mixtures before and
    after it that have rows of the same windows.

    Attributes:
        shares: The rows of each window, one share for each.
        draws: The share to which each row belongs: uint16 (num_rows,), in the order of delivery.
            None: shares follow one another, each in its file's order.
    """

    shares: tuple[WindowShare, ...]
    draws: Array | None


def read_in_order(
    splits: Splits, batch_rows: int = 1, budget: Budget | None = None
) -> Generator[Mixture, None, None]:
    """Reads all splits, one after the other. Closes every split that it opened, however it ends.

    Windows that do not fill a batch come several in a mixture. None of them waits for files, or for
    room in the budget.

    Args:
        splits: The splits.
        batch_rows: Rows of a batch.
        budget: The memory budget; None is no limit.
    """
    together = _Together(batch_rows, (budget or Budget()).most_bytes // _TOGETHER_SHARE)
    try:
        for item in splits.work:
            if (split := splits.opened(item)) is not None:
                with closing(split):
                    yield from together.read(split, splits.skip)
            if not splits.is_ready():
                yield from together.taken()
    except Exception:
        yield from together.taken()  # The rows before those that cannot be read are delivered.
        raise
    yield from together.taken()


class _Together:
    """Windows that are handed on together.

    Args:
        most_rows: With so many rows they are handed on.
        most_bytes: What they may hold of the memory budget together.
    """

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._shares = list[WindowShare]()
        self._num_rows = self._held_bytes = 0

    def read(self, split: SplitReader, skip: Skip | None) -> Iterator[Mixture]:
        """Reads the windows of a split. Nothing is left here while one waits for more room than
        they leave.
        """
        while not split.is_finished:
            if self._shares and self._held_bytes + sum(split.next_bytes) > self._most_bytes:
                yield from self.taken()
            read = partial(next, split.read(), None)
            while (window := next_window(read, split, skip)) is not None:
                self._shares.append(WindowShare(window=window, begin=0, end=window.num_rows))
                self._num_rows += window.num_rows
                self._held_bytes += window.held_bytes
                del window  # Otherwise its rows stay in memory while the next ones are read.
                if self._is_full:
                    yield from self.taken()

    @property
    def _is_full(self) -> bool:
        return (
            len(self._shares) == _MOST_TOGETHER
            or self._num_rows >= self._most_rows
            or self._held_bytes > self._most_bytes
        )

    def taken(self) -> Iterator[Mixture]:
        """The mixture of the windows that are here, if there are any."""
        if self._shares:
            # Held by no name here, so that who takes it can free its memory.
            yield Mixture(shares=self._emptied(), draws=None)

    def _emptied(self) -> tuple[WindowShare, ...]:
        shares, self._shares = tuple(self._shares), []
        self._num_rows = self._held_bytes = 0
        return shares


def next_window(
    read: Callable[[], Window | None], split: SplitReader, skip: Skip | None
) -> Window | None:
    """The window that `read` gives; None if it cannot be read and is left out."""
    try:
        return read()
    except (DispatchError, StateError):
        raise
    except BaseException as error:
        split.fail()
        if skip is None or not is_bad_file(error):
            raise
        split.skip(skip, error)
        return None
