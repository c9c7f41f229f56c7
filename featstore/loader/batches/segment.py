"""What a batch stands for: stretches of splits' streams, and what is delivered of a split once one
of them is. Without torch."""

from typing import NamedTuple

from featstore.dispatch.leases.delivered import Rows, as_ranges, compact, united

ClaimKey = tuple[int, int, int]  # Claim.key


class Segment(NamedTuple):
    """A split's stream has been delivered from row `part` through row `through`, under the claim
    of this fence; `is_complete`: to the claim's end. `split_rows` is how many rows the split has,
    where that is known."""

    split_index: int
    fence: int
    through: int
    is_complete: bool
    part: int = 0
    split_rows: int | None = None

    @property
    def claim_key(self) -> ClaimKey:
        return (self.split_index, self.part, self.fence)


def delivered(before: Rows, segment: Segment) -> Rows:
    """What is delivered of the segment's split, `before` so far, once the segment is."""
    if isinstance(before, int) and segment.part == 0 and not segment.is_complete:
        return max(before, segment.through)  # What most batches are.
    split_rows = segment.through if segment.split_rows is None else segment.split_rows
    ranges = united(as_ranges(before, split_rows), [(segment.part, segment.through)])
    is_whole = ranges == (((0, split_rows),) if split_rows else ())
    is_complete = before == "complete" or (segment.is_complete and is_whole)
    return "complete" if is_complete else compact(ranges)
