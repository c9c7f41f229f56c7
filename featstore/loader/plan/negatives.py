"""Fewer negatives: rows whose label is 0 are drawn by a hash, and those that are left weigh
more.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featstore.errors import ConfigError
from featstore.ops import hashing
from featstore.reading.buffers import Array


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """Of the rows whose `label` is 0, `rate` are kept, and weigh 1 / rate as much. ConfigError for
    what cannot be.

    Which ones follows from `seed` and the row's value of `column`, as in `sample(column, rate,
    seed)`; without a column from the path of its data file and its place in it. Those of a lower
    rate are among those of a higher one.
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
        """What has to be read to draw."""
        return {self.label} if self.column is None else {self.label, self.column}

    def drawn(self, *hashes: pa.Array) -> Array:
        """Which rows of these value hashes are kept: bool (num_rows,)."""
        if self.rate >= 1:
            return np.ones(len(hashes[0]), bool)
        return np.asarray(hashing.sign(self.seed, *hashes)) < int(self.rate * 2**63)

    def weighted(self, labels: Array, weights: Array | None) -> Array:
        """What delivered rows weigh: float32 (num_rows,)."""
        factors = np.where(labels == 0, np.float32(1 / self.rate), np.float32(1))
        return factors if weights is None else weights * factors


def place_hashes(path: str, first_row: int, num_rows: int) -> tuple[pa.Array, pa.Array]:
    """Value hashes of rows by their places: their file's path, and their numbers in it."""
    path_hash = hashing.value_hash(pa.array([path]))[0].as_py()
    rows = pa.array(np.arange(first_row, first_row + num_rows))
    return pa.array(np.full(num_rows, path_hash, np.int64)), hashing.value_hash(rows)
