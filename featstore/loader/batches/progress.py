"""Which rows of which splits a block covers, and the progress that a batch stands for: what is
delivered with it. Imports no torch.
"""

from typing import NamedTuple

import numpy as np

from featstore.base.intervals import united
from featstore.dispatch.plan import Rows, as_ranges, compact
from featstore.dispatch.terms import Claim
from featstore.reading.buffers import Array

ClaimKey = tuple[int, int, int]  # Claim.key


class Segment(NamedTuple):
    """Says that a split's stream is delivered from its claim's part up to row `through`.

    Attributes:
        claim: The claim under which the rows were read.
        through: All rows of the stream before this one are delivered.
        is_complete: Whether the claim ends here.
    """

    claim: Claim
    through: int
    is_complete: bool


class BlockSource(NamedTuple):
    """Which rows of one split's stream a block covers. The stream counts every row of the split,
    whether it is delivered or left out.

    Attributes:
        claim: The claim under which the rows were read.
        first_row: The first row of the stream that is covered.
        end_row: The row after the last one.
        is_last: Whether the claim ends here.
        places: The rows that passed the filters, counted from `first_row`: int64 (num_rows,); None:
            all rows did.
    """

    claim: Claim
    first_row: int
    end_row: int
    is_last: bool
    places: Array | None = None

    @property
    def is_empty(self) -> bool:
        """Whether only the end of a claim is covered."""
        return self.first_row == self.end_row

    def through(self, row: int, num_rows: int) -> int:
        """The row of the stream up to which everything is delivered once `row` of the block's
        `num_rows` rows are.
        """
        return self.end_row if row == num_rows else self.after(row)

    def after(self, row: int) -> int:
        """The row of the stream after the first `row` rows of the block."""
        if self.places is None or not row:
            return self.first_row + row
        return self.first_row + int(self.places[row - 1]) + 1

    def segment(self, row: int, num_rows: int) -> Segment:
        """The segment that is delivered once `row` of the block's `num_rows` rows are."""
        if row == num_rows:
            return Segment(self.claim, self.end_row, self.is_last)
        return Segment(self.claim, self.after(row), is_complete=False)

    def between(self, begin: int, end: int, num_rows: int) -> "BlockSource":
        """The source of rows `begin` to `end` of a block of `num_rows` rows. Without rows it begins
        after the last one, since the rows that are left out after that belong to it.
        """
        first_row = self.through(begin, num_rows) if begin < end else self.after(begin)
        end_row, is_last = self.through(end, num_rows), self.is_last and end == num_rows
        places = self.places
        if places is not None:
            places = places[begin:end] - (first_row - self.first_row)
        return BlockSource(self.claim, first_row, end_row, is_last, places)

    def row_at(self, position: int) -> int:
        """The first row of the block that is at or after `position` in the stream."""
        ahead = max(0, position - self.first_row)
        return ahead if self.places is None else int(np.searchsorted(self.places, ahead))


class Progress(NamedTuple):
    """What is delivered with a batch, or, if `is_batch` is false, without one: rows that were
    filtered out or dropped.

    Attributes:
        segments: In order; at least one for each split of which the batch has rows.
        num_dropped_rows: Rows that `drop_last` leaves out.
        is_batch: Whether there is a batch.
    """

    segments: tuple[Segment, ...]
    num_dropped_rows: int = 0
    is_batch: bool = True


def delivered(before: Rows, segment: Segment) -> Rows:
    """What is delivered of a split once the segment is, given what was delivered before."""
    part, split_rows = segment.claim.part, segment.claim.split.num_rows
    if isinstance(before, int) and part == 0 and not segment.is_complete:
        return max(before, segment.through)  # The common case, which needs no ranges.
    ranges = united([*as_ranges(before, split_rows), (part, segment.through)])
    is_whole = ranges == (((0, split_rows),) if split_rows else ())
    is_complete = before == "complete" or (segment.is_complete and is_whole)
    return "complete" if is_complete else compact(ranges)
