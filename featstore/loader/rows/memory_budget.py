"""How many bytes of decoded rows are held at once, from before they are decoded until the consumer
asks for what follows.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from featstore.errors import StateError

CLOSED = "this iteration was closed before its end; iterate anew"
# A row group that takes more than this share of the budget is decoded in slices, so many of which
# fit into it.
_SHARE, _NUM_SLICES = 2, 4
_ROOM_SHARE = 4  # decoding may take one part in so many besides what is decoded


class Budget:
    """Bytes that are taken and given back, by any thread; None for no limit. What exceeds the
    budget alone has to wait until nothing else is held, and then goes.

    `closed`: one byte, 0 until it is closed, for what cannot ask Python.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self.closed = bytearray(1)
        self._changed = threading.Condition()

    @property
    def is_closed(self) -> bool:
        """Whether nobody wants what is decoded any more."""
        return bool(self.closed[0])

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def most_room_bytes(self) -> int | None:
        """What decoding may take besides what is decoded; None for no limit. A column alone may
        take more.
        """
        return None if self._max_bytes is None else self._max_bytes // _ROOM_SHARE

    def num_slices(self, size_bytes: int) -> int:
        """In how many slices a row group of this size is to be decoded: 1 for all at once."""
        if self._max_bytes is None or size_bytes <= self._max_bytes // _SHARE:
            return 1
        return -(-size_bytes * _NUM_SLICES // self._max_bytes)

    def take(self, size_bytes: int) -> int:
        """Waits until so many bytes fit, and holds them; the number again. StateError once it is
        closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or self._fits(size_bytes))
            if self.is_closed:
                raise StateError(CLOSED)
            self._held_bytes += size_bytes
            return size_bytes

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[int]:
        """As `take`, for what is made within: where that fails, the bytes are given back."""
        taken = self.take(size_bytes)
        try:
            yield taken
        except BaseException:
            self.exchange(taken, 0)
            raise

    def exchange(self, held_bytes: int, size_bytes: int) -> int:
        """Holds `size_bytes`, in place of `held_bytes`, without waiting; returns the former."""
        with self._changed:
            self._held_bytes += size_bytes - held_bytes
            self._changed.notify_all()
            return size_bytes

    def close(self) -> None:
        """Wakes whoever waits."""
        with self._changed:
            self.closed[0] = 1
            self._changed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return (
            self._max_bytes is None
            or not self._held_bytes
            or self._held_bytes + size_bytes <= self._max_bytes
        )
