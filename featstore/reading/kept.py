"""A file that is read in place, some of whose bytes are kept in memory once they are fetched."""

import io
from collections.abc import Iterable
from typing import BinaryIO

from featstore.intervals import united

Span = tuple[int, int]

# Spans with a smaller gap between them are fetched with one request, as Arrow does.
_HOLE_BYTES = 8 << 10


class KeptSpans(io.RawIOBase):
    """Reads `source`, and serves spans that are kept from memory. Not thread-safe.

    The pages of a column chunk are checked before Arrow reads them. With this a remote store is
    asked for them only once. The caller closes the source.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._at = source, 0
        self._kept: dict[Span, bytes] = {}

    def keep(self, spans: Iterable[Span]) -> None:
        """Fetches these spans, neighbouring ones with one request, and keeps them in place of those
        that were kept before.
        """
        self._kept = {}
        for first, end in united(spans, _HOLE_BYTES):
            self._source.seek(first)
            self._kept[first, end] = self._source.read(end - first)

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes, or fewer if the file ends before."""
        if size is None or size < 0:
            self._source.seek(self._at)
            found = self._source.read()
        else:
            found = self._read(self._at, size)
        self._at += len(found)
        return found

    def _read(self, at: int, size: int) -> bytes:
        for (first, end), data in self._kept.items():
            if first <= at and at + size <= end:
                return data[at - first : at - first + size]
        self._source.seek(at)
        return self._source.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As of any file."""
        if whence == io.SEEK_SET:
            self._at = offset
        elif whence == io.SEEK_CUR:
            self._at += offset
        else:
            self._at = self._source.seek(offset, whence)
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
