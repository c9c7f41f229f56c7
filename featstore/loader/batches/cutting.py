"""Blocks to batches of an exact number of rows, with the progress that each stands for."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from featstore.loader.batches.blocks import Block
from featstore.loader.batches.segment import Segment
from featstore.loader.batches.slicing import Slices, Span, Spans
from featstore.tensors.batch import Batch
from featstore.tensors.pool import Pool

# Batches whose tensors are made together, and the bytes of their lists' offsets, which each of them
# keeps: with more of them a call costs less for each, and their memory is no longer near.
_AT_ONCE, _AT_ONCE_BYTES = 32, 16 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """The spans of one batch, and what is delivered with it. Without spans: progress for which
    there is no batch.

    `pool`: memory for what is put together of them.
    """

    spans: tuple[Span, ...]
    segments: tuple[Segment, ...]
    num_dropped_rows: int = 0
    pool: Pool | None = field(default=None, compare=False)

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.spans))

    def num_ahead(self, batch_size: int) -> int:
        """How many whole batches the last block still has after this one."""
        last = self.spans[-1]
        return (last.block.num_rows - last.end) // batch_size

    def batch(self) -> Batch:
        """The batch, as views of the blocks; there must be spans."""
        columns = Spans(self.spans, self.pool or Pool())
        return Batch(columns, num_rows=self.num_rows, extras=_extras(self.spans))


def _extras(spans: tuple[Span, ...]) -> pa.Table:
    if not spans[0].block.extras.num_columns:
        return spans[0].block.extras
    extras = [span.block.extras.slice(span.begin, len(span)) for span in spans]
    return extras[0] if len(extras) == 1 else pa.concat_tables(extras)


def cut(
    blocks: Iterable[Block],
    batch_size: int,
    *,
    drop_last: bool,
    is_lost: Callable[[Span], bool] = lambda _: False,
) -> Iterator[Cut]:
    """Cuts the blocks, in their order, into batches of `batch_size` rows; the last may be shorter,
    or is dropped.

    Lets go of a block once its last row is cut off. Leaves out the rest of a block from a span on
    that `is_lost`.
    """
    spans: list[Span] = []
    segments: list[Segment] = []
    missing, pool = batch_size, Pool()
    for block in blocks:
        for span in _spans(block, missing, batch_size, pool):
            if is_lost(span):
                del span
                break
            spans += [span] if len(span) else []
            segments.append(_segment(span))
            missing -= len(span)
            if not missing:
                yield Cut(tuple(spans), tuple(segments), 0, pool)
                spans, segments, missing = [], [], batch_size
            del span
        del block
    if drop_last:
        yield Cut((), tuple(segments), num_dropped_rows=batch_size - missing)
    elif segments:
        yield Cut(tuple(spans), tuple(segments), pool=pool)


def _spans(block: Block, missing: int, batch_size: int, pool: Pool) -> Iterator[Span]:
    """The block's rows in pieces: the first completes a batch that lacks `missing` rows. An empty
    block is one empty piece.
    """
    first, end = block.begin, block.num_rows
    if (
        block.packed is not None and end - first <= missing
    ):  # gathered for a batch of its own, or for a part of one
        yield Span(block, first, end)
        return
    if missing < batch_size and first < end:
        first = min(first + missing, end)
        yield Span(block, block.begin, first)
    count = (end - first) // batch_size
    at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // (8 * batch_size * (block.num_lists or 1))))
    for number in range(count):
        at = number % at_once
        if not at:
            slices = Slices(block, first, batch_size, min(at_once, count - number), pool)
        yield Span(block, first, first + batch_size, slices, at)
        first += batch_size
    if first < end or block.begin == end:
        yield Span(block, first, end)


def _segment(span: Span) -> Segment:
    origin, num_rows = span.block.origin, span.block.num_rows
    is_end = span.end == num_rows
    return Segment(
        split_index=origin.split_index,
        fence=origin.fence,
        through=origin.through(span.end, num_rows),
        is_complete=is_end and origin.is_last,
        part=origin.part,
        split_rows=origin.split_rows,
    )
