"""Which row comes at which position of an epoch, without a list of rows."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, overload

import numpy as np

from featstore.base.errors import ConfigError, require_integer
from featstore.base.processes import cached_property
from featstore.base.splitmix import CumulativeWeights
from featstore.samples.batches_by_cost import BatchesByCost
from featstore.samples.indices import Array, is_single, positions_of
from featstore.samples.order_batches import (
    ORDER_ROWS,
    OrderBatches,
    OrderRows,
    digest_of,
)
from featstore.samples.permutation import (
    MOST_ROWS,
    Permutation,
    WeightedDraws,
    WindowedPermutation,
    rows_of_groups,
)


class RandomOrder:
    """The rows of an epoch in random order, as a sequence that is computed on access.

    The same arguments give the same order on every machine and with every version (the order is
    part of the file formats in docs/contracts.md). It takes no memory, except for weights. It never
    changes, so threads and processes may share it.

        order = RandomOrder(len(samples), seed=1, epoch=0)
        order[0], order[10:20]                             # a row, and int64 rows
        for rows in order.batches(4096): samples[rows]     # resumable, shared among ranks
        DataLoader(samples, sampler=order)                 # or batch_sampler=order.batches(4096)

    Without options every row comes once.

    Args:
        num_rows: How many rows there are, at most 2^40.
        seed: Another seed is another order.
        epoch: Another epoch is another order.
        weights: A number for each row. Rows are drawn with replacement, each with a probability in
            proportion to its weight. 9 bytes for each row are kept.
        num_draws: With `weights`: how many rows are drawn, `num_rows` by default.
        row_groups: The number of rows of each row group, in the order of rows. Row groups come in
            random order, `window_groups` at a time, and the rows of these in random order before
            others are read.
        window_groups: With `row_groups`: how many are read at a time.

    Attributes:
        num_rows, seed, epoch: As above.

    Raises:
        ConfigError: An argument is out of range, or two of them do not go together.
    """

    def __init__(
        self,
        num_rows: int,
        seed: int = 0,
        epoch: int = 0,
        *,
        weights: Any = None,
        num_draws: int | None = None,
        row_groups: Any = None,
        window_groups: int | None = None,
    ) -> None:
        self.num_rows = require_integer("num_rows", num_rows, 0)
        if num_rows > MOST_ROWS:
            raise ConfigError(f"num_rows: expected at most 2^40, found {num_rows}")
        self.seed = require_integer("seed", seed, 0)
        self.epoch = require_integer("epoch", epoch, 0)
        _require_together(weights, num_draws, row_groups, window_groups)
        self._length = num_rows if num_draws is None else require_integer("num_draws", num_draws, 0)
        self._kind: str
        self._options: Array | None = None
        self._make: Callable[..., Any]
        if weights is not None:
            cumulative = CumulativeWeights(weights)
            self._options = cumulative.sums
            self._require_rows("weights", len(cumulative.sums))
            self._kind, self._make = "weighted", partial(WeightedDraws, weights=cumulative)
        elif row_groups is not None and window_groups is not None:
            require_integer("window_groups", window_groups)
            sizes = rows_of_groups(row_groups)
            self._options = np.append(sizes, window_groups)
            self._require_rows("row_groups", int(sizes.sum()))
            self._kind = "windows"
            self._make = partial(WindowedPermutation, group_rows=sizes, window_groups=window_groups)
        else:
            self._kind, self._make = "all", partial(Permutation, num_rows=num_rows)
        self._rows_at = self._rows_of_epoch()

    @property
    def identity(self) -> dict[str, Any]:
        """What the order depends on except for the epoch, as JSON data, for states."""
        return {
            "kind": self._kind,
            "num_rows": self.num_rows,
            "length": self._length,
            "seed": self.seed,
            "options": self._options_digest,
        }

    def at_epoch(self, epoch: int) -> "RandomOrder":
        """The order of another epoch, with everything else the same."""
        other = copy.copy(self)
        other.epoch = require_integer("epoch", epoch, 0)
        other._rows_at = other._rows_of_epoch()
        return other

    def batches(
        self,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> OrderBatches:
        """This rank's batches of rows, for a loop or as the `batch_sampler` of a DataLoader.

        Args:
            batch_size: Rows of a batch, of one rank.
            rank: This rank, by default RANK of the environment, or 0.
            world_size: The number of ranks, by default WORLD_SIZE of the environment, or 1.
            drop_last: Whether the last step is left out if it is not full in all ranks.

        Raises:
            ConfigError: An argument is out of range.
        """
        return OrderBatches(self, batch_size, rank, world_size, drop_last=drop_last)

    def batches_by_cost(
        self,
        lengths: Any,
        max_values: int,
        batch_size: int,
        *,
        window_rows: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> BatchesByCost:
        """This rank's batches of rows, each of which ends before the row that would exceed a cap on
        their values, for a loop or as the `batch_sampler` of a DataLoader.

        Args:
            lengths: How many values each row has, integers (num_rows,), as
                `SampleDataset.lengths` gives them. They are kept.
            max_values: The most values of a batch, of one rank.
            batch_size: The most rows of a batch, of one rank.
            window_rows: Puts similar lengths together: so many rows of the order at a time are
                sorted by length, divided into batches, and these come in random order. None keeps
                the order.
            rank: As for `batches`.
            world_size: As for `batches`.
            drop_last: Whether the last step is left out if it has fewer batches than ranks.

        Raises:
            ConfigError: An argument is out of range, or a row alone exceeds the cap.
        """
        return BatchesByCost(
            self, lengths, max_values, batch_size,
            window_rows=window_rows, rank=rank, world_size=world_size, drop_last=drop_last,
        )  # fmt: skip

    def rows(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> OrderRows:
        """This rank's rows one by one, for a loop or as the `sampler` of a DataLoader.

        Args:
            rank: As for `batches`.
            world_size: As for `batches`.
            drop_last: Whether rows are left out that not all ranks would get.

        Raises:
            ConfigError: An argument is out of range.
        """
        return OrderRows(self, 1, rank, world_size, drop_last=drop_last)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: Any) -> Array: ...

    def __getitem__(self, index: Any) -> Any:
        """The row at a position, or the rows at several: int64 (num_positions,).

        Args:
            index: An integer, a slice, or a list or an array of integers.

        Raises:
            SampleIndexError: A position is out of range.
        """
        rows = self._rows_at(positions_of(index, self._length))
        return int(rows[0]) if is_single(index) else rows

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self._length, ORDER_ROWS):
            yield from self[first : first + ORDER_ROWS].tolist()

    def __repr__(self) -> str:
        return (
            f"RandomOrder({self.num_rows}, seed={self.seed}, epoch={self.epoch}, "
            f"kind={self._kind!r})"
        )

    @cached_property
    def _options_digest(self) -> str | None:
        """Equal for equal weights, or for equal row groups and windows: 32 hex digits."""
        return None if self._options is None else digest_of(self._options)

    def _rows_of_epoch(self) -> Callable[[Array], Array]:
        """Gives the rows at positions: int64 (num_positions,) both."""
        key = f"featstore order 1 {self._kind} {self.seed} {self.epoch}"
        rows_at: Callable[[Array], Array] = self._make(key=key).at
        return rows_at

    def _require_rows(self, name: str, num_rows: int) -> None:
        if num_rows != self.num_rows:
            raise ConfigError(
                f"{name}: expected to cover {self.num_rows} rows (num_rows), found {num_rows}"
            )


def _require_together(weights: Any, num_draws: Any, row_groups: Any, window_groups: Any) -> None:
    if weights is not None and row_groups is not None:
        raise ConfigError("weights and row_groups: expected one of them, found both")
    if num_draws is not None and weights is None:
        raise ConfigError("num_draws: expected only with weights, found without")
    if (row_groups is None) != (window_groups is None):
        raise ConfigError("row_groups and window_groups: expected both or neither, found one")
