"""Reads row groups in two steps if rows are filtered: first the columns of the filters, then the
others, of row groups in which a row passes.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from featstore.decoded.decoded_file import DecodedFile, DecodedReader
from featstore.loader.batches.pruning import Parts, may_match
from featstore.loader.batches.stats import Stats
from featstore.loader.request.decode import passing
from featstore.loader.request.matching import Partition, partition_value
from featstore.loader.request.request import Request
from featstore.reading.aligned import RowsReader, aligned_reader
from featstore.reading.buffers import Array
from featstore.reading.file_columns import FileColumns
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import Take
from featstore.reading.reader import Rows

_Reader = RowsReader | DecodedReader


@dataclass(frozen=True, kw_only=True)
class RowMask:
    """Which rows of some row groups pass the filters, if not all of them do.

    Attributes:
        mask: Whether each row of the row groups passes: bool (num_rows,).
        at: Each row's index among the rows that were read: int64 (num_rows,), arbitrary for rows
            that were not read. None: all rows were read.
    """

    mask: Array
    at: Array | None = None

    def select(self, order: Array | None) -> tuple[Array, Array]:
        """The rows that pass, in the order of delivery.

        Args:
            order: The order in which the row groups' rows are delivered; None is the file's.

        Returns:
            Their indices among the rows that were read, and their positions in `order`.
        """
        places = np.flatnonzero(self.mask if order is None else self.mask[order])
        chosen = places if order is None else order[places]
        return chosen if self.at is None else self.at[chosen], places


Filtered = tuple[Rows, RowMask | None]


class FilteredReader:
    """Reads row groups of one data file and of its slot groups' files. Not thread-safe.

    From decoded columns the same rows come. Statistics, which are in the files, exclude no row
    group then: the columns of the filters are looked at, which takes no decoding.

    Args:
        file: The data file, or its decoded columns. The caller closes it, and the next ones.
        groups: The files of its slot groups.
        request: What is delivered.
        partition: The file's partition.
        stats: Where rows, bytes and seconds are counted.
        num_threads: As of `RowGroupReader`.
        most_room_bytes: As of `RowGroupReader`.
        take: As of `RowGroupReader`.
    """

    def __init__(
        self,
        file: OpenFile | DecodedFile,
        groups: Sequence[OpenFile],
        request: Request,
        partition: Partition,
        stats: Stats,
        *,
        num_threads: int | None = None,
        most_room_bytes: int | None = None,
        take: Take | None = None,
    ) -> None:

        self._file, self._request, self._partition = file, request, partition
        self._counts, self._stats = stats.counts, stats
        self._filter: _Reader | None = None
        first, rest = request.reads(is_decided=partition.is_decided)
        if isinstance(file, DecodedFile):
            self._filter = None if first is None else file.reader(first)
            self._rest: _Reader = file.reader(rest)
        else:
            reader = partial(
                aligned_reader,
                file,
                groups,
                num_threads=num_threads,
                most_room_bytes=most_room_bytes,
            )
            self._filter = None if first is None else reader(first)
            self._rest = reader(rest, as_values=True, take=take)
        self._readers = [found for found in (self._filter, self._rest) if found is not None]
        self._leaves = {
            reader: [_leaves(file, columns) for file, columns in reader.parts]
            for reader in self._readers
        }
        # A reader of decoded columns counts all of them, whichever it reads.
        self._sized = [self._rest] if isinstance(file, DecodedFile) else self._readers
        self._may_match = self._judged()
        self._first_rows = [0, *np.cumsum(file.row_group_rows).tolist()]

    @property
    def parts(self) -> Parts:
        """The files that are read, each with the columns that are read from it."""
        return [*(self._filter.parts if self._filter is not None else ()), *self._rest.parts]

    @property
    def filters(self) -> bool:
        """Whether columns are looked at to leave rows out."""
        return self._filter is not None

    @property
    def reorders(self) -> bool:
        """Whether it may be asked for rows in another order than that of the file. It may not be if
        rows are filtered, so that some of them may not be read at all, or if they are decoded
        already.
        """
        return not self.filters and isinstance(self._file, OpenFile)

    def read(self, row_groups: range, order: Array | None = None) -> Filtered:
        """Reads those of the row groups in which a row passes the filters, whole.

        Args:
            row_groups: The row groups.
            order: As of `RowGroupReader.read`. None unless it `reorders`.

        Returns:
            The rows, and which of them pass (None: all). Rows that do not pass are counted.
        """
        if self._filter is None:
            return self._metered(self._rest, row_groups, order), None
        tables, kept, masks = [], [], []
        for index in row_groups:
            rows, mask = self._passing(self._filter, index)
            masks.append(mask)
            if rows is not None and mask.any():
                tables.append(rows.table)
                kept.append(index)
        table = pa.concat_tables(tables) if tables else self._filter.read([]).table
        rows_read = _beside(self._metered(self._rest, kept), table, self._filter.columns)
        mask = np.concatenate([np.ones(0, bool), *masks])
        if mask.all():
            return rows_read, None
        is_read = np.concatenate(
            [
                np.full(len(mask), index in kept)
                for index, mask in zip(row_groups, masks, strict=True)
            ]
        )
        return rows_read, RowMask(mask=mask, at=None if is_read.all() else np.cumsum(is_read) - 1)

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """A row group in slices of at most `num_rows` rows; None if it can only be read at once."""
        return None if self._filter is not None else self._rest.slices(row_group, num_rows)

    def size_bytes(self, row_groups: range) -> int:
        """The memory that the decoded columns of these row groups take."""
        return sum(reader.size_bytes(row_groups) for reader in self._sized)

    def room_bytes(self, row_groups: range, *, in_order: bool = False) -> int:
        """The working memory of decoding these row groups, beyond the decoded columns."""
        in_order = in_order and self.reorders
        return max(reader.room_bytes(row_groups, in_order=in_order) for reader in self._readers)

    def _judged(self) -> Array | None:
        """Which row groups can match by their statistics: bool (num_row_groups,); None if `where`
        does not depend on rows, or there are no statistics.
        """
        is_by_rows = self._request.where is not None and not self._partition.is_decided
        if self._filter is None or not (is_by_rows and self._filter.parts):
            return None
        return may_match(
            self._filter.parts, self._request, lambda field: partition_value(field, self._partition)
        )

    def _metered(
        self, reader: _Reader, row_groups: Sequence[int], order: Array | None = None
    ) -> Rows:
        """Reads, and counts bytes and seconds by column.

        The columns of a row group are decoded in parallel, so the time of a read is divided among
        them in proportion to their uncompressed bytes, as `decode_s`. What a slot's conversion
        takes is measured by the thread that does it (decode.py), as `assemble_s`.
        """
        started = time.perf_counter()
        rows = reader.read(row_groups, order)
        if not row_groups:
            return rows
        taken_s, sizes = time.perf_counter() - started, dict[str, int]()
        for names, stored_bytes_of, raw_bytes_of in self._leaves[reader]:
            stored = stored_bytes_of[row_groups].sum(axis=0).tolist()
            raw = raw_bytes_of[row_groups].sum(axis=0).tolist()
            for name, stored_bytes, raw_bytes in zip(names, stored, raw, strict=True):
                self._stats.column_bytes[name] += stored_bytes
                sizes[name] = sizes.get(name, 0) + raw_bytes
        total = sum(sizes.values()) or 1
        for name, size in sizes.items():
            self._stats.column_decode_s[name] += taken_s * size / total
        return rows

    def _passing(self, reader: _Reader, index: int) -> tuple[Rows | None, Array]:
        """A row group's filter columns (None: its statistics exclude it), and which rows pass."""
        num_rows = self._file.row_group_rows[index]
        if self._may_match is not None and not self._may_match[index]:
            self._counts["row_groups_pruned"] += 1
            self._counts["rows_filtered"] += num_rows
            return None, np.zeros(num_rows, bool)
        rows = self._metered(reader, [index])
        mask = passing(rows, self._first_rows[index], self._request, self._partition, self._counts)
        self._counts["row_groups_skipped"] += not mask.any()
        return rows, mask


