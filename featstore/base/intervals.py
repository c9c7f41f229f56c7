"""Spans: half-open intervals `(first, end)` of rows or bytes. And sizes that fit an alignment."""

from collections.abc import Iterable

Span = tuple[int, int]


def united(intervals: Iterable[Span], hole: int = 0) -> tuple[Span, ...]:
    """The union of intervals that may overlap, touch or be empty; in order.

    Args:
        intervals: In any order.
        hole: Two intervals with no more than this between them become one.
    """
    union: list[Span] = []
    for first, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if union and first - union[-1][1] <= hole:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((first, end))
    return tuple(union)


def aligned(num_bytes: int, alignment: int = 64) -> int:
    """The least multiple of `alignment` that is not below `num_bytes`.

    64 bytes are a cache line, the alignment that Arrow and torch give their buffers, and more than
    any dtype needs.
    """
    return -(-num_bytes // alignment) * alignment
