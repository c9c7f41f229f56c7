"""Columns of a batch in few buffers, so that it moves as one copy, or as one shared-memory buffer,
instead of hundreds of tensors; and columns that are tensors already.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch

from featstore.base.intervals import aligned
from featstore.reading.buffers import Ragged, Values
from featstore.tensors.batch import Column, Columns, Jagged, column_of, shaped
from featstore.tensors.column_keys import Key, Keys
from featstore.tensors.views import array_of, split, tensor_of
from featstore.tensors.writable import writable

Allocate = Callable[[int], torch.Tensor]


class TensorPlace(NamedTuple):
    """Where a tensor lies in the buffers.

    Attributes:
        buffer: The number of the buffer.
        dtype: The tensor's dtype.
        first: Its first element, counted in elements of its dtype from the start of the buffer.
        shape: Its shape.
    """

    buffer: int
    dtype: torch.dtype
    first: int
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PackedColumns:
    """Columns as views of buffers.

    Attributes:
        buffers: One-dimensional, on any device; each is uint8, or has the dtype of all tensors in
            it.
        places: For each column, the places of its values and, if it is jagged, its offsets. Tensors
            of one dtype lie in a buffer in this order.
    """

    buffers: tuple[torch.Tensor, ...]
    places: Mapping[Key, tuple[TensorPlace, ...]]

    @property
    def keys(self) -> Keys:
        return Keys(self.places)

    def made(self) -> dict[Key, Column]:
        """The columns as views of the buffers. All tensors of a dtype are made by one split."""
        # A gap between tensors becomes a tensor, too. `wanted` has the numbers of real ones.
        sizes: dict[tuple[int, torch.dtype], list[int]] = {}
        wanted: dict[tuple[int, torch.dtype], list[int]] = {}
        ends: dict[tuple[int, torch.dtype], int] = {}
        for places in self.places.values():
            for buffer, dtype, first, shape in places:
                key, count = (buffer, dtype), prod(shape)
                parts = sizes.setdefault(key, [])
                if first > (end := ends.get(key, 0)):
                    parts.append(first - end)
                wanted.setdefault(key, []).append(len(parts))
                parts.append(count)
                ends[key] = first + count
        tensors = {}
        for (buffer, dtype), parts in sizes.items():
            end = ends[buffer, dtype] * dtype.itemsize // self.buffers[buffer].itemsize
            flat = split(self.buffers[buffer][:end].view(dtype), parts)
            tensors[buffer, dtype] = iter([flat[number] for number in wanted[buffer, dtype]])
        return {
            key: column_of([shaped(next(tensors[at[0], at[1]]), at.shape) for at in places])
            for key, places in self.places.items()
        }

    def packed(self) -> "PackedColumns":
        """A copy that shares no memory with anything."""
        buffers = tuple(buffer.clone() for buffer in self.buffers)
        return PackedColumns(buffers=buffers, places=self.places)

    def moved(self, *, pin: bool = False, **how: Any) -> "PackedColumns":
        """A copy whose buffers are moved by `Tensor.to(**how)`, or pinned."""
        moved = (buffer.pin_memory() if pin else buffer.to(**how) for buffer in self.buffers)
        return PackedColumns(buffers=tuple(moved), places=self.places)

    @property
    def is_pinned(self) -> bool:
        """Whether all buffers are pinned, so that copies to a device need not block."""
        return all(buffer.is_pinned() for buffer in self.buffers)


@dataclass
class _Layout:
    """The layout of columns in one buffer, computed before the buffer is allocated."""

    places: dict[Key, tuple[TensorPlace, ...]] = field(default_factory=dict)
    tensors: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, key: Key, tensor: torch.Tensor) -> None:
        first = aligned(self.num_bytes)
        place = TensorPlace(0, tensor.dtype, first // tensor.itemsize, tuple(tensor.shape))
        self.places[key] = (*self.places.get(key, ()), place)
        self.tensors.append((first, tensor))
        self.num_bytes = first + tensor.numel() * tensor.itemsize


def pack(
    columns: Columns, allocate: Allocate = lambda size: torch.empty(size, dtype=torch.uint8)
) -> PackedColumns:
    """Copies columns into one buffer, each tensor aligned to 64 bytes.

    Uses numpy: torch's copies wake its threads, which then spin on the cores that decode.

    Args:
        columns: Columns on the CPU.
        allocate: Gives the buffer: uint8 (num_bytes,), or longer.
    """
    layout = _Layout()
    for key, column in columns.made().items():
        for tensor in (column.values, column.offsets) if isinstance(column, Jagged) else (column,):
            layout.add(key, tensor)
    memory = allocate(layout.num_bytes)[: layout.num_bytes]
    target = memory.numpy()
    for first, tensor in layout.tensors:
        array = array_of(tensor).reshape(-1)
        target[first : first + array.nbytes].view(array.dtype)[:] = array
    return PackedColumns(buffers=(memory,), places=layout.places)


@dataclass(frozen=True)
class TensorColumns:
    """Columns in any memory."""

    columns: Mapping[Key, Column]

    @property
    def keys(self) -> Keys:
        return Keys(self.columns)

    def made(self) -> Mapping[Key, Column]:
        return self.columns

    def packed(self) -> PackedColumns:
        return pack(self)

    def moved(self, **how: Any) -> PackedColumns:
        return pack(self).moved(**how)


class UnpackedColumns(Mapping[Key, Values]):
    """Packed columns as arrays, which are made when the first is asked for. Batches that are moved
    whole never need them.
    """

    def __init__(self, packed: PackedColumns) -> None:
        self.packed = packed

    def made(self) -> Mapping[Key, Column]:
        """The columns as tensors, made once."""
        return self._made

    @cached_property
    def _made(self) -> Mapping[Key, Column]:
        # The first to ask may be in inference mode, while others need gradients.
        with torch.inference_mode(False):
            return self.packed.made()

    def __getitem__(self, key: Key) -> Values:
        return values_of(self._made[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self.packed.keys)

    def __len__(self) -> int:
        return len(self.packed.keys)


def values_of(column: Column) -> Values:
    """The memory of a column as arrays."""
    if isinstance(column, Jagged):
        return Ragged(array_of(column.values), array_of(column.offsets))
    return array_of(column)


def column_from(values: Values) -> Column:
    """Arrays as a column that shares their memory."""
    values = writable(values)
    if isinstance(values, Ragged):
        return Jagged(tensor_of(values.values), tensor_of(values.offsets))
    return tensor_of(values)
