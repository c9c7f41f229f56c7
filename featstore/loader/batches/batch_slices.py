"""Slices blocks into batches of an exact number of rows, or of a capped number of values, each with
its progress. Blocks in the file's order are first divided where batches of rows end.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featstore.loader.batches.batch_cap import BatchCap
from featstore.loader.batches.blocks import Block, BlockColumns, ColumnDemand, groups_of_slices
from featstore.loader.batches.progress import Progress, Segment
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
        ConfigError: A row alone exceeds the cap.
    """
    slices: list[Block] = []
    segments: list[Segment] = []
    missing, num_values, pool = batch_size, 0, pool or BufferPool()
    for block in blocks:
        if block.draws is not None and (limits := reserve(block)):
            block = block.within(limits, pool)
        parts = (
            _parts(block, missing, batch_size, pool)
            if cap is None
            else cap.parts(block, batch_size, missing, cap.max_values - num_values)
        )
        for part in parts:
            if cap is not None and num_values + cap.num_values(part) > cap.max_values:
                yield BatchSlice(tuple(slices), Progress(tuple(segments)), pool, None, num_values)
                slices, segments, missing, num_values = [], [], batch_size, 0
            is_reserved = part.draws is not None and part.begin == block.begin
            limits = {} if is_reserved else reserve(part)
            if limits:
                part = part.within(limits, pool)
            slices += [part] if len(part) else []
            segments += part.segments
            missing -= len(part)
            num_values += 0 if cap is None else cap.num_values(part)
            if not missing:
                yield BatchSlice(tuple(slices), Progress(tuple(segments)), pool, None, num_values)
                slices, segments, missing, num_values = [], [], batch_size, 0
            is_ended = bool(limits) and part.draws is None
            del part
            if is_ended:
                break  # What follows in the block is beyond the limit, too.
        del block  # Frees its memory before the next block is waited for.
    if drop_last:
        num_dropped_rows = batch_size - missing
        yield BatchSlice((), Progress(tuple(segments), num_dropped_rows, is_batch=False))
    elif segments:
        progress = Progress(tuple(segments), is_batch=bool(slices))
        yield BatchSlice(tuple(slices), progress, pool, None, num_values)


def _parts(block: Block, missing: int, batch_size: int, pool: BufferPool) -> Iterator[Block]:
    """The block's rows in slices, the first of which fills a batch that lacks `missing` rows. An
    empty block gives one empty slice.
    """
    first, end = block.begin, block.end
    if end - first <= missing and block.packed is not None:
        yield block  # Gathered for this batch, or for a part of it.
        return
    if missing < batch_size and first < end:
        first = min(first + missing, end)
        yield block.slice(block.begin, first)
    ahead = block.ahead if missing == batch_size else None
    groups = ahead or groups_of_slices(block, first, batch_size, pool)
    while groups:
        group = groups.popleft()
        for number in range(len(group)):
            yield block.slice(first, first + batch_size, group, number)
            first += batch_size
        del group  # Its tensors are free once the last batch is.
    if first < end or block.begin == end:
        yield block.slice(first, end)


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
    """

    def __init__(self, batch_size: int, pool: BufferPool, demand: ColumnDemand) -> None:
        self._batch_size, self._pool, self._demand = batch_size, pool, demand
        self._waiting: list[Block] = []
        self._num_waiting = 0  # rows of all of them

    def add(self, block: Block) -> list[Block]:
        """The whole batches of the rows that wait and of this block, which are not mixed: one block
        for a batch that straddles, and one for all others.
        """
        begin, missing = block.begin, self._batch_size - self._num_waiting
        if len(block) < missing and (self._waiting or len(block)):
            self._waiting.append(block)
            self._num_waiting += len(block)
            return []
        found = []
        if self._waiting:
            begin += missing
            found.append(self._straddling([*self._waiting, block.slice(block.begin, begin)]))
        end = block.end - (block.end - begin) % self._batch_size
        if begin < end or not found:
            found.append(self._whole(block.until(end), begin))
        self._waiting = [block.slice(end, block.end)] if end < block.end else []
        self._num_waiting = block.end - end
        return found

    def rest(self) -> list[Block]:
        """The rows that wait, once no more come: a last, shorter batch."""
        rest, self._waiting, self._num_waiting = self._waiting, [], 0
        return [self._straddling(rest)] if rest else []

    def _whole(self, block: Block, begin: int) -> Block:
        """The block from `begin` on."""
        found = block.slice(begin, block.end)
        found.demand = self._demand
        if self._demand.is_seen:
            groups = groups_of_slices(found, begin, self._batch_size, self._pool)
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
