"""A file that is read in place, some of whose bytes are kept in memory once they are fetched."""

import io
from collections.abc import Iterable
from typing import BinaryIO

from featstore.base.intervals import Span, united
from featstore.files.random_reader import RandomReader
from featstore.native.read_on import read_on

# Spans with a smaller gap between them are fetched with one request, as Arrow does.
_HOLE_BYTES = 8 << 10


class KeptSpans(RandomReader):
    """Reads `source`, and serves spans that are kept from memory. Not thread-safe.

    The pages of a column chunk are checked before Arrow reads them. With this a remote store is
    asked for them only once. The caller closes the source.
    """

    def __init__(self, source: BinaryIO) -> None:
        super().__init__(source.seek(0, io.SEEK_END))
        self._source = source
        self._kept: dict[Span, bytes] = {}

    def keep(self, spans: Iterable[Span]) -> None:
        """Fetches these spans, neighbouring ones with one request, and keeps them in place of those
        that were kept before.
        """
        self._kept = {}
        for first, end in united(spans, _HOLE_BYTES):
            self._source.seek(first)
            self._kept[first, end] = read_on(self._source, end - first)

    def fetch(self, first: int, num_bytes: int) -> bytes:
        """These bytes, or fewer if the source gives fewer."""
        for (begin, end), data in self._kept.items():
            if begin <= first and first + num_bytes <= end:
                return data[first - begin : first - begin + num_bytes]
        self._source.seek(first)
        return read_on(self._source, num_bytes)
