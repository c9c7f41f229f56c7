"""Rows of a mixture in the order of delivery, before they are gathered: where they lie, and from
which splits they come.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from featstore.loader.batches.progress import BlockSource
from featstore.loader.request.decode import NO_EXTRAS
from featstore.reading.buffers import Array
from featstore.reading.gather import (
    ColumnBuffers,
    ColumnKind,
    Places,
    ShareRows,
    drawn_places,
    sources_of_parts,
)
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.gathering import gather_batches
from featstore.tensors.packed import PackedColumns, array_of, tensor_of

_NO_PLACES, _NO_LENGTHS = np.zeros(0, np.uint32), np.zeros(0, np.int64)


@dataclass(eq=False)
class DrawnRows:
    """Rows that are drawn and not yet in a block, in the order of delivery.

    Attributes:
        sources: Where they come from: rows of streams, each of which is drawn.
        draws: The source of each: int32 (num_drawn,), -1 for one that is left out with its split.
            In parts, as they were drawn: where few rows pass the filters, a batch waits for
            thousands of mixtures, and each would copy those before it.
        passes: Which of them are delivered, in the same parts: bool (num_drawn,).
        ended: Claims that end without rows, each with the place of the row before its end.
        places: Where those lie that are delivered, as of `Places.rows`: uint32 (num_delivered,),
            written by `place`.
        row_bits: As of `Places`.
        pieces: The columns of each piece, all of the same kinds.
        lengths: The lengths of the lists that a cap counts, of each piece; none without a cap.
        piece_rows: How many rows each piece has.
        extras: The extra columns, of as many rows in all.
        ascends: Whether the rows of each piece ascend.
    """

    sources: list[BlockSource] = field(default_factory=list)
    draws: list[Array] = field(default_factory=list)
    passes: list[Array] = field(default_factory=list)
    ended: list[tuple[BlockSource, int]] = field(default_factory=list)
    places: Array = field(default_factory=lambda: _NO_PLACES)
    row_bits: int = 0
    pieces: list[ColumnBuffers] = field(default_factory=list)
    lengths: list[Array] = field(default_factory=list)
    piece_rows: list[int] = field(default_factory=list)
    extras: list[pa.Table] = field(default_factory=list)
    ascends: bool = True

    def add(
        self,
        packed: PackedColumns,
        kinds: tuple[ColumnKind, ...],
        num_rows: int,
        extras: pa.Table,
        lengths: Array,
    ) -> None:
        """Adds a piece, all rows of which are delivered after the others, in their order."""
        buffers = tuple(map(array_of, packed.buffers))
        self.pieces.append(ColumnBuffers(kinds, buffers, packed.places.numbers, num_rows))
        self.piece_rows.append(num_rows)
        self.extras.append(extras)
        self.lengths.append(lengths)

    def columns(
        self,
        cuts: Sequence[int],
        pool: BufferPool,
        scratch: BufferPool,
        begin: int = 0,
        num_threads: int = 1,
    ) -> list[PackedColumns]:
        """The columns of the rows that are delivered, from the row `begin` of them on.

        Args:
            cuts: Where batches begin and end, counted from `begin`; the first is 0.
            pool: Memory for the batches.
            scratch: Memory that is free again after the call.
            begin: The first row.
            num_threads: In how many threads they are gathered.
        """
        places = Places(self.places[begin:], self.row_bits, np.array(cuts), self.ascends)
        return gather_batches(self.pieces, places, pool, scratch, num_threads)

    def extra_columns(self, begin: int = 0) -> pa.Table:
        """The extra columns of the same rows."""
        if not self.extras or not self.extras[0].num_columns:
            return NO_EXTRAS
        return pa.concat_tables(self.extras).take(pa.array(self._rows(self.places[begin:])))

    def delivered_lengths(self) -> Array:
        """The lengths of the lists that a cap counts, of the rows that are delivered; none without
        a cap.
        """
        if not any(map(len, self.lengths)):
            return _NO_LENGTHS
        return np.concatenate(self.lengths)[self._rows(self.places)]

    def _rows(self, places: Array) -> Array:
        """The rows in all pieces, numbered through them."""
        firsts = np.cumsum([0, *self.piece_rows[:-1]])
        rows: Array = firsts[places >> self.row_bits] + (places & ((1 << self.row_bits) - 1))
        return rows

    def place(self, num_waiting: int, draws: Array, shares: tuple[ShareRows, ...]) -> None:
        """Adds rows that are drawn, after those that wait.

        Args:
            num_waiting: How many pieces have those that wait.
            draws: The share of each: uint16 (num_drawn,).
            shares: The shares, as of `kernels.place_rows`; their pieces and sources are there.

        Raises:
            OverflowError: As of `require_numbered`.
        """
        self.places, self.row_bits, sources, passes = drawn_places(
            draws, shares, self.piece_rows, num_waiting
        )
        self.draws.append(sources)
        self.passes.append(passes)

    @property
    def num_drawn(self) -> int:
        return sum(map(len, self.draws))

    def parts(self, cuts: Sequence[int]) -> "Iterator[DrawnRows]":
        """The rows that are drawn in parts, without their columns. To be called once, since it
        numbers the sources of `draws` anew.

        Args:
            cuts: Where the parts end among the rows that are delivered; the last one with them.
                Rows that are left out come with the next one that is delivered.
        """
        ends, draws, passes = np.array(cuts), _joined(self.draws), _joined(self.passes)
        is_whole = bool(passes.all())
        if not is_whole:
            ends = np.flatnonzero(passes)[ends - 1] + 1
        ends[-1] = len(draws)
        found, counts, places = sources_of_parts(
            draws, None if is_whole else passes, ends, len(self.sources)
        )
        rows, numbers = [source.first_row for source in self.sources], iter(found)
        first = first_place = 0
        for end, count in zip(ends.tolist(), counts, strict=True):
            part = DrawnRows([], [draws[first:end]], [passes[first:end]])
            for number, num_rows, num_delivered in islice(numbers, count):
                source, row = self.sources[number], rows[number]
                rows[number], of_source = row + num_rows, None
                is_last = source.is_last and rows[number] == source.end_row
                if num_delivered < num_rows:
                    of_source = places[first_place : first_place + num_delivered]
                first_place += num_delivered
                part.sources.append(
                    BlockSource(source.claim, row, rows[number], is_last, of_source)
                )
            if self.ended:
                part.ended = [(one, at - first) for one, at in self.ended if first <= at < end]
            first = end
            yield part

    def delivered(self) -> tuple[tuple[BlockSource, ...], Array | None]:
        """The sources of a block of those that are delivered and, if there are several, the source
        of each row.
        """
        found = (*self.sources, *(source for source, _ in self.ended))
        if len(found) <= 1:
            return found, None
        [draws], [passes] = self.draws, self.passes
        return found, draws if passes.all() else draws[passes]


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def copied(packed: PackedColumns, pool: BufferPool) -> PackedColumns:
    """The columns in memory of the pool."""
    buffers = []
    for buffer in map(array_of, packed.buffers):
        memory = pool.take(buffer.nbytes)[: buffer.nbytes].view(buffer.dtype)
        memory[:] = buffer
        buffers.append(tensor_of(memory))
    return replace(packed, buffers=tuple(buffers))
