"""Downsampling of negatives: a hash chooses which rows with label 0 are kept, and their weights are
raised to match.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featstore.base.errors import ConfigError
from featstore.ops import hashing
from featstore.reading.buffers import Array


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """Which rows with label 0 are kept.

    A row is kept if the hash of its key is below `rate`, so the rows of a lower rate are among
    those of a higher one. Kept rows have their weight multiplied by 1 / rate.

    Attributes:
        label: The label whose value 0 marks a negative.
        rate: Share of the negatives that are kept, above 0 and at most 1.
        seed: Seed of the hash, an int32.
        column: The row's key, as in the operator `sample(column, rate, seed)`. None: the path of
            its data file and its position in it.

    Raises:
        ConfigError: `rate` or `seed` is out of range.
    """

    label: str
    rate: float
    seed: int = 0
    column: str | None = None

    def __post_init__(self) -> None:
        is_rate = (
            isinstance(self.rate, int | float)
            and not isinstance(self.rate, bool)
            and 0 < self.rate <= 1
        )
        if not is_rate:
            raise ConfigError(
                f"negatives.rate: expected a number above 0 and up to 1, found {self.rate!r}"
            )
        is_seed = (
            isinstance(self.seed, int)
            and not isinstance(self.seed, bool)
            and -(2**31) <= self.seed < 2**31
        )
        if not is_seed:
            raise ConfigError(f"negatives.seed: expected an int32, found {self.seed!r}")

    @property
    def columns(self) -> set[str]:
        """The columns that are read to choose rows."""
        return {self.label} if self.column is None else {self.label, self.column}

    def keeps(self, *hashes: pa.Array) -> Array:
        """Which rows would be kept as negatives: bool (num_rows,).

        Args:
            hashes: Value hashes of the rows' keys, int64 (num_rows,) each.
        """
        if self.rate >= 1:
            return np.ones(len(hashes[0]), bool)
        return np.asarray(hashing.sign(self.seed, *hashes)) < int(self.rate * 2**63)

    def weighted(self, labels: Array, weights: Array | None) -> Array:
        """The weights of delivered rows: float32 (num_rows,).

        Args:
            labels: (num_rows,).
            weights: Weights as read, (num_rows,); None stands for ones.
        """
        factors = np.where(labels == 0, np.float32(1 / self.rate), np.float32(1))
        return factors if weights is None else weights * factors


def position_hashes(path: str, first_row: int, num_rows: int) -> tuple[pa.Array, pa.Array]:
    """Value hashes of rows that have no key: of their file's path, and of their numbers in it."""
    path_hash = hashing.value_hash(pa.array([path]))[0].as_py()
    rows = pa.array(np.arange(first_row, first_row + num_rows))
    return pa.array(np.full(num_rows, path_hash, np.int64)), hashing.value_hash(rows)
