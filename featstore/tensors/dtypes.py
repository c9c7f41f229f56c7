"""Arrays and tensors of one memory. numpy has no bfloat16: an array of uint16, which no column is
otherwise, holds its bits.
"""

import numpy as np
import torch

from featstore.reading.buffers import Array


def tensor_of(array: Array) -> torch.Tensor:
    """The array's memory as a tensor; the bits of uint16 are those of bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def array_of(tensor: torch.Tensor) -> Array:
    """The other way: the memory of a tensor on the CPU."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
