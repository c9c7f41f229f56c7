"""Gathers lists that batches share: of each key the values that its rows in a batch have, once, and
for each row where its own begin and end among them.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from featstore.reading.buffers import Array
from featstore.reading.gather import ColumnBuffers, ColumnKind, Places, RowGathering, row_bits_of
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import Key
from featstore.tensors.packed import split, tensor_of


def shared_groups(pieces: Sequence[ColumnBuffers]) -> list[list[int]]:
    """The numbers of the columns that batches share, those with the same ranges together."""
    found = dict[tuple[Any, ...], list[int]]()
    for number, kind in enumerate(pieces[0].kinds):
        if kind.is_shared:
            places = [(piece.buffers, piece.numbers[number, 3:5].tolist()) for piece in pieces]
            of_pieces = tuple((id(buffers[at]), first) for buffers, (at, first) in places)
            found.setdefault(of_pieces, []).append(number)
    return [*found.values()]


def with_ranges(piece: ColumnBuffers, groups: Sequence[Sequence[int]]) -> ColumnBuffers:
    """The columns of a piece, in place of those that batches share the ranges of each group, as a
    column `ranges_key` of int64 (num_rows, 3) where the group's first column was.
    """
    firsts = {group[0]: number for number, group in enumerate(groups)}
    kept = [
        number for number, kind in enumerate(piece.kinds) if number in firsts or not kind.is_shared
    ]
    kinds, numbers = [piece.kinds[number] for number in kept], piece.numbers[kept]
    for at, number in enumerate(kept):
        if number in firsts:
            kinds[at] = ColumnKind(ranges_key(firsts[number]), np.dtype(np.int64), (3,), False)
            *_, buffer, first, _, num_rows = numbers[at].tolist()
            numbers[at] = buffer, first, 3 * num_rows, 0, 0, 0, num_rows
    return ColumnBuffers(tuple(kinds), piece.buffers, numbers, piece.num_rows)


def ranges_key(group: int) -> Key:
    """What the ranges of a group are called among the columns that are gathered."""
    return "ranges", str(group)


def gather_values(
    pieces: Sequence[ColumnBuffers],
    columns: Sequence[int],
    places: Places,
    ranges: Sequence[Array],
    pool: BufferPool,
    scratch: BufferPool,
    num_threads: int,
) -> list[tuple[torch.Tensor, ...]]:
    """The values of columns with the same ranges in each batch: those of each key once, keys in the
    order of their first rows.

    Args:
        pieces: The pieces.
        columns: The numbers of the columns.
        places: The rows of each batch.
        ranges: The rows' ranges in their pieces, of each batch: int64 (num_rows, 3). They become
            ranges of the batch's values.
        pool: Memory for the values.
        scratch: Memory that is free again after the call.
        num_threads: In how many threads.

    Returns:
        The tensors of all batches, of each column.
    """
    ends = np.concatenate([of_batch[:, 1] for of_batch in ranges])
    united = [unite(of_batch) for of_batch in ranges]
    firsts = places.cuts[:-1].tolist()
    order = np.concatenate([first + own for first, (own, _) in zip(firsts, united, strict=True)])
    added = np.concatenate([of_batch for _, of_batch in united])
    piece_of, ends = places.pieces[order].astype(np.int64), ends[order]
    # Of each piece the rows that are gathered, as lists of what each adds.
    by_piece = np.argsort(piece_of, kind="stable")
    cuts = np.searchsorted(piece_of[by_piece], np.arange(len(pieces) + 1))
    in_piece = np.empty(len(order), np.int64)
    in_piece[by_piece] = np.arange(len(order)) - cuts[piece_of[by_piece]]
    lists = np.stack([ends - added, ends], axis=1)[by_piece]
    parts = [
        _lists_of(piece, columns, lists[first:end])
        for piece, (first, end) in zip(pieces, pairwise(cuts.tolist()), strict=True)
    ]
    row_bits = row_bits_of(np.diff(cuts).tolist())
    rows = (piece_of << row_bits) | in_piece
    gathered = Places.of(rows, len(pieces), row_bits, places.cuts)
    counts = np.array([of_batch.sum() for _, of_batch in united], np.int64)
    return _gathered(parts, gathered, counts, pool, scratch, num_threads)


def unite(ranges: Array) -> tuple[Array, Array]:
    """The union of ranges that overlap, each value once.

    Args:
        ranges: As of `SharedLists` that batches share: int64 (num_rows, 3). They become ranges of
            the united values, in which unions follow one another in the order of their first rows.

    Returns:
        The rows in the order of their values, int64 (num_rows,), and how many of its last values
        each adds to those before it: int64 (num_rows,).
    """
    lengths, begins = ranges[:, 1] - ranges[:, 0], ranges[:, 2]
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], (begins + lengths)[order]
    reached = np.maximum.accumulate(ends)
    before = np.concatenate([begins[:1], reached[:-1]])
    is_first = begins >= before
    unions: Array = np.cumsum(is_first) - is_first[:1]
    with_values = np.where(ends > begins, order, len(order))
    heads = np.flatnonzero(is_first)
    first_rows = np.minimum.reduceat(with_values, heads) if len(order) else order
    by_first_row = np.argsort(first_rows[unions], kind="stable")
    order, ends, reached = order[by_first_row], ends[by_first_row], reached[by_first_row]
    added = np.maximum(0, ends - np.maximum(begins, before)[by_first_row])
    ranges[order, 1] = np.cumsum(added) - (reached - ends)
    ranges[:, 0] = ranges[:, 1] - lengths
    return order, added


def _lists_of(piece: ColumnBuffers, columns: Sequence[int], lists: Array) -> ColumnBuffers:
    """Columns of a piece with other lists, ranges of the same values: int64 (num_rows, 2)."""
    numbers = piece.numbers[columns]
    numbers[:, 3:] = len(piece.buffers), 0, 16, len(lists)
    kinds = tuple(piece.kinds[number]._replace(is_shared=False) for number in columns)
    return ColumnBuffers(kinds, (*piece.buffers, lists), numbers, len(lists))


def _gathered(
    pieces: Sequence[ColumnBuffers],
    places: Places,
    counts: Array,
    pool: BufferPool,
    scratch: BufferPool,
    num_threads: int,
) -> list[tuple[torch.Tensor, ...]]:
    """The values of all lists, in a buffer for each column; of each batch there are `counts`."""
    dtypes = [kind.dtype for kind in pieces[0].kinds]
    num_columns, num_offsets = len(dtypes), len(places) + places.num_parts
    outs = np.array([(column, num_columns) for column in range(num_columns)], np.int64)
    gathering = RowGathering(pieces, places, outs)
    size = gathering.scratch_size
    # The kernel writes offsets, too, which nobody reads.
    num_bytes = 8 * (size + num_columns * num_offsets)
    numbers = scratch.take(num_bytes)[:num_bytes].view(np.int64)
    gathering.find_lists(numbers[:size])
    starts = np.empty((2 * num_columns, places.num_parts), np.int64)
    firsts = np.cumsum(counts) - counts
    for column, dtype in enumerate(dtypes):
        starts[column] = firsts * dtype.itemsize
        of_parts = places.cuts[:-1] + np.arange(places.num_parts)
        starts[num_columns + column] = 8 * (column * num_offsets + of_parts)
    buffers = []
    for dtype in dtypes:
        size_bytes = int(counts.sum()) * dtype.itemsize
        buffers.append(pool.take(size_bytes)[:size_bytes].view(dtype))
    gathering.gather(starts, (*buffers, numbers[size:]), num_threads)
    return [split(tensor_of(buffer), counts.tolist()) for buffer in buffers]
