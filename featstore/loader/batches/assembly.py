"""From windows to blocks in the order of delivery: views of the window, or, if rows are shuffled,
rows gathered into the memory of their batches.
"""

import numpy as np
import pyarrow as pa

from featstore.loader.bad_files import Skip, is_bad_file
from featstore.loader.batches.blocks import Block, BlockSource, UnpackedColumns
from featstore.loader.batches.gathering import gather_batches
from featstore.loader.plan.request import Request
from featstore.loader.rows.decode import block_columns, block_extras
from featstore.loader.rows.split_reader import Window
from featstore.loader.stats import Stats
from featstore.reading.buffers import Array, Values
from featstore.reading.gather import places_of
from featstore.reading.reader import Rows
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_keys import Key


class Assembler:
    """Makes blocks of windows. For one thread.

    Counts rows, so that it knows where batches end and gathers shuffled rows batch by batch. If
    rows of a lost claim are left out later, batches end elsewhere; those are joined when they are
    asked for.

    Args:
        request: What is delivered.
        batch_size: Rows of a batch.
        stats: Where rows and seconds are counted.
        skip: Called for a window that cannot be converted, whose split is then left out; None: that
            is an error.
    """

    def __init__(
        self, request: Request, batch_size: int, stats: Stats, skip: Skip | None = None
    ) -> None:
        self._request, self._batch_size, self._stats, self._skip = request, batch_size, stats, skip
        self._num_rows = 0
        self._left_out: set[tuple[int, int, int]] = set()
        self._pool, self._scratch = BufferPool(), BufferPool()

    def blocks(self, window: Window) -> list[Block]:
        """The blocks of a window, without rows that were delivered before: one in the file's order,
        one for each batch if rows are shuffled.
        """
        if window.work.claim.key in self._left_out:
            return []
        with self._stats.timed("assemble_s"):
            index, places = window.select()
            source = _source(window, places)
            num_rows = window.rows.num_rows if index is None else len(index)
            begin = min(source.row_at(window.work.claim.start_row), num_rows)
            if window.is_shuffled and index is not None and num_rows > 0:
                blocks = self._gathered(window, index, source, begin)
            else:
                blocks = [self._block(window, index, source, begin)]
            self._num_rows += num_rows - begin
            return blocks

    def leaves_out(self, window: Window, error: BaseException) -> bool:
        """Whether a window that failed with `error` is left out, with the rest of its split. If so,
        `skip` is called.
        """
        if self._skip is None or not is_bad_file(error):
            return False
        self._left_out.add(window.work.claim.key)
        self._skip(window.work.claim, window.first_row, error)
        return True

    def _block(self, window: Window, index: Array | None, source: BlockSource, begin: int) -> Block:
        rows = window.rows if index is None else window.rows.take(index)
        return Block.of(
            block_columns(rows, self._request, self._stats),
            (source,),
            num_rows=rows.num_rows,
            extras=block_extras(rows, self._request, window.work.partition),
            begin=begin,
        )

    def _gathered(
        self, window: Window, index: Array, source: BlockSource, begin: int
    ) -> list[Block]:
        rows, num_rows = window.rows, len(index)
        if num_rows < rows.num_rows:
            # Rows that are left out are not converted: a null label in them is not an error.
            chosen = np.sort(index)
            rows, index = rows.take(chosen), np.searchsorted(chosen, index)
        pieces = rows.pieces()
        columns = self._columns(pieces)
        extras = block_extras(rows, self._request, window.work.partition)
        extras = extras.take(pa.array(index)) if extras.num_columns else extras
        del rows, pieces  # So that `gather_batches` frees each column once it has gathered it.
        ends = self._batch_ends(begin, num_rows)
        packed = gather_batches(
            columns, places_of(index[begin:], ends - begin), self._pool, self._scratch
        )
        return [
            Block.of(
                UnpackedColumns(batch),
                (source.between(first, end, num_rows),),
                num_rows=end - first,
                extras=extras.slice(first, end - first) if extras.num_columns else extras,
                packed=batch,
            )
            for first, end, batch in zip(ends[:-1].tolist(), ends[1:].tolist(), packed, strict=True)
        ]

    def _columns(self, pieces: list[Rows]) -> dict[Key, list[Values]]:
        converted = [block_columns(piece, self._request, self._stats) for piece in pieces]
        return {key: [columns[key] for columns in converted] for key in converted[0]}

    def _batch_ends(self, begin: int, num_rows: int) -> Array:
        """Where batches end from row `begin` to `num_rows`: int64, these two first and last."""
        missing = self._batch_size - self._num_rows % self._batch_size
        return np.array(
            [begin, *range(begin + missing, num_rows, self._batch_size), num_rows], np.int64
        )


def _source(window: Window, places: Array | None) -> BlockSource:
    claim = window.work.claim
    return BlockSource(
        split_index=claim.index,
        fence=claim.fence,
        part=claim.part,
        split_rows=claim.split.num_rows,
        first_row=window.first_row,
        end_row=window.end_row,
        is_last=window.is_last,
        places=places,
    )
