"""Blocks of decoded rows in the order of delivery, and tensors of batches as views of them."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from featstore.loader.batches.progress import BlockSource, Segment
from featstore.loader.request.decode import WindowColumns, size_bytes_of
from featstore.reading.buffers import Array, BatchValues, Ragged, SharedLists
from featstore.reading.gather import buffers_of, places_of, rebased
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import Key, Keys
from featstore.tensors.columns import Column, Jagged, SharedJagged
from featstore.tensors.gathering import gather_batches, joined
from featstore.tensors.packed import PackedColumns, UnpackedColumns, pack, split, tensor_of, untrack

# The tensors of up to 32 batches are made by one call, as long as their offsets, which each of them
# keeps alive, take at most 16 MiB. More batches per call cost less each, but their offsets are no
# longer in the CPU's cache when they are used.
_AT_ONCE, _AT_ONCE_BYTES = 32, 16 << 20

Tensors = Mapping[Key, Column]


@dataclass(slots=True, eq=False)
class ColumnDemand:
    """Whether the consumer asks for columns of batches in this process, as a loop does that trains
    on the CPU, or does not, as one that moves whole batches to a device.

    Attributes:
        is_seen: Set by the consumer's thread when it asks for a column. The assembling thread makes
            the tensors of batches from then on.
    """

    is_seen: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """Rows `begin` to `end` of decoded columns, in the order of delivery.

    Made by the `Assembler` in its thread. Consumed by the consumer's thread, which slices it and
    drops it when the last row is sliced off. A slice is a block that shares the memory, so the
    memory lives as long as any batch with views of it. The class is not frozen, since that would
    double the time of slicing, but a block is not changed once it was handed on.

    Attributes:
        columns: All decoded columns, `num_rows` rows each, or more.
        keys: Their roles and names, one object for all batches of the block.
        extras: The extra columns, as many rows.
        sources: The splits to which the rows belong.
        draws: If their rows are mixed, the source of each row: int32 (num_rows,); otherwise None,
            and there is one source.
        num_rows: How many rows of the columns the sources cover.
        begin: The first row of this block; rows before it were delivered earlier.
        end: The row after its last one.
        held_bytes: What the consumer gives back to the memory budget when it drops the block.
        demand: Where it is noted that columns are asked for.
        ahead: The batches from `begin` on, whose tensors are made. The consumer takes each group
            out, so that it is free after its last batch.
        slices: Makes the tensors of this and other slices of the block together.
        number: The position of this block among `slices`.
    """

    columns: Mapping[Key, BatchValues]
    keys: Keys
    extras: pa.Table
    sources: tuple[BlockSource, ...]
    num_rows: int
    begin: int
    end: int
    draws: Array | None = None
    held_bytes: int = 0
    demand: ColumnDemand = field(default_factory=ColumnDemand)
    ahead: "deque[Slices] | None" = None
    slices: "Slices | None" = None
    number: int = 0

    @classmethod
    def of(
        cls,
        columns: Mapping[Key, BatchValues],
        sources: tuple[BlockSource, ...],
        *,
        num_rows: int,
        extras: pa.Table,
        begin: int = 0,
        draws: Array | None = None,
        demand: ColumnDemand | None = None,
    ) -> "Block":
        """A block of the columns' rows from `begin` on."""
        return cls(
            columns=columns,
            keys=Keys(columns),
            extras=extras,
            sources=sources,
            num_rows=num_rows,
            begin=begin,
            end=num_rows,
            draws=draws,
            demand=demand or ColumnDemand(),
        )

    def __len__(self) -> int:
        return self.end - self.begin

    def slice(
        self, begin: int, end: int, slices: "Slices | None" = None, number: int = 0
    ) -> "Block":
        """Rows `begin` to `end` of the columns."""
        return Block(
            columns=self.columns,
            keys=self.keys,
            extras=self.extras,
            sources=self.sources,
            num_rows=self.num_rows,
            begin=begin,
            end=end,
            draws=self.draws,
            demand=self.demand,
            slices=slices,
            number=number,
        )

    def until(self, end: int) -> "Block":
        """The block without its rows from `end` on, which its source no longer covers. Not for
        mixed rows.
        """
        # `slice` keeps what its sources cover, since the rest of the block may follow. Here nothing
        # does, so the sources end with the rows, too: the rest was not read from them.
        sources = tuple(source.between(0, end, self.num_rows) for source in self.sources)
        found = self.slice(self.begin, end)
        found.sources, found.num_rows = sources, end
        return found

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What is delivered once the block is."""
        if self.draws is None or len(self) == self.num_rows:
            # With the same number on both sides a source is delivered to its end.
            return tuple([source.segment(self.end, self.num_rows) for source in self.sources])
        before = self._led_before()
        segments = [
            source.segment(end, num_rows)
            for source, first, end, num_rows in self._rows_of_sources()
            if first < end
            or (
                self.end == self.num_rows
                and not num_rows
                and source.end_row >= before.get(source.claim.key, -1)
            )
        ]
        # A source of which nothing is delivered comes at the end, unless what follows it has come.
        last = {segment.claim.key: segment for segment in sorted(segments, key=lambda s: s.through)}
        return tuple(last.values())

    def num_rows_beyond(self, limits: Mapping[int, int]) -> int:
        """How many rows, from `begin` to the end of all rows, lie beyond where their sources end.

        Args:
            limits: As of `within`.
        """
        num_rows = 0
        for number, row in limits.items():
            cut = self.sources[number].row_at(row)
            if self.draws is None:
                num_rows += max(0, self.num_rows - max(self.begin, cut))
            else:
                beyond = np.flatnonzero(self.draws == number)[cut:]
                num_rows += int((beyond >= self.begin).sum())
        return num_rows

    def places(self) -> list[tuple[BlockSource, int, int]]:
        """Each source of which the block has rows, with the rows of its stream that it covers: the
        first, and the row after the last one.
        """
        return [
            (source, source.through(first, num_rows), source.through(end, num_rows))
            for source, first, end, num_rows in self._rows_of_sources()
            if first < end
        ]

    def within(self, limits: Mapping[int, int], pool: BufferPool) -> "Block":
        """The rows of this block that lie before the rows of their streams at which some sources
        end, as a block of their own: these sources are complete with it.

        Args:
            limits: For places in `sources`, the row of the stream at which the source ends; -1 for
                one that is left out.
            pool: Memory for the rows, if they are mixed.
        """
        if self.draws is None:
            ends = [self.sources[number].row_at(limit) for number, limit in limits.items()]
            found = self.until(max(self.begin, min([self.end, *ends])))
            found.sources = tuple(
                part
                for number, source in enumerate(found.sources)
                for part in _ended(source, source.after(self.begin), limits.get(number))
            )
            return found
        kept, sources = np.zeros(self.num_rows, bool), list[BlockSource]()
        numbers = np.zeros(len(self.sources), np.int32)
        before = self._led_before()
        for number, (source, first, end, num_rows) in enumerate(self._rows_of_sources()):
            led = before.get(source.claim.key, -1)
            if first == num_rows and source.end_row < led + (first > 0):
                continue  # It came with an earlier slice, or what follows it has.
            limit = limits.get(number)
            last = end if limit is None else min(end, source.row_at(limit))
            kept[np.flatnonzero(self.draws == number)[first:last]] = True
            numbers[number] = len(sources)
            part = source.between(first, max(first, last), num_rows)
            sources += _ended(part, part.first_row, limit)
        rows = np.flatnonzero(kept)
        pieces = [buffers_of(self.columns, self.num_rows)]
        places = places_of(rows, [self.num_rows], np.array([0, len(rows)]))
        [packed] = gather_batches(pieces, places, pool, pool)
        return Block.of(
            UnpackedColumns(packed),
            tuple(sources),
            num_rows=len(rows),
            extras=self.extras.take(pa.array(rows)) if self.extras.num_columns else self.extras,
            draws=numbers[self.draws[rows]],
        )

    def _led_before(self) -> dict[tuple[int, int, int], int]:
        """By claim, the row of its stream to which earlier slices of the block have led it."""
        led = dict[tuple[int, int, int], int]()
        if self.begin:
            for source, first, _, num_rows in self._rows_of_sources():
                if first:
                    key = source.claim.key
                    led[key] = max(led.get(key, -1), source.through(first, num_rows))
        return led

    def _rows_of_sources(self) -> Iterator[tuple[BlockSource, int, int, int]]:
        """Each source with how many of its rows come before this block, how many before its end,
        and how many there are in all `num_rows`.
        """
        if self.draws is None:
            for source in self.sources:
                yield source, self.begin, self.end, self.num_rows
            return
        for number, source in enumerate(self.sources):
            found = np.flatnonzero(self.draws == number)
            first, end = np.searchsorted(found, [self.begin, self.end]).tolist()
            yield source, first, end, len(found)

    @property
    def packed(self) -> PackedColumns | None:
        """The columns, if they lie in one buffer per dtype."""
        return self.columns.packed if isinstance(self.columns, UnpackedColumns) else None

    @property
    def whole(self) -> PackedColumns | None:
        """The packed columns, if this block has all of their rows; otherwise None."""
        packed = self.packed
        return packed if packed and (self.begin, self.end) == (0, packed.num_rows) else None

    @property
    def num_jagged(self) -> int:
        """How many columns have offsets that still have to be rebased for each batch."""
        if self.packed is not None:
            return 0
        if isinstance(self.columns, WindowColumns):
            return self.columns.num_lists
        return sum(isinstance(values, Ragged) for values in self.columns.values())

    @property
    def size_bytes(self) -> int:
        """The memory that the columns keep alive, Arrow's buffers and offsets that are made
        included.
        """
        if self.packed is not None:
            size_bytes = sum(buffer.nbytes for buffer in self.packed.buffers)
        elif isinstance(self.columns, WindowColumns):
            size_bytes = self.columns.size_bytes
        else:
            size_bytes = sum(map(size_bytes_of, self.columns.values()))
        size_bytes += sum(group.offsets_bytes for group in self.ahead or ())
        return size_bytes + int(self.extras.nbytes)

    def get(self, key: Key) -> BatchValues:
        """A column's rows of this block. Offsets are those of the whole column, so the first one
        may be above 0.
        """
        values = self.columns[key]
        if isinstance(values, SharedLists):
            return SharedLists(values.values, values.ranges[self.begin : self.end])
        if not isinstance(values, Ragged):
            return values[self.begin : self.end]
        offsets = values.offsets[self.begin : self.end + 1]
        return Ragged(values.values[offsets[0] : offsets[-1]], offsets)

    def tensors(self, pool: BufferPool) -> Tensors:
        """The columns as tensors: views, except for offsets, which are in memory of the pool."""
        if self.whole is not None and isinstance(self.columns, UnpackedColumns):
            return self.columns.made()
        if self.slices is None:
            return Slices(self, np.array([self.begin, self.end]), pool).made()[0]
        return self.slices.made()[self.number]


class Slices:
    """Consecutive slices of a block.

    The tensors of all of them are made when those of one are asked for: one call per column instead
    of one per column and slice.

    Args:
        block: The block.
        cuts: Where they begin and end: int64 (num_slices + 1,).
        pool: Memory for offsets.
    """

    __slots__ = ("_columns", "_cuts", "_pool", "_tensors")

    def __init__(self, block: Block, cuts: Array, pool: BufferPool) -> None:
        self._columns, self._cuts, self._pool = block.columns, cuts, pool
        self._tensors: list[Tensors] | None = None

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def rows(self) -> Iterator[tuple[int, int]]:
        """The first row of each slice, and the row after its last one."""
        return pairwise(self._cuts.tolist())

    def made(self) -> list[Tensors]:
        """The columns of all slices, made once."""
        if self._tensors is None:
            # The first slice may be asked for in inference mode, while the training loop needs
            # gradients through another one.
            with torch.inference_mode(False):
                self._tensors = self._make()
        return self._tensors

    @property
    def offsets_bytes(self) -> int:
        """The memory of all offsets."""
        num_jagged = sum(isinstance(values, Ragged) for values in self._columns.values())
        return 8 * num_jagged * self._num_offsets

    @property
    def _num_offsets(self) -> int:
        """How many offsets a list has in all slices."""
        return int(self._cuts[-1] - self._cuts[0]) + len(self)

    def _make(self) -> list[Tensors]:
        columns, count = self._columns, len(self)
        first, end, sizes = int(self._cuts[0]), int(self._cuts[-1]), np.diff(self._cuts).tolist()
        jagged = {key: values for key, values in columns.items() if isinstance(values, Ragged)}
        offsets = self._offsets([values.offsets for values in jagged.values()]) if jagged else ()
        made = dict[Key, Sequence[Column]]()
        for key, values in columns.items():
            if isinstance(values, SharedLists):
                shared = tensor_of(values.values)
                ranges = split(tensor_of(values.ranges[first:end]), sizes)
                made[key] = [SharedJagged(shared, of_slice) for of_slice in ranges]
            elif not isinstance(values, Ragged):
                made[key] = split(tensor_of(values[first:end]), sizes)
        for at, (key, values) in enumerate(jagged.items()):
            of_column = offsets[at * count : (at + 1) * count]
            of_values = self._values(values)
            made[key] = columns_made = tuple(map(Jagged, of_values, of_column))
            if not of_values[0].is_floating_point():  # As their values, see packed.py.
                untrack(columns_made)
        slices = zip(*[made[key] for key in columns], strict=True)
        return [dict(zip(columns, tensors, strict=True)) for tensors in slices]

    def _values(self, jagged: Ragged) -> Sequence[torch.Tensor]:
        ends = jagged.offsets[self._cuts]
        sizes = (ends[1:] - ends[:-1]).tolist()
        values = tensor_of(jagged.values[ends[0] : ends[-1]])
        return split(values, sizes)

    def _offsets(self, columns: Sequence[Array]) -> Sequence[torch.Tensor]:
        """The offsets of each column in each slice, rebased to begin with 0."""
        size = self._num_offsets
        size_bytes = 8 * size * len(columns)
        memory = self._pool.take(size_bytes)[:size_bytes].view(np.int64)
        for at, offsets in enumerate(columns):
            rebased(offsets, self._cuts, memory[at * size : (at + 1) * size])
        sizes = (np.diff(self._cuts) + 1).tolist() * len(columns)
        return split(torch.from_numpy(memory), sizes)


def groups_of_slices(block: Block, cuts: Array, pool: BufferPool) -> deque[Slices]:
    """Whole batches of a block in groups. Until columns are asked for, the first batch is alone, so
    that a loop does not wait for the others' tensors.

    Args:
        block: The block.
        cuts: Where they begin and end: int64 (num_batches + 1,).
        pool: Memory for offsets.
    """
    count = len(cuts) - 1
    offsets_bytes = 8 * int(cuts[-1] - cuts[0]) // max(1, count) * block.num_jagged
    at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // (offsets_bytes or 1)))
    alone = min(count, int(not block.demand.is_seen))
    numbers = [*range(alone), *range(alone, count, at_once), count]
    return deque(Slices(block, cuts[number : end + 1], pool) for number, end in pairwise(numbers))


@dataclass(slots=True, eq=False)
class BlockColumns:
    """The columns of a batch: views of a block, or, if the batch straddles blocks, joined in memory
    of the pool. Not frozen, for the same reason as `Block`.
    """

    blocks: Sequence[Block]
    pool: BufferPool

    @property
    def keys(self) -> Keys:
        return self.blocks[0].keys

    def made(self) -> Tensors:
        self.blocks[0].demand.is_seen = True
        if len(self.blocks) == 1:
            return self.blocks[0].tensors(self.pool)
        return self._joined.made()

    @property
    def whole(self) -> PackedColumns | None:
        return self.blocks[0].whole if len(self.blocks) == 1 else self._joined

    def arrays(self) -> Mapping[Key, BatchValues]:
        [block] = self.blocks
        return {key: block.get(key) for key in block.keys}

    def packed(self) -> PackedColumns:
        whole = self.whole
        return pack(self) if whole is None else whole.packed()

    def moved(self, **how: Any) -> PackedColumns:
        whole = self.whole
        return (pack(self) if whole is None else whole).moved(**how)

    @property
    def _joined(self) -> PackedColumns:
        parts = {key: [block.get(key) for block in self.blocks] for key in self.keys}
        return joined(parts, self.pool)


def _ended(source: BlockSource, first: int, limit: int | None) -> list[BlockSource]:
    """The source as it is complete at a row of its stream: as it is for None, and none at all if
    it ended before `first`, where the block begins.
    """
    if limit is None:
        return [source]
    return [] if limit < first else [source._replace(end_row=limit, is_last=True)]
