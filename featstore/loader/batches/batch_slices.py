"""Slices blocks into batches of an exact number of rows, or of a capped number of values, each with
its progress. Blocks in the file's order are first divided where batches end.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.blocks import Block, BlockColumns, ColumnDemand, groups_of_slices
from featstore.loader.batches.progress import Progress, Segment
from featstore.reading.buffers import Array
from featstore.tensors.batch import Batch
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.gathering import joined
from featstore.tensors.packed import UnpackedColumns


@dataclass(slots=True, eq=False)
class BatchSlice:
    """The rows of one batch as slices of blocks, and what is delivered with it. Without blocks it
    is progress without a batch.

    Made by `slice_batches`, in the consumer's thread or in that of the transform. Consumed by the
    hand-over, which takes `batch()` and `progress` and drops it, as it keeps the blocks alive. Not
    frozen, for the same reason as `Block`, but not changed either.

    Attributes:
        blocks: The slices in order; several if the batch straddles blocks.
        progress: What is delivered with the batch.
        pool: Memory for columns that have to be joined.
        made: The batch, if a transform has made it.
        num_values: The values that its cap counts; 0 without a cap.
    """

    blocks: tuple[Block, ...]
    progress: Progress
    pool: BufferPool | None = None
    made: Batch | None = None
    num_values: int = 0

    def batch(self) -> Batch:
        """The batch, with views of the blocks as columns. Not for a slice without blocks."""
        if self.made is not None:
            return self.made
        columns = BlockColumns(self.blocks, self.pool or BufferPool())
        num_rows = sum(map(len, self.blocks))
        return Batch(columns, num_rows=num_rows, extras=_extras(self.blocks))


def _extras(blocks: tuple[Block, ...]) -> pa.Table:
    if not blocks[0].extras.num_columns:
        return blocks[0].extras
    extras = [block.extras.slice(block.begin, len(block)) for block in blocks]
    return extras[0] if len(extras) == 1 else pa.concat_tables(extras)


def slice_batches(
    blocks: Iterable[Block],
    batch_size: int,
    *,
    drop_last: bool,
    reserve: Callable[[Block], Mapping[int, int]] = lambda _: {},
    pool: BufferPool | None = None,
    cap: BatchCap | None = None,
) -> Iterator[BatchSlice]:
    """Slices the blocks, in their order, into batches of `batch_size` rows, or of fewer where the
    next row would exceed the cap.

    A block is dropped once its last row is sliced off.

    Args:
        blocks: The blocks.
        batch_size: Rows of each batch but the last.
        drop_last: Whether a last batch is left out that ended for lack of rows.
        reserve: Called with each block of mixed rows, of at most `batch_size` rows, with what a
            batch leaves of it for the next one, and with each slice of another block, before it is
            used: other workers can then not take its rows. Gives the `limits`, as of
            `Block.within`, of sources of which others have taken rows. These are left out.
        pool: Memory for offsets and for batches that are joined; None: its own.
        cap: How many values a batch may have.

    Raises:
        ConfigError: A row alone exceeds the cap; after the batches of the rows before it.
    """
    begun = _Begun(pool := pool or BufferPool(), cap)
    for block in blocks:
        if block.draws is not None and (limits := reserve(block)):
            block = block.within(limits, pool)
        for part in _parts(block, batch_size, (begun.num_rows, begun.num_values), pool, cap):
            if cap is not None and begun.num_values + cap.num_values(part) > cap.max_values:
                if begun.slices:
                    yield begun.taken()
                cap.require_within(part)
            is_reserved = part.draws is not None and part.begin == block.begin
            limits = {} if is_reserved else reserve(part)
            part = part.within(limits, pool) if limits else part
            begun.add(part)
            if begun.num_rows == batch_size:
                yield begun.taken()
            is_ended = bool(limits) and part.draws is None
            del part
            if is_ended:
                break  # What follows in the block is beyond the limit, too.
        del block  # Frees its memory before the next block is waited for.
    if drop_last:
        yield BatchSlice((), Progress(tuple(begun.segments), begun.num_rows, is_batch=False))
    elif begun.segments:
        yield begun.taken()


class _Begun:
    """The batch that is being made: slices of blocks, and what is delivered with them."""

    def __init__(self, pool: BufferPool, cap: BatchCap | None) -> None:
        self._pool, self._cap = pool, cap
        self._clear()

    def _clear(self) -> None:
        self.slices, self.segments = list[Block](), list[Segment]()
        self.num_rows = self.num_values = 0

    def add(self, part: Block) -> None:
        """Adds the rows of a slice."""
        self.slices += [part] if len(part) else []
        self.segments += part.segments
        self.num_rows += len(part)
        self.num_values += 0 if self._cap is None else self._cap.num_values(part)

    def taken(self) -> BatchSlice:
        """The batch, or without rows the progress alone. The next one begins without either."""
        progress = Progress(tuple(self.segments), is_batch=bool(self.slices))
        found = BatchSlice(tuple(self.slices), progress, self._pool, None, self.num_values)
        self._clear()
        return found


def _parts(
    block: Block, batch_size: int, begun: tuple[int, int], pool: BufferPool, cap: BatchCap | None
) -> Iterator[Block]:
    """The block's rows in slices, each of one batch; the first of the batch that has begun, with
    these rows and values, if a row fits. An empty block gives one empty slice.
    """
    first, end, num_begun = block.begin, block.end, begun[0]
    if first == end or (
        block.packed is not None and cap is None and end - first <= batch_size - num_begun
    ):
        yield block.slice(first, end)  # Gathered for this batch, or for a part of it.
        return
    ends = _batch_ends(block, batch_size, begun, cap)
    if num_begun:
        first = int(ends[0]) if len(ends) else end
        ends = ends[1:]
        if block.begin < first:
            yield block.slice(block.begin, first)
    ahead = block.ahead if first == block.begin else None
    groups = ahead or groups_of_slices(block, np.concatenate([[first], ends]), pool)
    while groups:
        group = groups.popleft()
        for number, (begin, first) in enumerate(group.rows()):
            yield block.slice(begin, first, group, number)
        del group  # Its tensors are free once the last batch is.
    if first < end:
        yield block.slice(first, end)


def _batch_ends(
    block: Block, batch_size: int, begun: tuple[int, int], cap: BatchCap | None
) -> Array:
    """As `BatchCap.batch_ends`, of batches of rows where there is no cap."""
    if cap is not None:
        return cap.batch_ends(block, batch_size, begun)
    return np.arange(block.begin + batch_size - begun[0], block.end + 1, batch_size)


class BatchAligner:
    """Divides blocks so that each begins and ends where a batch does. A batch that straddles blocks
    becomes one of its own. So whatever is done for each column is done here, once the consumer asks
    for columns, and not in its thread. For one thread.

    Rows that do not fill a batch wait for those of the next block. If rows of a lost claim are left
    out later, batches end elsewhere; the consumer's thread then makes them itself.

    Args:
        batch_size: Rows of a batch.
        pool: Memory for offsets and for batches that straddle blocks.
        demand: Whether tensors are made here.
        cap: How many values a batch may have. A row above it is a batch of its own here.
    """

    def __init__(
        self, batch_size: int, pool: BufferPool, demand: ColumnDemand, cap: BatchCap | None = None
    ) -> None:
        self._batch_size, self._pool, self._demand, self._cap = batch_size, pool, demand, cap
        self._waiting: list[Block] = []
        self._begun = 0, 0  # rows and values of all of them

    def add(self, block: Block) -> list[Block]:
        """The whole batches of the rows that wait and of this block, which are not mixed: one block
        for a batch that straddles, and one for all others.
        """
        begin, ends = block.begin, _batch_ends(block, self._batch_size, self._begun, self._cap)
        if not len(ends) and (self._waiting or len(block)):
            self._wait(block)
            return []
        found = []
        if self._waiting:
            begin, ends = int(ends[0]), ends[1:]
            own = [block.slice(block.begin, begin)] if block.begin < begin else []
            found.append(self._straddling([*self._waiting, *own]))
        end = int(ends[-1]) if len(ends) else begin
        if begin < end or not found:
            found.append(self._whole(block.until(end), np.concatenate([[begin], ends])))
        self._waiting, self._begun = [], (0, 0)
        if end < block.end:
            self._wait(block.slice(end, block.end))
        return found

    def rest(self) -> list[Block]:
        """The rows that wait, once no more come: a last, shorter batch."""
        rest, self._waiting, self._begun = self._waiting, [], (0, 0)
        return [self._straddling(rest)] if rest else []

    def _wait(self, block: Block) -> None:
        self._waiting.append(block)
        num_rows, num_values = self._begun
        num_values += 0 if self._cap is None else self._cap.num_values(block)
        self._begun = num_rows + len(block), num_values

    def _whole(self, block: Block, cuts: Array) -> Block:
        """The block from its first cut on, with batches between the cuts."""
        found = block.slice(int(cuts[0]), block.end)
        found.demand = self._demand
        if self._demand.is_seen:
            groups = groups_of_slices(found, cuts, self._pool)
            for group in groups:
                group.made()
            found.ahead = groups
        return found

    def _straddling(self, parts: Sequence[Block]) -> Block:
        """The rows of all parts in one block."""
        columns = {key: [part.get(key) for part in parts] for key in parts[0].keys}
        found = UnpackedColumns(joined(columns, self._pool))
        if self._demand.is_seen:
            found.made()
        num_rows = [len(part) for part in parts]
        return Block.of(
            found,
            tuple(
                source.between(part.begin, part.end, part.num_rows)
                for part in parts
                for source in part.sources
            ),
            num_rows=sum(num_rows),
            extras=pa.concat_tables(part.extras.slice(part.begin, len(part)) for part in parts)
            if parts[0].extras.num_columns
            else parts[0].extras,
            draws=np.repeat(np.arange(len(parts), dtype=np.int32), num_rows),
            demand=self._demand,
        )