class WindowCache:
    """Keeps the rows of the last window that was read. Used in static order, where the next claim
    is often of the same window. For one thread and one selection.
    """

    def __init__(self) -> None:
        self._key: tuple[str, range, bytes | None] | None = None
        self._rows: Filtered | None = None

    def read(
        self, path: str, row_groups: range, order: Array | None, reader: FilteredReader
    ) -> Filtered:
        """Like `FilteredReader.read`, for the file at this path of the table."""
        key = path, row_groups, None if order is None else order.tobytes()
        if self._rows is None or self._key != key:
            self._rows = None  # Otherwise two windows would be in memory during the next read.
            self._key, self._rows = key, reader.read(row_groups, order)
        return self._rows


def _beside(rest: Rows, table: pa.Table, columns: FileColumns) -> Rows:
    """The columns of both steps, of the same rows."""
    both = {name: side.column(name) for side in (rest.table, table) for name in side.column_names}
    return Rows(
        file_name=rest.file_name,
        num_rows=rest.num_rows,
        arrow=pa.table(both),
        columns=FileColumns(
            slots={**rest.columns.slots, **columns.slots},
            others={**rest.columns.others, **columns.others},
            leaves=(*rest.columns.leaves, *columns.leaves),
        ),
    )


def _leaves(file: OpenFile, columns: FileColumns) -> tuple[list[str], Array, Array]:
    """The leaf columns of a file that are read: the name of each one's column, and its bytes in
    each row group, as they are stored and decompressed: int64 (num_row_groups, num_leaves).
    """
    found = [
        (name, place)
        for name, column in {**columns.slots, **columns.others}.items()
        if column is not None
        for place in columns.places[column]
    ]
    chunks = file.footer.chunks_of(range(len(file.row_group_rows)), [place for _, place in found])
    return [name for name, _ in found], chunks.stored_bytes, chunks.raw_bytes
