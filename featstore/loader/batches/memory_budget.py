"""The bytes of decoded rows that are in memory at once, counted from before they are decoded until
the consumer asks for the batch after them.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from featstore.base.errors import StateError

# A row group of more than half the budget is decoded in slices, four of which fill the budget: one
# is decoded, one assembled and one delivered at a time, with some room to spare. Chosen, not
# measured.
_SHARE, _NUM_SLICES = 2, 4
# A quarter of the budget is for the working memory of decoders: pages before and after
# decompression, in each thread that decodes a column.
_ROOM_SHARE = 4
# If rows are shuffled, half of the budget is for open windows, a quarter for those that are read
# ahead or not yet gathered to their end, and a quarter for the rows that are gathered at a time.
_GATHERED_SHARE = 4
# Windows that are read ahead, or not yet gathered to their end, take at most a quarter as much as
# the open ones, or one window. All open ones end at nearly the same time, so otherwise there are
# twice as many then (see decision 95).
_AHEAD_SHARE = 4


class Budget:
    """Bytes that any thread may take and give back. A piece that is larger than the whole budget
    waits until nothing else is held, and is then allowed.

    Windows of shuffled rows are kept beyond that: open ones until the decoding thread has drawn
    their last row, which it does without waiting for anybody, and drawn ones until the assembling
    thread has gathered it. So the decoding thread may wait for drawn windows, but not for open
    ones, and the assembling thread for neither.

    Args:
        max_bytes: The budget, by default without a limit.
        num_sharing: Of how many equal parts of `memory_budget` this is one.
        peak_bytes: What was held at most before.

    Attributes:
        most_bytes: The whole budget.
        peak_bytes: What was held at most.
        most_gathered_bytes: How many bytes of open windows are gathered at a time.
        most_room_bytes: How much working memory decoding may take beyond the decoded rows. A single
            column may exceed it.
        closed: One byte, 0 until the budget is closed. The kernels, which cannot ask Python, read
            it to stop early.
    """

    def __init__(
        self, max_bytes: int = sys.maxsize, num_sharing: int = 1, peak_bytes: int = 0
    ) -> None:
        self.most_bytes, self._num_sharing, self.peak_bytes = max_bytes, num_sharing, peak_bytes
        self.most_gathered_bytes = max_bytes // _GATHERED_SHARE
        self.most_room_bytes = max_bytes // _ROOM_SHARE
        self._held_bytes = self._open_bytes = self._drawn_bytes = 0
        self._most_window_bytes = max_bytes - self.most_gathered_bytes
        self.closed = bytearray(1)
        self._changed = threading.Condition()

    @property
    def is_closed(self) -> bool:
        """Whether decoding should stop, since nobody will take the rows."""
        return bool(self.closed[0])

    @property
    def held_bytes(self) -> int:
        return self._held_bytes + self._kept_bytes

    @property
    def _kept_bytes(self) -> int:
        return self._open_bytes + self._drawn_bytes

    def fits_open(self, size_bytes: int) -> bool:
        """Whether windows of these bytes may be open at once, see `keep`: half of the budget is for
        what is made of them.
        """
        return size_bytes <= self.most_bytes // _SHARE

    def limit_windows(self, open_bytes: int, largest_bytes: int) -> None:
        """Limits what all windows take together: the open ones, and a quarter as much, or one more.

        Args:
            open_bytes: What the largest windows of all open splits take.
            largest_bytes: What the largest of these takes.
        """
        most_bytes = open_bytes + max(largest_bytes, open_bytes // _AHEAD_SHARE)
        with self._changed:
            self._most_window_bytes = min(most_bytes, self.most_bytes - self.most_gathered_bytes)
            self._changed.notify_all()

    def fits_ahead(self, size_bytes: int, room_bytes: int) -> bool:
        """Whether there is room now for a window of these bytes, and for decoding it."""
        with self._changed:
            return self._fits_beside(size_bytes, room_bytes)

    def num_slices(self, size_bytes: int) -> int:
        """Into how many slices a row group of this size is divided; 1: it is decoded at once."""
        if self.fits_open(size_bytes):
            return 1
        return -(-size_bytes * _NUM_SLICES // self.most_bytes)

    def bytes_to_decode_at_once(self, size_bytes: int) -> int:
        """The least `memory_budget` with which a row group of this size is not divided."""
        return size_bytes * _SHARE * self._num_sharing

    def bytes_to_gather_at_once(self, size_bytes: int) -> int:
        """The least `memory_budget` with which so many bytes of open windows are gathered at a
        time.
        """
        return size_bytes * _GATHERED_SHARE * self._num_sharing

    def take(self, size_bytes: int) -> int:
        """Waits until the bytes fit, and takes them.

        Returns:
            `size_bytes`, to be given back with `exchange`.

        Raises:
            StateError: The budget was closed.
        """
        return self._take(
            size_bytes,
            lambda: not self._held_bytes or self.held_bytes + size_bytes <= self.most_bytes,
        )

    def held(self, size_bytes: int) -> AbstractContextManager[int]:
        """Like `take`, but gives the bytes back if the block raises."""
        return self._returned_on_failure(self.take(size_bytes))

    @contextmanager
    def held_within(self, size_bytes: int) -> Iterator[None]:
        """Like `take`, and gives the bytes back at the end of the block."""
        with self.held(size_bytes) as held_bytes:
            yield
        self.exchange(held_bytes, 0)

    def exchange(self, held_bytes: int, size_bytes: int) -> int:
        """Replaces `held_bytes` that were taken by `size_bytes`, without waiting.

        Returns:
            `size_bytes`.
        """
        with self._changed:
            self._hold(size_bytes - held_bytes)
            self._changed.notify_all()
            return size_bytes

    def held_window(self, size_bytes: int, room_bytes: int) -> AbstractContextManager[int]:
        """Like `held`, for a window of shuffled rows and the working memory of decoding it. Leaves
        room for the rows that are gathered meanwhile, and waits for windows that are drawn.
        """
        return self._returned_on_failure(
            self._take(
                size_bytes + room_bytes,
                lambda: (
                    not (self._held_bytes or self._drawn_bytes)
                    or self._fits_beside(size_bytes, room_bytes)
                ),
            )
        )

    def keep(self, held_bytes: int) -> int:
        """Keeps bytes that were taken: those of an open window.

        Returns:
            `held_bytes`, to be given to `drawn` and then to `let_go`.
        """
        with self._changed:
            self._held_bytes -= held_bytes
            self._open_bytes += held_bytes
            self._changed.notify_all()
            return held_bytes

    def drawn(self, kept_bytes: int) -> None:
        """Records that the last row of a window is drawn, whose bytes are kept."""
        with self._changed:
            self._open_bytes -= kept_bytes
            self._drawn_bytes += kept_bytes
            self._changed.notify_all()

    def let_go(self, kept_bytes: int) -> None:
        """Gives back the bytes of a window that is drawn."""
        with self._changed:
            self._drawn_bytes -= kept_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes all threads that wait; they raise StateError."""
        with self._changed:
            self.closed[0] = 1
            self._changed.notify_all()

    def _take(self, size_bytes: int, fits: Callable[[], bool]) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or fits())
            if self.is_closed:
                raise StateError("this iteration was closed before its end; iterate anew")
            self._hold(size_bytes)
            return size_bytes

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    @contextmanager
    def _returned_on_failure(self, held_bytes: int) -> Iterator[int]:
        try:
            yield held_bytes
        except BaseException:
            self.exchange(held_bytes, 0)
            raise

    def _fits_beside(self, size_bytes: int, room_bytes: int) -> bool:
        """Whether a window and the working memory of decoding it fit beside all that is held, and
        the window beside the others and what is gathered of them.
        """
        kept_bytes = self._kept_bytes + size_bytes
        return (
            kept_bytes <= self._most_window_bytes
            and kept_bytes + self._held_bytes + room_bytes <= self.most_bytes
        )
