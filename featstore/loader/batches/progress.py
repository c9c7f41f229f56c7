"""The progress that a batch stands for: which rows of which splits are delivered with it. Imports
no torch.
"""

from typing import NamedTuple

from featstore.base.intervals import united
from featstore.dispatch.plan import Rows, as_ranges, compact

ClaimKey = tuple[int, int, int]  # Claim.key


class Segment(NamedTuple):
    """Says that a split's stream is delivered from row `part` up to row `through`.

    Attributes:
        split_index: The split's position in the plan.
        fence: The fence of the claim under which the rows were read.
        through: All rows of the stream before this one are delivered.
        is_complete: Whether the claim ends here.
        part: The row at which the claim's part of the split begins.
        split_rows: How many rows the split has; None: unknown.
    """

    split_index: int
    fence: int
    through: int
    is_complete: bool
    part: int = 0
    split_rows: int | None = None

    @property
    def claim_key(self) -> ClaimKey:
        return (self.split_index, self.part, self.fence)


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
    if isinstance(before, int) and segment.part == 0 and not segment.is_complete:
        return max(before, segment.through)  # The common case, which needs no ranges.
    split_rows = segment.through if segment.split_rows is None else segment.split_rows
    ranges = united([*as_ranges(before, split_rows), (segment.part, segment.through)])
    is_whole = ranges == (((0, split_rows),) if split_rows else ())
    is_complete = before == "complete" or (segment.is_complete and is_whole)
    return "complete" if is_complete else compact(ranges)
