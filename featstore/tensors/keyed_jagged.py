"""Ids of several slots as one TorchRec KeyedJaggedTensor. Only this needs torchrec."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from featstore.base.errors import MissingDependencyError

# The values of one slot, (num_values,), and the number of values of each row, int64 (num_rows,).
Bag = tuple[torch.Tensor, torch.Tensor]


def keyed_jagged(names: Sequence[str], bags: Sequence[Bag]) -> Any:
    """The KeyedJaggedTensor of these slots.

    Args:
        names: The slots' names, which become the keys.
        bags: Their values and lengths.

    Raises:
        MissingDependencyError: torchrec is not installed, or does not fit torch.
    """
    values, lengths = join_bags(bags)
    return _torchrec().KeyedJaggedTensor(keys=list(names), values=values, lengths=lengths)


def join_bags(bags: Sequence[Bag]) -> Bag:
    """The concatenated values of all slots, int64 unless all are int32, and their concatenated
    lengths, (num_slots * num_rows,).
    """
    return _joined([values for values, _ in bags]), _joined([lengths for _, lengths in bags])


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenates with numpy on the CPU: `torch.cat` wakes torch's threads, which then spin on the
    cores that decode.
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
