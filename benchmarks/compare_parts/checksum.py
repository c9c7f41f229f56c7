"""What was read, as sums that are the same for equal rows in any order, and which rows came."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def checksum(batches: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Rows, ids that are not missing, their sum, and the sum of the floats' bits, modulo 2^64; a
    label counts as float32. And the number of batches, which is no part of what is equal.
    """
    found = dict.fromkeys(("rows", "num_ids", "ids", "bits", "batches"), 0)
    for batch in batches:
        found["batches"] += 1
        for number, column in enumerate(batch.values()):
            values, offsets = column if isinstance(column, tuple) else (column, None)
            values = np.asarray(values)
            if not number:
                found["rows"] += len(values) if offsets is None else len(offsets) - 1
            if values.dtype == np.int64 and number < len(batch) - 1:
                found["num_ids"] += int(np.count_nonzero(values))
                found["ids"] += int(values.view(np.uint64).sum(dtype=np.uint64))
            else:
                floats = np.ascontiguousarray(values, dtype=np.float32)
                known = floats[~np.isnan(floats)].view(np.uint32)
                found["bits"] += int(known.sum(dtype=np.uint64))
    return {name: number % 2**64 for name, number in found.items()}


def missing_and_twice(rows: np.ndarray, num_rows: int) -> tuple[int, int]:
    """How many of the rows 1 to `num_rows` did not come, and how many came again."""
    times = np.bincount(rows, minlength=num_rows + 1)[1:]
    return int((times == 0).sum()), int((times[times > 0] - 1).sum())
