"""Caps the values of one list slot in a batch: batches of about equal cost, whose rows differ."""

from dataclasses import dataclass

import numpy as np

from featstore.base.errors import ConfigError, require_integer
from featstore.base.intervals import capped_cuts
from featstore.loader.batches.blocks import Block
from featstore.loader.request.decode import WindowColumns
from featstore.ops.lists import offsets_from
from featstore.reading.buffers import Array, Ragged, SharedLists
from featstore.tensors.column_arrays import SLOT


@dataclass(frozen=True, kw_only=True)
class BatchCap:
    """How many values of a list slot a batch may have. A batch ends before the row that would
    exceed it, or at `batch_size` rows.

    Attributes:
        max_values: The most values of the slot that the rows of a batch have, after `max_len`;
            those that rows share count for each of them.
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
        offsets = self._offsets(block)
        return int(offsets[block.end]) - int(offsets[block.begin])

    def batch_ends(self, block: Block, batch_size: int, begun: tuple[int, int]) -> Array:
        """The rows of the block at which batches end, whatever rows come after the block.

        Args:
            block: The block.
            batch_size: The most rows of a batch.
            begun: The rows and values of the batch that is being made. It ends at the block's first
                row if that does not fit.
        """
        offsets = self._offsets(block)[block.begin : block.end + 1]
        cuts = capped_cuts(offsets, self.max_values, batch_size, begun)
        if len(cuts) > 1 and cuts[-1] - cuts[-2] < batch_size - (begun[0] if len(cuts) == 2 else 0):
            cuts.pop()  # Further rows may fit.
        ends: Array = np.array(cuts[1:], np.int64) + block.begin
        return ends

    def lengths(self, columns: WindowColumns) -> Array:
        """The length of each list."""
        return columns.lengths((SLOT, self.of))

    def cuts(self, lengths: Array, batch_size: int) -> list[int]:
        """Where batches begin and end, from 0 to the number of rows. A row above the cap is alone.

        Args:
            lengths: The length of each list: (num_rows,), at least one.
            batch_size: The most rows of a batch.
        """
        return capped_cuts(offsets_from(lengths), self.max_values, batch_size)

    def require_within(self, part: Block) -> None:
        """ConfigError if a row alone, which is all of this slice then, exceeds the cap."""
        num_values = self.num_values(part)
        if num_values > self.max_values:
            [(source, _, _)] = part.places()
            raise ConfigError(
                f"batch.max_values: expected at most {self.max_values:,} values of {self.of!r} in "
                f"each row, found {num_values:,} in a row of {source.claim.split.path}: raise "
                f"max_values, or cut longer lists with {self._cut()}"
            )

    def _cut(self) -> str:
        """The option that cuts the lists."""
        return f"slots: [{{name: {self.of}, max_len: {self.max_values}}}]"

    def _offsets(self, block: Block) -> Array:
        """Where the lists of all rows begin and end, one after the other: (num_rows + 1,)."""
        values = block.columns[SLOT, self.of]
        assert isinstance(values, Ragged | SharedLists)
        return values.offsets if isinstance(values, Ragged) else offsets_from(values.lengths)


@dataclass(frozen=True, kw_only=True)
class HistoryCap(BatchCap):
    """A cap of a slot of a history, of which all slots have lists of one length.

    Attributes:
        history: The history's name.
    """

    history: str

    def _cut(self) -> str:
        return f"histories: {{{self.history}: {{max_len: {self.max_values}}}}}"
