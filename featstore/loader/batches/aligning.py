"""Blocks in the file's order, divided where batches end."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from featstore.loader.batches.blocks import Block, ColumnDemand, groups_of_slices
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.gathering import joined
from featstore.tensors.packed import UnpackedColumns


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

    def add(self, block: Block) -> list[Block]:
        """The whole batches of the rows that wait and of this block, which are not mixed: one block
        for a batch that straddles, and one for all others.
        """
        begin, missing = block.begin, self._batch_size - sum(map(len, self._waiting))
        if len(block) < missing and (self._waiting or len(block)):
            self._waiting.append(block)
            return []
        found = []
        if self._waiting:
            begin += missing
            found.append(self._straddling([*self._waiting, block.slice(block.begin, begin)]))
        end = block.end - (block.end - begin) % self._batch_size
        if begin < end or not found:
            found.append(self._whole(block.until(end), begin))
        self._waiting = [block.slice(end, block.end)] if end < block.end else []
        return found

    def rest(self) -> list[Block]:
        """The rows that wait, once no more come: a last, shorter batch."""
        rest, self._waiting = self._waiting, []
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
