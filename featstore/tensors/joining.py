"""Concatenates columns that come in parts, as those of a batch that straddles blocks do."""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from featstore.intervals import aligned
from featstore.reading.buffers import Array, Ragged, Values
from featstore.reading.gather import join_offsets
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_keys import Key
from featstore.tensors.dtypes import tensor_of, torch_dtype
from featstore.tensors.packed import PackedColumns, TensorPlace

_INT64 = np.dtype(np.int64)


def joined(columns: Mapping[Key, Sequence[Values]], pool: BufferPool) -> PackedColumns:
    """The concatenated columns: a buffer for the values of each dtype, and one for all offsets, all
    in one piece of the pool's memory.

    The values of all columns of a dtype are copied by one call. Uses numpy: `torch.cat` wakes
    torch's threads, which then spin on the cores that decode.
    """
    values, lists = dict[Key, Sequence[Array]](), dict[Key, Sequence[Ragged]]()
    for key, parts in columns.items():
        if ragged := [part for part in parts if isinstance(part, Ragged)]:
            lists[key], values[key] = ragged, [part.values for part in ragged]
        else:
            values[key] = [part for part in parts if not isinstance(part, Ragged)]
    keys_of = dict[np.dtype[Any], list[Key]]()
    for key, arrays in values.items():
        keys_of.setdefault(arrays[0].dtype, []).append(key)
    flat = [
        (dtype, [array.reshape(-1) for array in chain.from_iterable(values[key] for key in keys)])
        for dtype, keys in keys_of.items()
    ]
    num_offsets = {key: sum(map(len, parts)) + 1 for key, parts in lists.items()}
    counts = [(dtype, sum(map(len, arrays))) for dtype, arrays in flat]
    *buffers, offsets = _buffers([*counts, (_INT64, sum(num_offsets.values()))], pool)
    for out, (_, arrays) in zip(buffers, flat, strict=True):
        np.concatenate(arrays, out=out)
    places = _places(values, keys_of)
    first = 0
    for key, count in num_offsets.items():
        # Of the concatenated lists, from 0. Those of the parts may begin above 0.
        join_offsets(lists[key], offsets[first : first + count])
        place = TensorPlace(len(buffers), torch_dtype(_INT64), first, (count,))
        places[key] = (*places[key], place)
        first += count
    return PackedColumns(
        buffers=tuple(map(tensor_of, [*buffers, offsets])),
        places={key: places[key] for key in columns},
    )


def _places(
    values: Mapping[Key, Sequence[Array]], keys_of: Mapping[np.dtype[Any], Sequence[Key]]
) -> dict[Key, tuple[TensorPlace, ...]]:
    """Where the values of each column lie, in the buffer of their dtype."""
    places = dict[Key, tuple[TensorPlace, ...]]()
    for number, (dtype, keys) in enumerate(keys_of.items()):
        first = 0
        for key in keys:
            arrays = values[key]
            shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
            places[key] = (TensorPlace(number, torch_dtype(dtype), first, shape),)
            first += prod(shape)
    return places


def _buffers(counts: Sequence[tuple[np.dtype[Any], int]], pool: BufferPool) -> list[Array]:
    """Consecutive, aligned pieces of one buffer for so many elements of each dtype."""
    sizes = [dtype.itemsize * count for dtype, count in counts]
    memory, at, buffers = pool.take(sum(map(aligned, sizes))), 0, list[Array]()
    for (dtype, _), size_bytes in zip(counts, sizes, strict=True):
        buffers.append(memory[at : at + size_bytes].view(dtype))
        at += aligned(size_bytes)
    return buffers
