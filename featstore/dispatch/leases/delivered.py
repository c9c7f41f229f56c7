"""What was delivered of a split, as ranges of rows in its delivery order. Pure; shared by leases,
states and receipts.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from featstore.dispatch.leases.lease import Extent
from featstore.dispatch.plan import Split

Ranges = tuple[tuple[int, int], ...]
Rows = int | Literal["complete"] | Ranges
Done = Mapping[int, Rows]


def as_ranges(rows: Rows, num_rows: int) -> Ranges:
    """Ranges, ends excluded, of what is said by a count of first rows, by "complete", or by
    ranges.
    """
    if isinstance(rows, tuple):
        return rows
    through = num_rows if rows == "complete" else int(rows)
    return ((0, through),) if through else ()


def united(*ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union: ascending, apart from each other, none empty."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(pair for each in ranges for pair in each if pair[0] < pair[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)


def compact(ranges: Ranges) -> int | Ranges:
    """A count where the ranges are the split's first rows, else the ranges."""
    if not ranges:
        return 0
    return ranges[0][1] if len(ranges) == 1 and ranges[0][0] == 0 else ranges


def extent(split: Split, rows: Rows) -> Extent:
    """What is left of a split: delivered rows at its start and end fall away, those in its middle
    become cuts.
    """
    ranges = list(as_ranges(rows, split.num_rows))
    start = ranges.pop(0)[1] if ranges and ranges[0][0] == 0 else 0
    end = ranges.pop()[0] if ranges and ranges[-1][1] == split.num_rows else split.num_rows
    return Extent(
        split=split.id, start_row=start, end=end, cuts=tuple(first for first, _ in ranges)
    )


def part_extent(split: Split, rows: Rows, start: int, end: int) -> Extent:
    """The part that begins at `start`: after what was delivered there."""
    through = next((end for first, end in as_ranges(rows, split.num_rows) if first == start), start)
    return Extent(split=split.id, start_row=through, end=end)
