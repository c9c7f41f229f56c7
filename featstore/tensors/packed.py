"""Columns packed into one buffer per dtype, so that moving a batch is a handful of copies and not
hundreds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from featstore.tensors.batch import Column, Columns, Jagged, column_of, shaped
from featstore.tensors.column_keys import Key, Keys
from featstore.tensors.dtypes import array_of, tensor_of

# (dtype, first element, shape) of one tensor in the buffer of its dtype.
Place = tuple[torch.dtype, int, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Buffers by dtype, and for each column the place of its values and, where it is jagged, of its
    offsets: in a buffer they lie one after the other, in this order, and fill it."""

    buffers: Mapping[torch.dtype, torch.Tensor]
    places: Mapping[Key, tuple[Place, ...]]

    @property
    def keys(self) -> Keys:
        return Keys(self.places)

    def made(self) -> dict[Key, Column]:
        sizes: dict[torch.dtype, list[int]] = {dtype: [] for dtype in self.buffers}
        for places in self.places.values():
            for dtype, _, shape in places:
                sizes[dtype].append(prod(shape))
        flat = {
            dtype: iter(torch.unsafe_split_with_sizes(buffer, sizes[dtype]))
            for dtype, buffer in self.buffers.items()
        }
        return {
            key: column_of([shaped(next(flat[dtype]), shape) for dtype, _, shape in of])
            for key, of in self.places.items()
        }

    def packed(self) -> "Packed":
        return Packed(
            buffers={dtype: buffer.clone() for dtype, buffer in self.buffers.items()},
            places=self.places,
        )

    def moved(self, *, pin: bool = False, **how: Any) -> "Packed":
        moved = {
            dtype: buffer.pin_memory() if pin else buffer.to(**how)
            for dtype, buffer in self.buffers.items()
        }
        return Packed(buffers=moved, places=self.places)


def pack(columns: Columns) -> Packed:
    """Copies the columns into buffers of their own: one copy of each value. By numpy, as in
    one_buffer.py.
    """
    places: dict[Key, tuple[Place, ...]] = {}
    parts: dict[torch.dtype, list[npt.NDArray[Any]]] = {}
    filled: dict[torch.dtype, int] = {}
    for key, column in columns.made().items():
        tensors = (column.values, column.offsets) if isinstance(column, Jagged) else (column,)
        for tensor in tensors:
            start = filled.get(tensor.dtype, 0)
            places[key] = (*places.get(key, ()), (tensor.dtype, start, tuple(tensor.shape)))
            parts.setdefault(tensor.dtype, []).append(array_of(tensor.reshape(-1)))
            filled[tensor.dtype] = start + tensor.numel()
    buffers = {
        dtype: tensor_of(np.concatenate(arrays)).view(dtype) for dtype, arrays in parts.items()
    }
    return Packed(buffers=buffers, places=places)
