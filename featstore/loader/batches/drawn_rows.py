"""Rows of a mixture in the order of delivery, before they are gathered: where they lie, and from
which splits they come.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from featstore.loader.batches.progress import BlockSource
from featstore.loader.request.decode import NO_EXTRAS
from featstore.reading.buffers import Array
from featstore.reading.gather import ColumnBuffers, Kind, places_of
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.gathering import gather_batches
from featstore.tensors.packed import PackedColumns, array_of, tensor_of


@dataclass(eq=False)
class DrawnRows:
    """Rows that are drawn and not yet in a block, in the order of delivery.

    Attributes:
        passes: Which of them are delivered: bool (num_drawn,).
        order: Where those lie that are delivered: their rows, numbered through all pieces, int64
            (num_delivered,).
        pieces: The columns of each piece, all of the same kinds.
        piece_rows: How many rows each piece has.
        extras: The extra columns, of as many rows in all.
        sources: Where rows come from, with their places among those that are drawn, int64
            (num_rows,). A claim that ends without rows has the place of the row before its end.
        ascends: Whether the rows of each piece ascend.
    """

    passes: Array = field(default_factory=lambda: np.ones(0, bool))
    order: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    pieces: list[ColumnBuffers] = field(default_factory=list)
    piece_rows: list[int] = field(default_factory=list)
    extras: list[pa.Table] = field(default_factory=list)
    sources: list[tuple[BlockSource, Array]] = field(default_factory=list)
    ascends: bool = True

    def add(
        self, packed: PackedColumns, kinds: tuple[Kind, ...], num_rows: int, extras: pa.Table
    ) -> None:
        """Adds a piece, all rows of which are delivered after the others, in their order."""
        rows = np.arange(num_rows) + sum(self.piece_rows)
        self.order = np.concatenate([self.order, rows])
        buffers = tuple(map(array_of, packed.buffers))
        self.pieces.append(ColumnBuffers(kinds, buffers, packed.places.numbers, num_rows))
        self.piece_rows.append(num_rows)
        self.extras.append(extras)

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
        order, ascends = self.order[begin:], self.ascends
        places = places_of(order, self.piece_rows, np.array(cuts), ascends=ascends)
        return gather_batches(self.pieces, places, pool, scratch, num_threads)

    def extra_columns(self, begin: int = 0) -> pa.Table:
        """The extra columns of the same rows."""
        if not self.extras or not self.extras[0].num_columns:
            return NO_EXTRAS
        return pa.concat_tables(self.extras).take(pa.array(self.order[begin:]))

    def sources_after(self, num_drawn: int) -> Iterator[tuple[BlockSource, Array]]:
        """What the sources cover after the first `num_drawn` rows that are drawn."""
        for source, at in self.sources:
            first = int(np.searchsorted(at, num_drawn))
            if first < len(at):
                yield source.between(first, len(at), len(at)), at[first:] - num_drawn

    def sources_of_batches(
        self, delivered: Array, cuts: Sequence[int], ends: Sequence[int]
    ) -> Iterator[tuple[tuple[BlockSource, ...], Array | None]]:
        """Of each batch, its sources and, if there are several, the source of each row.

        Args:
            delivered: The places of those that are delivered, among those that are drawn.
            cuts: Where batches begin and end, among those that are delivered.
            ends: The same among those that are drawn.
        """
        passes = None if len(delivered) == len(self.passes) else self.passes
        of_source = np.zeros(len(self.passes), np.int32)
        for number, (source, at) in enumerate(self.sources):
            if not source.is_empty:
                of_source[at] = number
        counts = [np.searchsorted(at, ends).tolist() for _, at in self.sources]
        numbers = np.zeros(len(self.sources), np.int32)
        for batch, (first, cut) in enumerate(pairwise(cuts)):
            found, num_found = [], 0
            for number, (source, at) in enumerate(self.sources):
                begin, end = counts[number][batch : batch + 2]
                if begin == end:
                    continue
                numbers[number] = num_found
                num_found += 1
                part = source.between(begin, end, len(at))
                if passes is not None and not passes[at[begin:end]].all():
                    part = part._replace(places=np.flatnonzero(passes[at[begin:end]]))
                found.append(part)
            rows = slice(first, cut) if passes is None else delivered[first:cut]
            yield tuple(found), numbers[of_source[rows]] if len(found) > 1 else None


def copied(packed: PackedColumns, pool: BufferPool) -> PackedColumns:
    """The columns in memory of the pool."""
    buffers = []
    for buffer in map(array_of, packed.buffers):
        memory = pool.take(buffer.nbytes)[: buffer.nbytes].view(buffer.dtype)
        memory[:] = buffer
        buffers.append(tensor_of(memory))
    return replace(packed, buffers=tuple(buffers))
