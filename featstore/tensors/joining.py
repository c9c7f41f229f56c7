"""Concatenates columns that come in parts, as those of a batch that straddles blocks do."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from featstore.base.intervals import aligned
from featstore.reading.buffers import Array, Ragged, Values
from featstore.reading.gather import join_offsets
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_keys import Key
from featstore.tensors.dtypes import torch_dtype
from featstore.tensors.packed import PackedColumns, TensorPlace

_INT64 = np.dtype(np.int64)


def joined(columns: Mapping[Key, Sequence[Values]], pool: BufferPool) -> PackedColumns:
    """The concatenated columns, all in one piece of the pool's memory.

    Uses numpy: `torch.cat` wakes torch's threads, which then spin on the cores that decode.
    """
    size_bytes = sum(map(_size_bytes, columns.values()))
    memory = pool.take(size_bytes)[:size_bytes]
    room = _Room(memory)
    places = {key: _joined(parts, room) for key, parts in columns.items()}
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
        return _values([part.values for part in lists], room), _offsets(lists, room)
    return (_values([part for part in parts if not isinstance(part, Ragged)], room),)


def _values(parts: Sequence[Array], room: _Room) -> TensorPlace:
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    out, place = room.take(shape, parts[0].dtype)
    np.concatenate(parts, out=out)
    return place


def _offsets(parts: Sequence[Ragged], room: _Room) -> TensorPlace:
    """The offsets of the concatenated lists, from 0. Those of the parts may begin above 0."""
    out, place = room.take((sum(map(len, parts)) + 1,), _INT64)
    join_offsets(parts, out)
    return place


def _size_bytes(parts: Sequence[Values]) -> int:
    lists = [part for part in parts if isinstance(part, Ragged)]
    if not lists:
        return aligned(sum(part.nbytes for part in parts if not isinstance(part, Ragged)))
    return aligned(sum(part.values.nbytes for part in lists)) + aligned(
        8 * (sum(map(len, lists)) + 1)
    )
