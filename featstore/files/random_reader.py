"""A file of known size whose bytes are fetched by their positions."""

import io
import os
from collections.abc import Iterator
from typing import Any


class RandomReader(io.RawIOBase):
    """An unbuffered reader over `fetch`. Not thread-safe.

    Args:
        size_bytes: Size of the file.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._position = size_bytes, 0

    def fetch(self, first: int, num_bytes: int) -> Any:
        """These bytes of the file, as an object with the buffer protocol. They are within it."""
        raise NotImplementedError

    def stream(self, first: int, num_bytes: int) -> Iterator[bytes] | None:
        """These bytes as they arrive, by one request that is not made again. It may end early. None
        if the store gives bytes only when all have arrived.
        """
        return None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        origin = (0, self._position, self._size_bytes)[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readall(self) -> bytes:
        """The rest of the file, in one request: the inherited method makes one for each 8 KiB."""
        return bytes(self._following(self._size_bytes))

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, without the copies that the inherited method makes."""
        return bytes(self._following(self._size_bytes if size < 0 else size))

    def readinto(self, buffer: Any, /) -> int:
        data = memoryview(self._following(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def _following(self, most_bytes: int) -> Any:
        """The following bytes, in one request; none at the end."""
        num_bytes = min(most_bytes, self._size_bytes - self._position)
        data = self.fetch(self._position, num_bytes) if num_bytes > 0 else b""
        self._position += len(data)
        return data
