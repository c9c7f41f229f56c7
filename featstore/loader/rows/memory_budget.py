"""The bytes of decoded rows that are in memory at once, counted from before they are decoded until
the consumer asks for the batch after them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from featstore.errors import StateError

CLOSED = "this iteration was closed before its end; iterate anew"
# A row group of more than half the budget is decoded in slices, four of which fill the budget: one
# is decoded, one assembled and one delivered at a time, with some room to spare. Chosen, not
# measured.
_SHARE, _NUM_SLICES = 2, 4
# A quarter of the budget is for the working memory of decoders: pages before and after
# decompression, in each thread that decodes a column.
_ROOM_SHARE = 4


class Budget:
    """Bytes that any thread may take and give back. A piece that is larger than the whole budget
    waits until nothing else is held, and is then allowed.

    Args:
        max_bytes: The budget; None is no limit.

    Attributes:
        closed: One byte, 0 until the budget is closed. The kernels, which cannot ask Python, read
            it to stop early.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = self._kept_bytes = 0
        self.closed = bytearray(1)
        self._changed = threading.Condition()

    @property
    def is_closed(self) -> bool:
        """Whether decoding should stop, since nobody will take the rows."""
        return bool(self.closed[0])

    @property
    def held_bytes(self) -> int:
        return self._held_bytes + self._kept_bytes

    def fits_open(self, size_bytes: int) -> bool:
        """Whether windows of these bytes may be open at once, see `keep`: half of the budget is for
        what is made of them.
        """
        return self._max_bytes is None or size_bytes <= self._max_bytes // _SHARE

    def fits_ahead(self, size_bytes: int) -> bool:
        """Whether there is room for a window of these bytes before it is needed."""
        with self._changed:
            held_bytes = self._held_bytes + self._kept_bytes + size_bytes
            return self._max_bytes is None or held_bytes <= self._max_bytes

    @property
    def most_room_bytes(self) -> int | None:
        """How much working memory decoding may take beyond the decoded rows; None is no limit. A
        single column may exceed it.
        """
        return None if self._max_bytes is None else self._max_bytes // _ROOM_SHARE

    def num_slices(self, size_bytes: int) -> int:
        """Into how many slices a row group of this size is divided; 1: it is decoded at once."""
        if self._max_bytes is None or size_bytes <= self._max_bytes // _SHARE:
            return 1
        return -(-size_bytes * _NUM_SLICES // self._max_bytes)

    def take(self, size_bytes: int) -> int:
        """Waits until the bytes fit, and takes them.

        Returns:
            `size_bytes`, to be given back with `exchange`.

        Raises:
            StateError: The budget was closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or self._fits(size_bytes))
            if self.is_closed:
                raise StateError(CLOSED)
            self._held_bytes += size_bytes
            return size_bytes

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[int]:
        """Like `take`, but gives the bytes back if the block raises."""
        taken = self.take(size_bytes)
        try:
            yield taken
        except BaseException:
            self.exchange(taken, 0)
            raise

    def exchange(self, held_bytes: int, size_bytes: int) -> int:
        """Replaces `held_bytes` that were taken by `size_bytes`, without waiting.

        Returns:
            `size_bytes`.
        """
        with self._changed:
            self._held_bytes += size_bytes - held_bytes
            self._changed.notify_all()
            return size_bytes

    def keep(self, held_bytes: int) -> int:
        """Keeps bytes that were taken: those of an open window, which may need more windows beside
        it before it is let go. A piece that is larger than what is left waits for all but these.

        Returns:
            `held_bytes`, to be given back with `let_go`.
        """
        with self._changed:
            self._held_bytes -= held_bytes
            self._kept_bytes += held_bytes
            self._changed.notify_all()
            return held_bytes

    def let_go(self, kept_bytes: int) -> None:
        """Gives back bytes that were kept."""
        with self._changed:
            self._kept_bytes -= kept_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes all threads that wait; they raise StateError."""
        with self._changed:
            self.closed[0] = 1
            self._changed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return (
            self._max_bytes is None
            or not self._held_bytes
            or self._held_bytes + self._kept_bytes + size_bytes <= self._max_bytes
        )
