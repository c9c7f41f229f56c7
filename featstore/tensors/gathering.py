"""Copies columns into the memory of batches: gathers shuffled rows into one buffer per dtype, as
they are delivered, and joins columns that come in parts, as of a batch that straddles blocks.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from featstore.base.intervals import aligned
from featstore.reading.buffers import Array, Ragged, Values
from featstore.reading.gather import (
    GatheredColumn,
    Places,
    gather_columns,
    gather_offsets,
    join_offsets,
    of_one_dtype,
)
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import Key
from featstore.tensors.packed import (
    PackedColumns,
    TensorPlace,
    TensorPlaces,
    tensor_of,
    torch_dtype,
)


class _Item(NamedTuple):
    """One tensor of each batch.

    Attributes:
        key: The column.
        dtype: Its dtype.
        counts: Number of elements in each batch, int64 (num_batches,).
        row_shape: Shape of one row.
    """

    key: Key
    dtype: np.dtype[Any]
    counts: Array
    row_shape: tuple[int, ...] = ()


def gather_batches(
    columns: Mapping[Key, Sequence[Values]],
    places: Places,
    pool: BufferPool,
    scratch: BufferPool,
    num_threads: int = 1,
) -> list[PackedColumns]:
    """The batches of some rows.

    Args:
        columns: Each column in one or more pieces.
        places: The rows of each batch.
        pool: Memory for the batches.
        scratch: Memory for offsets, free again after the call.
        num_threads: In how many threads.
    """
    lists = {
        key: of_one_dtype([piece for piece in pieces if isinstance(piece, Ragged)])
        for key, pieces in columns.items()
        if isinstance(pieces[0], Ragged)
    }
    offsets = _offsets(lists, places, scratch)
    part_rows = places.part_rows
    items = [
        item
        for key, pieces in columns.items()
        for item in _items(key, pieces[0], part_rows, offsets[key][1] if key in offsets else None)
    ]
    buffers, bases, starts = _layout(items, pool)
    waiting, wanted = iter(zip(items, starts, strict=True)), list[GatheredColumn]()
    for item, begins in waiting:
        found = offsets.get(item.key)
        wanted.append(
            GatheredColumn(
                pieces=columns[item.key] if found is None else lists[item.key],
                out=buffers[item.dtype],
                starts=begins,
                ends=begins + item.counts,
                found=found,
            )
        )
        if found is not None:
            offset_item, begins = next(waiting)
            _spread(found[1], begins, offset_item.counts, buffers[offset_item.dtype])
    wanted.sort(key=lambda column: column.found is None)  # Lists first: they take longest.
    gather_columns(wanted, places, num_threads)
    layouts = dict[int, TensorPlaces]()  # Of parts with so many rows, if there are no lists.
    return [
        _packed(items, starts, buffers, bases, part, {} if lists else layouts)
        for part in range(places.num_parts)
    ]


def _offsets(
    lists: Mapping[Key, Sequence[Ragged]], places: Places, scratch: BufferPool
) -> dict[Key, tuple[Array, Array]]:
    """What `gather_offsets` writes for each column, all in one piece of scratch memory."""
    num_rows, size = len(places), 2 * len(places) + places.num_parts
    memory = (
        scratch.take(8 * size * len(lists))[: 8 * size * len(lists)]
        .view(np.int64)
        .reshape(-1, size)
    )
    found = {
        key: (each[:num_rows], each[num_rows:]) for key, each in zip(lists, memory, strict=True)
    }
    for key, pieces in lists.items():
        gather_offsets(pieces, places, *found[key])
    return found


def _items(key: Key, first: Values, part_rows: Array, offsets: Array | None) -> Iterator[_Item]:
    if isinstance(first, Ragged):
        assert offsets is not None
        ends = np.cumsum(part_rows + 1) - 1
        yield _Item(key, first.values.dtype, offsets[ends])
        yield _Item(key, offsets.dtype, part_rows + 1)
    elif first.ndim == 1:
        yield _Item(key, first.dtype, part_rows)
    else:
        shape = first.shape[1:]
        yield _Item(key, first.dtype, part_rows * prod(shape), shape)


Buffers = dict[np.dtype[Any], Array]


def _layout(items: list[_Item], pool: BufferPool) -> tuple[Buffers, Buffers, list[Array]]:
    """Lays tensors out in one buffer per dtype, batch after batch.

    Returns:
        The buffers; where each batch begins in them, (num_parts + 1,); and where each item begins
        in each batch, (num_parts,) for each item.
    """
    buffers: Buffers = {}
    bases: Buffers = {}
    starts: dict[int, Array] = {}
    for dtype in dict.fromkeys(item.dtype for item in items):
        numbers = [number for number, item in enumerate(items) if item.dtype == dtype]
        counts = np.stack([items[number].counts for number in numbers])
        base = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.sum(axis=0))])
        begins = base[:-1] + np.cumsum(counts, axis=0) - counts
        starts |= dict(zip(numbers, begins, strict=True))
        bases[dtype] = base
        buffers[dtype] = pool.take(int(base[-1]) * dtype.itemsize)[
            : int(base[-1]) * dtype.itemsize
        ].view(dtype)
    return buffers, bases, [np.ascontiguousarray(starts[number]) for number in range(len(items))]


def _spread(offsets: Array, begins: Array, counts: Array, out: Array) -> None:
    """Copies the offsets of each batch to where it begins in the buffer."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).tolist()
    for begin, (first, end) in zip(begins.tolist(), pairwise(ends), strict=True):
        out[begin : begin + end - first] = offsets[first:end]


