"""Caps the values of one list slot in a batch: batches of about equal cost, whose rows differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from featstore.base.errors import ConfigError, require_integer
from featstore.base.intervals import capped_cuts, fitting_end
from featstore.loader.batches.blocks import Block
from featstore.loader.request.decode import WindowColumns
from featstore.reading.buffers import Array, Ragged, Values
from featstore.tensors.column_arrays import SLOT, Key


@dataclass(frozen=True, kw_only=True)
class BatchCap:
    """How many values of a list slot a batch may have. A batch ends before the row that would
    exceed it, or at `batch_size` rows.

    Attributes:
        max_values: The most values of the slot in a batch, as they are delivered: after `max_len`.
        of: A list slot that is selected without `pad`.

    Raises:
        ConfigError: `max_values` is not an integer of 1 or more, or `of` is no name.
    """

    max_values: int
    of: str

    def __post_init__(self) -> None:
        require_integer("batch.max_values", self.max_values)
        if not isinstance(self.of, str):
            raise ConfigError(f"batch.of: expected the name of a list slot, found {self.of!r}")

    def num_values(self, block: Block) -> int:
        """The values of the block's rows."""
        if not len(block):
            return 0
        offsets = self._lists(block.columns).offsets
        return int(offsets[block.end]) - int(offsets[block.begin])

    def parts(self, block: Block, batch_size: int, missing: int, room: int) -> Iterator[Block]:
        """The block's rows in slices, each of one batch. An empty block gives one empty slice.

        Args:
            block: The block.
            batch_size: The most rows of a batch.
            missing: How many rows the batch that is being made may still have.
            room: How many values it may still have. If not even the first row fits, the first slice
                is of the next batch.

        Raises:
            ConfigError: A row alone exceeds the cap.
        """
        first = block.begin
        if first == block.end:
            yield block.slice(first, first)
            return
        offsets = self._lists(block.columns).offsets
        while first < block.end:
            end = fitting_end(offsets, first, min(block.end, first + missing), room)
            if first < end:
                yield block.slice(first, end)
            elif room == self.max_values:
                raise self._error(block.slice(first, first + 1))
            first, missing, room = end, batch_size, self.max_values

    def lengths(self, columns: WindowColumns) -> Array:
        """The length of each list."""
        return columns.lengths((SLOT, self.of))

    def cuts(self, lengths: Array, batch_size: int) -> list[int]:
        """Where batches begin and end, from 0 to the number of rows. A row above the cap is alone;
        `parts` refuses it.

        Args:
            lengths: The length of each list: (num_rows,), at least one.
            batch_size: The most rows of a batch.
        """
        return capped_cuts(lengths, self.max_values, batch_size)

    def _lists(self, columns: Mapping[Key, Values]) -> Ragged:
        values = columns[SLOT, self.of]
        assert isinstance(values, Ragged)
        return values

    def _error(self, row: Block) -> ConfigError:
        [(source, _, _)] = row.places()
        found = self.num_values(row)
        return ConfigError(
            f"batch.max_values: expected at most {self.max_values:,} values of {self.of!r} in each "
            f"row, found {found:,} in a row of {source.claim.split.path}: raise max_values, or cut "
            f"longer lists with slots: {{name: {self.of}, max_len: {self.max_values}}}"
        )
