"""Tensors as views of memory: of numpy arrays, which they share, and of other tensors.

numpy has no bfloat16, so an array of uint16 holds its bits; no column has uint16 values.

The garbage collector need not look at most views. Hundreds of tensors a batch, alive while their
batches wait, made it run for a quarter of the CPU time of wide tables: it looks at each of them
several times, and as they outlive its young generations, at every object of the process. A view of
ids or offsets refers to no Python object, so it is part of no cycle, and reference counts alone
free it. Views of floats stay tracked: whoever asks for their gradients may attach functions to them
that refer to the batch, and thereby to the view itself.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from featstore.native import kernels
from featstore.reading.buffers import Array

# Ends the collector's tracking of the objects in a tuple, which refer to none that it tracks.
untrack = kernels.untrack


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


def split(tensor: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Consecutive views of a tensor in one call, a tenth of the time that slicing each takes. The
    collector tracks only those of floats.

    Args:
        tensor: (num_elements,) or more dimensions.
        sizes: Length of each view in the first dimension; all of them together are its length.
    """
    parts: tuple[torch.Tensor, ...] = tuple(torch.unsafe_split_with_sizes(tensor, list(sizes)))
    if not tensor.is_floating_point():
        untrack(parts)
    return parts
