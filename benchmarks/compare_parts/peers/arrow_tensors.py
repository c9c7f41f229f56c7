"""Arrow to tensors, without a copy where nothing is missing."""

from typing import Any

import pyarrow as pa
import torch
from torch.utils.dlpack import from_dlpack


def to_tensors(rows: Any) -> dict[str, Any]:
    """A record batch or table, its columns as tensors."""
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks().to_batches()[0]
    return {name: _column(rows.column(name)) for name in rows.schema.names}


def _column(array: pa.Array) -> Any:
    if not pa.types.is_list(array.type) and not pa.types.is_large_list(array.type):
        return _tensor(array)
    offsets = from_dlpack(array.offsets).long()
    return _tensor(array.flatten()), offsets - offsets[0]


def _tensor(array: pa.Array) -> torch.Tensor:
    missing = float("nan") if pa.types.is_floating(array.type) else 0
    return from_dlpack(array.fill_null(missing))
