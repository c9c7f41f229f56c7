"""Arrays and tensors of one memory. numpy has no bfloat16: an array of uint16, which no column is otherwise, holds its bits."""

import numpy as np
import torch

from featstore.reading.columns import Array


def tensor_of(array: Array) -> torch.Tensor:
    """The array's memory as a tensor; the bits of uint16 are those of bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def array_of(tensor: torch.Tensor) -> Array:
    """The other way: the memory of a tensor on the CPU."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def bfloat16_bits(values: Array) -> Array:
    """float32 values rounded to bfloat16, half to even, as uint16; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
