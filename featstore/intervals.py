"""Half-open intervals `(first, end)` of whole numbers, as rows and bytes come in."""

from collections.abc import Iterable

Interval = tuple[int, int]


def united(intervals: Iterable[Interval], hole: int = 0) -> tuple[Interval, ...]:
    """The union of intervals that may overlap, touch or be empty; in order.

    Args:
        intervals: In any order.
        hole: Two intervals with no more than this between them become one.
    """
    union: list[Interval] = []
    for first, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if union and first - union[-1][1] <= hole:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((first, end))
    return tuple(union)
