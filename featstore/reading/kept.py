"""A file that is read in place, some of whose bytes are kept in memory once they are fetched."""

import io
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.intervals import Span, united
from featstore.files.random_reader import RandomReader
from featstore.native.footers import CheckedFooter, read_on

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


class InPlaceFile(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file that Arrow reads in place, in the caller's thread.

    As Arrow's `pre_buffer` does, it fetches the column chunks of a read with few requests. But a
    thread of Arrow's pool would call Python, and free its memory: that aborts the process while the
    interpreter ends.

    Args:
        footer: Its footer.
        source: The file. The caller closes it.
        options: Of `ParquetFile`, without `pre_buffer`.
    """

    def __init__(self, footer: CheckedFooter, source: BinaryIO, **options: Any) -> None:
        self._footer, self._kept = footer, KeptSpans(source)
        super().__init__(self._kept, pre_buffer=False, **options)

    def iter_batches(
        self,
        batch_size: int,
        row_groups: Sequence[int],
        columns: Sequence[str] | None,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these row groups, of all columns if `columns` is None."""
        leaves = enumerate(self._footer.leaves)
        places = [at for at, leaf in leaves if columns is None or is_below(leaf.path, columns)]
        chunks = itertools.product(row_groups, places)
        self._kept.keep(self._footer.span(*chunk) for chunk in chunks)
        yield from super().iter_batches(batch_size, row_groups, columns, use_threads=use_threads)


def is_below(path: str, columns: Collection[str]) -> bool:
    """Whether a leaf belongs to one of the columns, whose names may hold dots, too."""
    prefixes = itertools.accumulate(path.split("."), "{}.{}".format)
    return any(prefix in columns for prefix in prefixes)
