"""Copies columns into the memory of batches: gathers shuffled rows into one buffer per dtype, as
they are delivered, and joins columns that come in parts, as of a batch that straddles blocks.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np
import torch

from featstore.reading.buffers import Array, BatchValues, Ragged, SharedLists
from featstore.reading.gather import (
    ColumnBuffers,
    ColumnKind,
    Places,
    RowGathering,
    join_offsets,
)
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import Key
from featstore.tensors.packed import (
    Form,
    PackedColumns,
    TensorPlace,
    TensorPlaces,
    array_of,
    layout_of,
    split,
    tensor_of,
    torch_dtype,
)
from featstore.tensors.shared_lists import gather_values, ranges_key, shared_groups, with_ranges

_OFFSETS = np.dtype(np.int64)
_MOST_LAYOUTS = 16  # A loader has one of full batches, and one of what is left over.


class _BatchLayout:
    """How columns of some kinds are laid out in batches: in one buffer per dtype, each column's
    values before its offsets.

    Args:
        kinds: The columns' kinds.

    Attributes:
        outs: As of `RowGathering`.
        dtypes: The dtype of each buffer.
    """

    def __init__(self, kinds: tuple[ColumnKind, ...]) -> None:
        self._kinds = kinds
        items = [
            (number, part)
            for number, kind in enumerate(kinds)
            for part in range(1 + kind.is_list)  # values, offsets
        ]
        item_dtypes = [_OFFSETS if part else kinds[number].dtype for number, part in items]
        self.dtypes = list(dict.fromkeys(item_dtypes))
        numbers = [self.dtypes.index(dtype) for dtype in item_dtypes]
        self.outs = np.zeros((len(kinds), 2), np.int64)
        for (number, part), dtype_number in zip(items, numbers, strict=True):
            self.outs[number, part] = dtype_number
        # Of each item, how many elements it has for each row, and beside them.
        of_row = [1 if part else kinds[number].of_row for number, part in items]
        self._of_row = np.array(of_row, np.int64)[:, None]
        self._beside = np.array([part for _, part in items], np.int64)[:, None]
        self._lists = [at for at, count in enumerate(of_row) if not count]
        self._of_dtype = [
            np.flatnonzero(np.array(numbers) == number) for number in range(len(self.dtypes))
        ]
        # Where the values of columns are among the items, and after them the offsets of lists.
        self._order = np.argsort([part for _, part in items], kind="stable")
        self._places = dict[tuple[int, ...], TensorPlaces]()

    def counts(self, part_rows: Array, list_values: Array) -> Array:
        """How many elements each item has in each part: int64 (num_items, num_parts).

        Args:
            part_rows: The rows of each part.
            list_values: The values that each column of lists has in each part.
        """
        counts: Array = self._of_row * part_rows + self._beside
        counts[self._lists] = list_values
        return counts

    def starts(self, counts: Array) -> tuple[Array, list[Array]]:
        """Where each item of each part begins in its buffer, in bytes, as of `RowGathering.gather`;
        and for each buffer the element at which each part begins: int64 (num_parts + 1,).
        """
        starts, bases = np.empty_like(counts), list[Array]()
        for dtype, items in zip(self.dtypes, self._of_dtype, strict=True):
            ends = np.cumsum(counts[items], axis=0)
            base = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends[-1])])
            starts[items] = (base[:-1] + ends - counts[items]) * dtype.itemsize
            bases.append(base)
        return starts[self._order], bases

    def places(self, num_rows: int, counts: Array) -> TensorPlaces:
        """Where the tensors of a part lie in its part of the buffers. Parts that are laid out alike
        share one object.

        Args:
            num_rows: The rows of the part.
            counts: The elements of each of its items.
        """
        key = (num_rows, *counts[self._lists].tolist())
        if (found := self._places.get(key)) is None:
            if len(self._places) >= _MOST_LAYOUTS or self._lists:
                self._places.clear()
            found = self._places[key] = self._made_places(num_rows, counts.tolist())
        return found

    def _made_places(self, num_rows: int, counts: Sequence[int]) -> TensorPlaces:
        firsts, of_items = [0] * len(self.dtypes), iter(counts)
        places = TensorPlaces()
        for kind, outs in zip(self._kinds, self.outs.tolist(), strict=True):
            tensors = []
            for part in range(1 + kind.is_list):
                count, number = next(of_items), outs[part]
                dtype = torch_dtype(self.dtypes[number])
                shape = (count,) if part or kind.is_list else (num_rows, *kind.row_shape)
                tensors.append(TensorPlace(number, dtype, firsts[number], shape))
                firsts[number] += count
            places[kind.key] = tuple(tensors)
        return places


_layout_of = lru_cache(maxsize=_MOST_LAYOUTS)(_BatchLayout)


def _gathered(
    pieces: Sequence[ColumnBuffers],
    places: Places,
    pool: BufferPool,
    scratch: BufferPool,
    num_threads: int,
) -> list[PackedColumns]:
    """As `gather_batches`, of columns that batches do not share."""
    layout = _layout_of(pieces[0].kinds)
    gathering, part_rows = RowGathering(pieces, places, layout.outs), places.part_rows
    memory = scratch.take(8 * gathering.scratch_size)
    offsets = gathering.find_lists(memory[: 8 * gathering.scratch_size].view(np.int64))
    counts = layout.counts(part_rows, offsets[:, np.cumsum(part_rows + 1) - 1])
    starts, bases = layout.starts(counts)
    sizes = [int(base[-1]) * of.itemsize for base, of in zip(bases, layout.dtypes, strict=True)]
    buffers = tuple(
        pool.take(size)[:size].view(dtype) for size, dtype in zip(sizes, layout.dtypes, strict=True)
    )
    gathering.gather(starts, buffers, num_threads)
    cut = [
        split(tensor_of(buffer), np.diff(base).tolist())
        for buffer, base in zip(buffers, bases, strict=True)
    ]
    return [
        PackedColumns(buffers=of_part, places=layout.places(num_rows, counts[:, part]))
        for part, (num_rows, of_part) in enumerate(
            zip(part_rows.tolist(), zip(*cut, strict=True), strict=True)
        )
    ]


def gather_batches(
    pieces: Sequence[ColumnBuffers],
    places: Places,
    pool: BufferPool,
    scratch: BufferPool,
    num_threads: int = 1,
) -> list[PackedColumns]:
    """The batches of some rows.

    Args:
        pieces: The pieces of the columns, which are of the same kinds; at least one.
        places: The rows of each batch.
        pool: Memory for the batches.
        scratch: Memory for offsets, free again after the call.
        num_threads: In how many threads.
    """
    groups, kinds = shared_groups(pieces), pieces[0].kinds
    if not groups:
        return _gathered(pieces, places, pool, scratch, num_threads)
    of_rows = [with_ranges(piece, groups) for piece in pieces]
    batches = _gathered(of_rows, places, pool, scratch, num_threads)
    found = [({**of.places}, [*of.buffers]) for of in batches]
    for number, group in enumerate(groups):
        key = ranges_key(number)
        ranges = [_array_at(buffers, of[key][0]) for of, buffers in found]
        values = gather_values(pieces, group, places, ranges, pool, scratch, num_threads)
        for column, tensors in zip(group, values, strict=True):
            for (of, buffers), tensor in zip(found, tensors, strict=True):
                place = TensorPlace(len(buffers), tensor.dtype, 0, tuple(tensor.shape))
                of[kinds[column].key] = place, *of[key]
                buffers.append(tensor)
    return [
        PackedColumns(
            buffers=tuple(buffers), places=TensorPlaces((kind.key, of[kind.key]) for kind in kinds)
        )
        for of, buffers in found
    ]


def _array_at(buffers: Sequence[torch.Tensor], place: TensorPlace) -> Array:
    """The memory of a tensor, in a buffer of its dtype."""
    end = place.first + prod(place.shape)
    return array_of(buffers[place.buffer])[place.first : end].reshape(place.shape)


def joined(columns: Mapping[Key, Sequence[BatchValues]], pool: BufferPool) -> PackedColumns:
    """The concatenated columns, all in one piece of the pool's memory.

    Uses numpy: `torch.cat` wakes torch's threads, which then spin on the cores that decode.
    """
    forms = [form for key, parts in columns.items() for form in _forms(key, parts)]
    layout = layout_of(forms)
    memory = pool.take(layout.num_bytes)[: layout.num_bytes]
    outs = (
        memory[first : first + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        for (_, dtype, shape, _), first in zip(forms, layout.parts[:, 0].tolist(), strict=True)
    )
    for parts in columns.values():
        _join(parts, outs)
    return PackedColumns(buffers=(torch.from_numpy(memory),), places=layout.places)


def _forms(key: Key, parts: Sequence[BatchValues]) -> list[Form]:
    """The arrays of a column once its parts are joined."""
    values, num_rows = [_values(part) for part in parts], sum(map(len, parts))
    of_values = (key, values[0].dtype, (sum(map(len, values)), *values[0].shape[1:]), 0)
    if isinstance(parts[0], np.ndarray):
        return [of_values]
    shape = (num_rows + 1,) if isinstance(parts[0], Ragged) else (num_rows, 3)
    return [of_values, (key, _OFFSETS, shape, 0)]


def _join(parts: Sequence[BatchValues], outs: Iterator[Array]) -> None:
    """Copies the parts of a column to the next arrays. Offsets of parts may begin above 0; values
    of the lists that batches share follow one another.
    """
    values = [_values(part) for part in parts]
    np.concatenate(values, out=next(outs))
    if lists := [part for part in parts if isinstance(part, Ragged)]:
        join_offsets(lists, next(outs))
    if shared := [part for part in parts if isinstance(part, SharedLists)]:
        ranges = np.concatenate([part.ranges for part in shared], out=next(outs))
        firsts = np.cumsum([0, *map(len, values[:-1])])
        ranges[:, :2] += np.repeat(firsts, [*map(len, shared)])[:, None]


def _values(part: BatchValues) -> Array:
    return part if isinstance(part, np.ndarray) else part.values
