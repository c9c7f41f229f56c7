"""Tensors that share the memory of numpy arrays. numpy has no bfloat16, so an array of uint16 holds
its bits; no column has uint16 values.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from featstore.reading.buffers import Array


def tensor_of(array: Array) -> torch.Tensor:
    """The array's memory as a tensor; uint16 becomes bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def array_of(tensor: torch.Tensor) -> Array:
    """The memory of a CPU tensor as an array; bfloat16 becomes uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@cache
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The dtype of `tensor_of` an array of this dtype."""
    return tensor_of(np.empty(0, dtype)).dtype
