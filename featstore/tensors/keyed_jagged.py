"""Ids of several slots as one TorchRec KeyedJaggedTensor. Without torchrec everything else
works.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from featstore.errors import MissingDependencyError

# The values of one slot, (num_values,), and how many each row has of them, int64 (num_rows,).
Bag = tuple[torch.Tensor, torch.Tensor]


def keyed_jagged(names: Sequence[str], bags: Sequence[Bag]) -> Any:
    """The KeyedJaggedTensor of these slots. MissingDependencyError where torchrec is missing, or
    does not fit torch.
    """
    values, lengths = join_bags(bags)
    return _torchrec().KeyedJaggedTensor(keys=list(names), values=values, lengths=lengths)


def join_bags(bags: Sequence[Bag]) -> Bag:
    """All values, slot by slot, and all lengths, (num_slots * num_rows,); int64 unless all values
    are int32.
    """
    return _joined([values for values, _ in bags]), _joined([lengths for _, lengths in bags])


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """In numpy where it can be: `torch.cat` wakes torch's threads, which then spin on the cores
    that decode.
    """
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return torch.cat(tuple(tensors))
    return torch.from_numpy(np.concatenate([tensor.numpy() for tensor in tensors]))


def _torchrec() -> Any:
    try:
        return importlib.import_module("torchrec.sparse.jagged_tensor")
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            "to_kjt() needs torchrec, and with it the release of fbgemm-gpu (or fbgemm-gpu-cpu) "
            f"that is made for torch {torch.__version__}; it cannot be loaded: {error}"
        ) from error
