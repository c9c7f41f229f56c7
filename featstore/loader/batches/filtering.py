"""Reads row groups in two steps if rows are filtered: first the columns of the filters, then the
others, of the rows that pass. Rows that the table has deleted do not.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby

import numpy as np
import pyarrow as pa

from featstore.decoded.decoded_file import DecodedFile
from featstore.loader.batches.pruning import Parts, may_match
from featstore.loader.batches.stats import Stats
from featstore.loader.request.decode import passing
from featstore.loader.request.matching import Partition, partition_value
from featstore.loader.request.request import Request
from featstore.ops.arrays import array_of
from featstore.reading.aligned import aligned_reader
from featstore.reading.buffers import Array, chosen_rows, rows_left
from featstore.reading.histories import AnyReader, HistoryReader, joined, with_histories
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import Take
from featstore.reading.reader import Rows


@dataclass(frozen=True, kw_only=True)
class PassingRows:
    """Which rows of some row groups are delivered, if not all of them are: those that are not
    deleted and pass the filters.

    Only those that pass were read.

    Attributes:
        mask: Whether each row passes: bool (num_rows,), in the order in which rows were read.
    """

    mask: Array

    def select(self, order: Array | None) -> tuple[Array | None, Array]:
        """The rows that pass, in the order of delivery.

        Args:
            order: The order in which the rows are delivered; None is that in which they were read.

        Returns:
            Their indices among the rows that were read (None: all of them, as they were read), and
            their positions in `order`.
        """
        if order is None:
            return None, np.flatnonzero(self.mask)
        places = np.flatnonzero(self.mask[order])
        return (np.cumsum(self.mask) - 1)[order[places]], places


Filtered = tuple[Rows, PassingRows | None]


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
        deleted: The rows of the data file that are deleted, ascending: int64 (num_deleted,); None:
            it has no row mask.
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
        deleted: Array | None = None,
        num_threads: int | None = None,
        most_room_bytes: int | None = None,
        take: Take | None = None,
    ) -> None:
        self._file, self._request, self._partition = file, request, partition
        self._counts, self._stats, self._deleted = stats.counts, stats, deleted
        self._filter: AnyReader | None = None
        first, rest = request.reads(is_decided=partition.is_decided)
        if isinstance(file, DecodedFile):
            self._filter = None if first is None else file.reader(first)
            self._rest: AnyReader = file.reader(rest)
            if histories := request.histories:
                lists = file.reader(joined([each.selection for each in histories]))
                self._rest = HistoryReader(
                    self._rest,
                    lists,
                    histories,
                    file.row_group_rows,
                    shared=request.shared,
                    counts_all=True,
                )
        else:
            reader = partial(
                aligned_reader,
                file,
                groups,
                num_threads=num_threads,
                most_room_bytes=most_room_bytes,
            )
            self._filter = None if first is None else reader(first)
            self._rest = with_histories(
                reader(rest, as_values=True, take=take),
                [file, *groups],
                request.histories,
                shared=request.shared,
                num_threads=num_threads,
                most_room_bytes=most_room_bytes,
                take=take,
            )
        self._readers = [found for found in (self._filter, self._rest) if found is not None]
        # A reader of decoded columns counts all of them, whichever it reads.
        self._sized = [self._rest] if isinstance(file, DecodedFile) else self._readers
        self._may_match = self._judged()
        self._first_rows = [*accumulate(file.row_group_rows, initial=0)]

    @property
    def parts(self) -> Parts:
        """The files that are read, each with the columns that are read from it."""
        return [*(self._filter.parts if self._filter is not None else ()), *self._rest.parts]

    @property
    def filters(self) -> bool:
        """Whether rows may be left out."""
        return self._filter is not None or self._deleted is not None

    @property
    def reorders(self) -> bool:
        """Whether it may be asked for rows in another order than that of the file. It may not be if
        they are decoded already.
        """
        return isinstance(self._file, OpenFile)

    def read(self, row_groups: range, order: Array | None = None) -> Filtered:
        """Reads the rows of the row groups that are not deleted and pass the filters.

        Args:
            row_groups: The row groups.
            order: The order in which all rows would be read: int64 (num_rows,); None: as they lie
                in the file. None unless it `reorders`.

        Returns:
            The rows, and which of all rows they are (None: all). Others are counted.
        """
        mask, tables = self._left(row_groups), list[tuple[Array, pa.Table]]()
        if self._filter is not None:
            tables, mask = self._judge(self._filter, row_groups, mask)
        elif mask is None:
            rows = self._metered(self._rest, row_groups, order)
            return self._placed(rows, row_groups, order), None
        ordered = mask if order is None else mask[order]
        if ordered.all():
            rows, chosen, found = self._metered(self._rest, row_groups, order), order, None
        else:
            chosen = mask if order is None else order[ordered]
            rows, found = self._passing(row_groups, mask, chosen), PassingRows(mask=ordered)
        if self._filter is not None:
            is_looked_at = np.concatenate(
                [np.zeros(0, bool), *(is_there for is_there, _ in tables)]
            )
            table = pa.concat_tables([self._filter.read([]).table, *(each for _, each in tables)])
            if chosen is not None:
                table = table.take(array_of((np.cumsum(is_looked_at) - 1)[chosen]))
            rows = rows.beside(table, self._filter.columns)
        return self._placed(rows, row_groups, chosen), found

    def _placed(self, rows: Rows, row_groups: range, chosen: Array | None) -> Rows:
        """The rows with their positions, if these are asked for.

        Args:
            rows: The rows.
            row_groups: Where they were read.
            chosen: Which of the rows of the row groups they are; None: all.
        """
        if self._request.own_item is None:
            return rows
        places = np.arange(rows.num_rows) if chosen is None else chosen_rows(chosen)
        return replace(rows, positions=places + self._first_rows[row_groups.start])

    def _passing(self, row_groups: range, mask: Array, chosen: Array) -> Rows:
        """Reads the chosen rows, which are those of the mask. Of row groups in which no row passes,
        nothing is read.
        """
        sizes = np.array([self._file.row_group_rows[index] for index in row_groups])
        is_read = np.array([part.any() for part in np.split(mask, np.cumsum(sizes)[:-1])])
        if is_read.all():
            return self._metered(self._rest, row_groups, chosen)
        kept = [index for index, is_kept in zip(row_groups, is_read, strict=True) if is_kept]
        if chosen is mask:
            return self._metered(self._rest, kept, mask[np.repeat(is_read, sizes)])
        before = np.repeat(np.cumsum(np.where(is_read, 0, sizes)), sizes)
        return self._metered(self._rest, kept, chosen - before[chosen])

    def _left(self, row_groups: range) -> Array | None:
        """Which rows of the row groups are not deleted: bool (num_rows,); None: all. The others are
        counted.
        """
        if self._deleted is None:
            return None
        left = rows_left(
            self._deleted, self._first_rows[row_groups.start], self._first_rows[row_groups.stop]
        )
        self._counts["rows_masked"] += (num_masked := int(np.count_nonzero(~left)))
        return left if num_masked else None

    def _judge(
        self, reader: AnyReader, row_groups: range, left: Array | None
    ) -> tuple[list[tuple[Array, pa.Table]], Array]:
        """The filters' columns of row groups, of those that can match; and which rows pass.

        Args:
            reader: Reads these columns.
            row_groups: The row groups.
            left: Which of their rows are not deleted; None: all.

        Returns:
            Of consecutive row groups, whether they can match, for each row, and their columns. And
            bool (num_rows,).
        """
        found, masks = list[tuple[Array, pa.Table]](), [np.zeros(0, bool)]
        begin = self._first_rows[row_groups.start]
        for may, run in groupby(row_groups, self._may_pass):
            indices = list(run)
            first_row, end_row = self._first_rows[indices[0]], self._first_rows[indices[-1] + 1]
            num_rows = end_row - first_row
            is_left = np.ones(num_rows, bool)
            if left is not None:
                is_left = left[first_row - begin : end_row - begin]
            if not may:
                self._counts["row_groups_pruned"] += len(indices)
                self._counts["rows_filtered"] += int(np.count_nonzero(is_left))
                masks.append(np.zeros(num_rows, bool))
                found.append((np.zeros(num_rows, bool), reader.read([]).table))
                continue
            rows = self._metered(reader, indices)
            mask = passing(rows, first_row, self._request, self._partition, self._counts, is_left)
            masks.append(mask)
            found.append((np.ones(num_rows, bool), rows.table))
            ends = np.cumsum([self._file.row_group_rows[index] for index in indices])
            of_groups = np.split(mask, ends[:-1])
            self._counts["row_groups_skipped"] += sum(not each.any() for each in of_groups)
        return found, np.concatenate(masks)

    def _may_pass(self, index: int) -> bool:
        """Whether a row group can match by its statistics."""
        return self._may_match is None or bool(self._may_match[index])

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """A row group in slices of at most `num_rows` rows; None if it can only be read at once."""
        slices = None if self.filters else self._rest.slices(row_group, num_rows)
        if slices is None or self._request.own_item is None:
            return slices
        return self._placed_slices(slices, self._first_rows[row_group])

    def _placed_slices(self, slices: Iterator[Rows], row: int) -> Iterator[Rows]:
        for rows in slices:
            row += rows.num_rows
            yield replace(rows, positions=np.arange(row - rows.num_rows, row))
            del rows  # Frees its memory before the next slice is decoded.

    def size_bytes(self, row_groups: range) -> int:
        """The memory that the decoded columns of these row groups take."""
        return sum(reader.size_bytes(row_groups) for reader in self._sized)

    def room_bytes(self, row_groups: range, *, in_order: bool = False) -> int:
        """The working memory of decoding these row groups, beyond the decoded columns."""
        in_order = (in_order and self.reorders) or self.filters
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
        self, reader: AnyReader, row_groups: Sequence[int], chosen: Array | None = None
    ) -> Rows:
        """Reads, and counts bytes and seconds by column.

        The columns of a row group are decoded in parallel, so the time of a read is divided among
        them in proportion to their uncompressed bytes, as `decode_s`. What a slot's conversion
        takes is measured by the thread that does it (decode.py), as `assemble_s`.
        """
        started = time.perf_counter()
        rows = reader.read(row_groups, chosen)
        if not row_groups:
            return rows
        taken_s, sizes = time.perf_counter() - started, dict[str, int]()
        for file, columns in reader.parts:
            names, places = columns.leaves_read
            chunks = file.footer.chunks_of(row_groups, places)
            stored, raw = (
                of.sum(axis=0).tolist() for of in (chunks.stored_bytes, chunks.raw_bytes)
            )
            for name, stored_bytes, raw_bytes in zip(names, stored, raw, strict=True):
                self._stats.column_bytes[name] += stored_bytes
                sizes[name] = sizes.get(name, 0) + raw_bytes
        total = sum(sizes.values()) or 1
        for name, size in sizes.items():
            self._stats.column_decode_s[name] += taken_s * size / total
        return rows


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
