"""Which columns the bytes that are read belong to, and the time that decoding them takes.

The columns of a row group are decoded side by side: the time of a read is shared out among them by their uncompressed bytes,
as `decode_s`. What converting each slot to buffers takes is measured, as `assemble_s`, by the thread that does it (decode.py).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from featstore.loader.stats import Stats
from featstore.reading.aligned import RowsReader


class Meter:
    """Meters the reads of one reader. One thread."""

    def __init__(self, reader: RowsReader, stats: Stats) -> None:
        self._stats = stats
        self._columns = [
            (footer, name, columns.places[found])
            for footer, columns in reader.parts
            for name, found in {**columns.slots, **columns.others}.items()
            if found is not None
        ]

    @contextmanager
    def metered(self, row_groups: Sequence[int]) -> Iterator[None]:
        """Counts what is read inside as these row groups."""
        started = time.perf_counter()
        yield
        if not row_groups:
            return
        taken_s, sizes = time.perf_counter() - started, dict[str, int]()
        for footer, name, places in self._columns:
            chunks = [footer.chunk(group, place) for group in row_groups for place in places]
            self._stats.column_bytes[name] += sum(chunk.stored_bytes for chunk in chunks)
            sizes[name] = sum(chunk.raw_bytes for chunk in chunks)
        total = sum(sizes.values()) or 1
        for name, size in sizes.items():
            self._stats.column_decode_s[name] += taken_s * size / total
