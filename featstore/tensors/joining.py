"""Concatenates columns that come in parts, as those of a batch that straddles blocks do."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from featstore.intervals import aligned
from featstore.reading.buffers import Array, Ragged, Values
from featstore.reading.gather import join_offsets
from featstore.tensors.batch import Column, Jagged
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_keys import Key
from featstore.tensors.dtypes import tensor_of


def joined(columns: Mapping[Key, Sequence[Values]], pool: BufferPool) -> dict[Key, Column]:
    """The concatenated columns, all in one piece of the pool's memory.

    Uses numpy: `torch.cat` wakes torch's threads, which then spin on the cores that decode.
    """
    room = _Room(pool.take(sum(map(_size_bytes, columns.values()))))
    return {key: _joined(parts, room) for key, parts in columns.items()}


class _Room:
    """Allocates consecutive, aligned pieces of one buffer."""

    def __init__(self, memory: Array) -> None:
        self._memory, self._at = memory, 0

    def take(self, num_values: int, dtype: np.dtype[Any]) -> Array:
        first, size = self._at, num_values * dtype.itemsize
        self._at += aligned(size)
        return self._memory[first : first + size].view(dtype)


def _joined(parts: Sequence[Values], room: _Room) -> Column:
    lists = [part for part in parts if isinstance(part, Ragged)]
    if lists:
        return Jagged(
            tensor_of(_values([part.values for part in lists], room)),
            tensor_of(_offsets(lists, room)),
        )
    return tensor_of(_values([part for part in parts if not isinstance(part, Ragged)], room))


def _values(parts: Sequence[Array], room: _Room) -> Array:
    out = room.take(sum(part.size for part in parts), parts[0].dtype).reshape(
        -1, *parts[0].shape[1:]
    )
    return np.concatenate(parts, out=out)


def _offsets(parts: Sequence[Ragged], room: _Room) -> Array:
    """The offsets of the concatenated lists, from 0. Those of the parts may begin above 0."""
    out = room.take(sum(map(len, parts)) + 1, np.dtype(np.int64))
    join_offsets(parts, out)
    return out


def _size_bytes(parts: Sequence[Values]) -> int:
    lists = [part for part in parts if isinstance(part, Ragged)]
    if not lists:
        return aligned(sum(part.nbytes for part in parts if not isinstance(part, Ragged)))
    return aligned(sum(part.values.nbytes for part in lists)) + aligned(
        8 * (sum(map(len, lists)) + 1)
    )
