"""Spans: half-open intervals `(first, end)` of rows or bytes. Sizes that fit an alignment. Evenly
spaced items.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

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


MOST_SAMPLED = 16  # files, or row groups, of which a sample reads some rows, if they have enough
_Item = TypeVar("_Item")


def spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` of the items, spread evenly over all of them."""
    num = min(most, len(items))
    return [items[i * len(items) // num] for i in range(num)]


def spread_with_rows(
    items: Sequence[_Item], rows_of: Callable[[_Item], int], num_rows: int
) -> list[_Item]:
    """Evenly spaced items: 16 of them, more if these have fewer than so many rows, at most all.

    Args:
        items: Files, or row groups.
        rows_of: The rows of one.
        num_rows: How many rows are wanted.
    """
    most = MOST_SAMPLED
    while True:
        chosen = spread(items, most)
        if len(chosen) == len(items) or sum(map(rows_of, chosen)) >= num_rows:
            return chosen
        most *= 2
