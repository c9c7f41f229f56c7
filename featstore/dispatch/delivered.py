"""What was delivered of a split, as ranges of rows in its delivery order. Pure functions, shared by
leases, loader states and receipts.
"""

from collections.abc import Mapping
from typing import Literal

from featstore.dispatch.lease import Extent
from featstore.dispatch.plan import Split

# Ranges of rows, ends excluded: ascending, disjoint, not empty.
Ranges = tuple[tuple[int, int], ...]
# What was delivered of one split: a number of first rows, all of it, or ranges.
Rows = int | Literal["complete"] | Ranges
# What was delivered, by position in the plan.
Done = Mapping[int, Rows]


def as_ranges(rows: Rows, num_rows: int) -> Ranges:
    """What was delivered of a split of `num_rows` rows, as ranges."""
    if isinstance(rows, tuple):
        return rows
    through = num_rows if rows == "complete" else int(rows)
    return ((0, through),) if through else ()


def compact(ranges: Ranges) -> int | Ranges:
    """The inverse of `as_ranges`: a number if these are the split's first rows, else the ranges."""
    if not ranges:
        return 0
    return ranges[0][1] if len(ranges) == 1 and ranges[0][0] == 0 else ranges


def extent(split: Split, rows: Rows) -> Extent:
    """What is left of a split to claim.

    Rows delivered at its start and end are left out. Those in the middle become cuts: the part
    after each of them is claimed separately.
    """
    ranges = list(as_ranges(rows, split.num_rows))
    start = ranges.pop(0)[1] if ranges and ranges[0][0] == 0 else 0
    end = ranges.pop()[0] if ranges and ranges[-1][1] == split.num_rows else split.num_rows
    return Extent(
        split=split.id, start_row=start, end=end, cuts=tuple(first for first, _ in ranges)
    )


def part_extent(split: Split, rows: Rows, start: int, end: int) -> Extent:
    """The part from `start` to `end`, without the delivered rows at its start."""
    through = next((end for first, end in as_ranges(rows, split.num_rows) if first == start), start)
    return Extent(split=split.id, start_row=through, end=end)
