"""What a batch stands for: rows of splits' streams that are delivered with it. Without torch."""

from typing import NamedTuple

from featstore.dispatch.leases.delivered import Rows, as_ranges, compact
from featstore.intervals import united

ClaimKey = tuple[int, int, int]  # Claim.key


class Segment(NamedTuple):
    """A split's stream is delivered from row `part` through row `through`.

    Attributes:
        split_index: The split's position in the plan.
        fence: That of the claim under which the rows were read.
        through: The row of the stream before which all is delivered.
        is_complete: Whether this is the end of the claim.
        part: The row at which the claim's part of the split begins.
        split_rows: How many rows the split has, where that is known.
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
    """What is delivered with a batch, or, where `is_batch` is false, without one: rows that were
    filtered out or dropped.

    Attributes:
        segments: One for each split that the batch has rows of, or more, in order.
        num_dropped_rows: Rows that `drop_last` leaves out.
        is_batch: Whether there is a batch.
    """

    segments: tuple[Segment, ...]
    num_dropped_rows: int = 0
    is_batch: bool = True


def delivered(before: Rows, segment: Segment) -> Rows:
    """What is delivered of the segment's split, `before` so far, once the segment is."""
    if isinstance(before, int) and segment.part == 0 and not segment.is_complete:
        return max(before, segment.through)  # The common case, without ranges.
    split_rows = segment.through if segment.split_rows is None else segment.split_rows
    ranges = united([*as_ranges(before, split_rows), (segment.part, segment.through)])
    is_whole = ranges == (((0, split_rows),) if split_rows else ())
    is_complete = before == "complete" or (segment.is_complete and is_whole)
    return "complete" if is_complete else compact(ranges)
