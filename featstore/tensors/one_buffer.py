"""Columns of any dtypes in one buffer, so that a batch moves as one copy, or as one piece of shared
memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from featstore.tensors.batch import Column, Columns, Jagged, column_of, shaped
from featstore.tensors.column_keys import Key, Keys

# Where a tensor lies: (dtype, first byte, shape).
Place = tuple[torch.dtype, int, tuple[int, ...]]
Allocate = Callable[[int], torch.Tensor]
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class OneBuffer:
    """`memory`: uint8 (num_bytes,), any device. `places`: of each column's values and, where it is
    jagged, offsets, each aligned to 64 bytes. Memory from `end` on is somebody else's."""

    memory: torch.Tensor
    places: Mapping[Key, tuple[Place, ...]]
    end: int

    @property
    def keys(self) -> Keys:
        return Keys(self.places)

    def made(self) -> dict[Key, Column]:
        flat = {
            dtype: iter(self._flat(dtype))
            for dtype in {dtype for of in self.places.values() for dtype, _, _ in of}
        }
        return {
            key: column_of([shaped(next(flat[dtype]), shape) for dtype, _, shape in of])
            for key, of in self.places.items()
        }

    def packed(self) -> "OneBuffer":
        return self._in(self.memory[: self.end].clone())

    def moved(self, *, pin: bool = False, **how: Any) -> "OneBuffer":
        memory = self.memory[: self.end]
        return self._in(memory.pin_memory() if pin else memory.to(**how))

    def _in(self, memory: torch.Tensor) -> "OneBuffer":
        return OneBuffer(memory=memory, places=self.places, end=self.end)

    def _flat(self, dtype: torch.dtype) -> Sequence[torch.Tensor]:
        """The tensors of a dtype in the order of their places, flat: one call makes all, and what
        lies between.
        """
        sizes, at = list[int](), 0
        for first, shape in (
            (first, shape)
            for of in self.places.values()
            for found, first, shape in of
            if found == dtype
        ):
            count = prod(shape)
            sizes += [first // dtype.itemsize - at, count]
            at += sizes[-2] + count
        memory = self.memory[: at * dtype.itemsize].view(dtype)
        return torch.unsafe_split_with_sizes(memory, sizes)[1::2]


@dataclass
class Layout:
    """Where columns will lie, decided before there is memory for them."""

    places: dict[Key, tuple[Place, ...]] = field(default_factory=dict)
    tensors: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    end: int = 0

    def add(self, key: Key, column: Column) -> None:
        for tensor in (column.values, column.offsets) if isinstance(column, Jagged) else (column,):
            first = aligned(self.end)
            self.places[key] = (
                *self.places.get(key, ()),
                (tensor.dtype, first, tuple(tensor.shape)),
            )
            self.tensors.append((first, tensor))
            self.end = first + tensor.numel() * tensor.itemsize


def in_one_buffer(
    columns: Columns, allocate: Allocate = lambda size: torch.empty(size, dtype=torch.uint8)
) -> OneBuffer:
    """Copies the columns, which are on the CPU, into memory that `allocate(num_bytes)` gives:
    uint8, as long or longer.

    By numpy: torch's copies wake threads of its own, which then spin on the cores that decode.
    """
    layout = Layout()
    for key, column in columns.made().items():
        layout.add(key, column)
    memory = allocate(layout.end)
    target = memory.numpy()
    for first, tensor in layout.tensors:
        array = tensor.numpy().reshape(-1)
        target[first : first + array.nbytes].view(array.dtype)[:] = array
    return OneBuffer(memory=memory, places=layout.places, end=layout.end)


def aligned(num_bytes: int) -> int:
    """The next place that any dtype may begin at."""
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
