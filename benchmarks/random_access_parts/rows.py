"""The rows that every side holds: a pure function of their index, so any batch can be checked."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from featstore.base.splitmix import mixed
from featstore.samples.indices import Array

NUM_SLOTS = 40
ROW_BYTES = 8 * NUM_SLOTS
_BLOCK_ROWS = 1 << 15


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of 40 ids, each an int64 of 63 bits, as signs are.

    Attributes:
        num_rows: How many there are.
    """

    num_rows: int

    def at(self, indices: Array) -> Array:
        """The rows at indices: int64 (num_indices, 40)."""
        cells = indices.astype(np.uint64)[:, None] * np.uint64(NUM_SLOTS)
        values = mixed(cells + np.arange(1, NUM_SLOTS + 1, dtype=np.uint64))
        return (values >> np.uint64(1)).view(np.int64)

    def blocks(self) -> Iterator[Array]:
        """All rows in order, some thousands at a time."""
        for first in range(0, self.num_rows, _BLOCK_ROWS):
            yield self.at(np.arange(first, min(first + _BLOCK_ROWS, self.num_rows)))
