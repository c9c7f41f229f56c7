"""Who decodes: Arrow alone, Arrow with the conversion to buffers without nulls, and the kernels;
and what the kernels do when.

Each opens the file, reads the slots' columns row group by row group in one thread (or in as many as
Arrow has), lets go of one before it decodes the next, and yields the number of its rows.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.schema import Slot
from featstore.reading import pages
from featstore.reading.buffers import Array, Ragged, Values, slot_values
from featstore.reading.file_columns import Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader

Slots = Sequence[Slot]


def arrow(path: Path, slots: Slots, *, use_threads: bool = False) -> Iterator[int]:
    """A bare loop of `read_row_group`."""
    names = [slot.name for slot in slots]
    with pq.ParquetFile(path) as file:
        for index in range(file.num_row_groups):
            yield int(file.read_row_group(index, columns=names, use_threads=use_threads).num_rows)


def converted(path: Path, slots: Slots, *, use_threads: bool = False) -> Iterator[int]:
    """Arrow's columns as value and offset buffers without nulls."""
    return _values(path, slots, use_threads=use_threads, as_values=False)


def native(path: Path, slots: Slots, *, use_threads: bool = False) -> Iterator[int]:
    """The same buffers by the kernels, and by Arrow what they leave to it: what the loader does."""
    return _values(path, slots, use_threads=use_threads, as_values=True)


def _values(path: Path, slots: Slots, *, use_threads: bool, as_values: bool) -> Iterator[int]:
    with OpenFile(path) as footer:
        reader = RowGroupReader(
            footer,
            Selection(slots=tuple(slots)),
            num_threads=None if use_threads else 1,
            as_values=as_values,
        )
        for index in range(len(footer.row_group_rows)):
            yield len(_decoded(reader, index, slots)[0])


def _decoded(reader: RowGroupReader, index: int, slots: Slots) -> list[Values]:
    rows = reader.read([index])
    return [rows.slot(slot) for slot in slots]


def differing(path: Path, slots: Slots, expected: pa.Table) -> list[str]:
    """The slots whose values, decoded by Arrow or by the kernels, are not those of the rows that
    were written.
    """
    wrong = set()
    with OpenFile(path) as footer:
        for as_values in (False, True):
            reader = RowGroupReader(
                footer, Selection(slots=tuple(slots)), num_threads=1, as_values=as_values
            )
            first = 0
            for index, num_rows in enumerate(footer.row_group_rows):
                group = expected.slice(first, num_rows)
                first += num_rows
                found = _decoded(reader, index, slots)
                pairs = (
                    (slot, column, slot_values(_whole(group, slot), slot))
                    for slot, column in zip(slots, found, strict=True)
                )
                wrong |= {
                    slot.name for slot, column, wanted in pairs if not _are_equal(column, wanted)
                }
    return sorted(wrong)


def _whole(group: pa.Table, slot: Slot) -> pa.ChunkedArray:
    """The column in memory of its own: marks may be written into it."""
    column = group.column(slot.name)
    return column.take(pa.array(np.arange(len(column))))


def _are_equal(found: Values, wanted: Values) -> bool:
    if isinstance(found, Ragged):
        is_list = isinstance(wanted, Ragged) and np.array_equal(
            np.diff(found.offsets), np.diff(wanted.offsets)
        )
        return is_list and np.array_equal(_flat(found), _flat(wanted))
    if isinstance(wanted, Ragged):
        return False
    return np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f")


def _flat(column: Values) -> Array:
    """All values of all rows."""
    return (
        column.values[column.offsets[0] : column.offsets[-1]]
        if isinstance(column, Ragged)
        else column
    )


def num_values(rows: pa.Table, slots: Slots) -> int:
    """How many values there are without nulls, marks included."""
    return sum(len(_flat(slot_values(_whole(rows, slot), slot))) for slot in slots)


def stored_bytes(path: Path, slots: Slots) -> int:
    """Of the slots' column chunks."""
    names, metadata = {slot.name for slot in slots}, pq.read_metadata(path)
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(metadata.num_columns))
    return sum(
        chunk.total_compressed_size
        for chunk in chunks
        if chunk.path_in_schema.split(".")[0] in names
    )


def left_to_arrow(path: Path, slots: Slots) -> int:
    """How many of the slots the kernels do not decode in the first row group."""
    with OpenFile(path) as footer:
        columns = footer.resolve(Selection(slots=tuple(slots)))
        return len(slots) - len(pages.PageReader(footer, slots, columns).read([0]))


def parts(path: Path, slots: Slots) -> dict[str, float]:
    """Where the kernels' time goes: seconds of the thread's CPU in each part, of one pass over the
    file.
    """
    taken: dict[str, float] = defaultdict(float)
    clock = _Clock(taken)
    with OpenFile(path) as footer:
        columns = footer.resolve(Selection(slots=tuple(slots)))
        reader = pages.PageReader(footer, slots, columns)
        clock.took("footer")
        for index in range(len(footer.row_group_rows)):
            decoded = reader.read([index])
            clock.took("all, read and decoded")
            for slot in slots:
                _ = decoded[slot.name].values
            del decoded
            clock.took("buffers, freeing")
    return dict(taken)


class _Clock:
    """Adds the time since the last call to a part's."""

    def __init__(self, taken: dict[str, float]) -> None:
        self._taken, self._last = taken, time.thread_time()

    def took(self, part: str) -> None:
        now = time.thread_time()
        self._taken[part] += now - self._last
        self._last = now