def _packed(
    items: list[_Item],
    starts: list[Array],
    buffers: Buffers,
    bases: Buffers,
    part: int,
    layouts: dict[int, TensorPlaces],
) -> PackedColumns:
    ranges = {dtype: (int(base[part]), int(base[part + 1])) for dtype, base in bases.items()}
    tensors = [tensor_of(buffers[dtype][first:end]) for dtype, (first, end) in ranges.items()]
    size = sum(end - first for first, end in ranges.values())
    if size not in layouts:
        layouts[size] = _places(items, starts, ranges, part)
    return PackedColumns(buffers=tuple(tensors), places=layouts[size])


def _places(
    items: list[_Item],
    starts: list[Array],
    ranges: dict[np.dtype[Any], tuple[int, int]],
    part: int,
) -> TensorPlaces:
    """Where the tensors of a part lie in its ranges of the buffers."""
    numbers, places = {dtype: number for number, dtype in enumerate(ranges)}, TensorPlaces()
    for item, begins in zip(items, starts, strict=True):
        count, row = int(item.counts[part]), item.row_shape
        shape = (count // max(1, prod(row)), *row)
        first = int(begins[part]) - ranges[item.dtype][0]
        place = TensorPlace(numbers[item.dtype], torch_dtype(item.dtype), first, shape)
        places[item.key] = (*places.get(item.key, ()), place)
    return places


def joined(columns: Mapping[Key, Sequence[Values]], pool: BufferPool) -> PackedColumns:
    """The concatenated columns, all in one piece of the pool's memory.

    Uses numpy: `torch.cat` wakes torch's threads, which then spin on the cores that decode.
    """
    size_bytes = sum(map(_size_bytes, columns.values()))
    memory = pool.take(size_bytes)[:size_bytes]
    room = _Room(memory)
    places = TensorPlaces((key, _joined(parts, room)) for key, parts in columns.items())
    return PackedColumns(buffers=(torch.from_numpy(memory),), places=places)


class _Room:
    """Allocates consecutive, aligned pieces of one buffer."""

    def __init__(self, memory: Array) -> None:
        self._memory, self._at = memory, 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, TensorPlace]:
        """An array of this shape, and its place."""
        first, size = self._at, prod(shape) * dtype.itemsize
        self._at += aligned(size)
        place = TensorPlace(0, torch_dtype(dtype), first // dtype.itemsize, shape)
        return self._memory[first : first + size].view(dtype).reshape(shape), place


def _joined(parts: Sequence[Values], room: _Room) -> tuple[TensorPlace, ...]:
    lists = [part for part in parts if isinstance(part, Ragged)]
    if lists:
        return _joined_values([part.values for part in lists], room), _joined_offsets(lists, room)
    return (_joined_values([part for part in parts if not isinstance(part, Ragged)], room),)


def _joined_values(parts: Sequence[Array], room: _Room) -> TensorPlace:
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    out, place = room.take(shape, parts[0].dtype)
    np.concatenate(parts, out=out)
    return place


def _joined_offsets(parts: Sequence[Ragged], room: _Room) -> TensorPlace:
    """The offsets of the concatenated lists, from 0. Those of the parts may begin above 0."""
    out, place = room.take((sum(map(len, parts)) + 1,), np.dtype(np.int64))
    join_offsets(parts, out)
    return place


def _size_bytes(parts: Sequence[Values]) -> int:
    lists = [part for part in parts if isinstance(part, Ragged)]
    if not lists:
        return aligned(sum(part.nbytes for part in parts if not isinstance(part, Ragged)))
    return aligned(sum(part.values.nbytes for part in lists)) + aligned(
        8 * (sum(map(len, lists)) + 1)
    )
