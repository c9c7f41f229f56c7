"""Spans: half-open intervals `(first, end)` of rows or bytes. Sizes that fit an alignment. Batches
that fit a cap. Evenly spaced items.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


def num_bytes(spans: Iterable[Span]) -> int:
    """The total length of spans that do not overlap."""
    return sum(end - first for first, end in spans)


def missing(wanted: Iterable[Span], held: Iterable[Span]) -> tuple[Span, ...]:
    """The wanted bytes that are not held. Linear in both after sorting."""
    gaps, present, index = list[Span](), united(held), 0
    for first, end in united(wanted):
        # Skipped for good: the following wanted spans begin later still.
        while index < len(present) and present[index][1] <= first:
            index += 1
        following = index
        while following < len(present) and present[following][0] < end:
            if first < present[following][0]:
                gaps.append((first, present[following][0]))
            first = min(present[following][1], end)
            following += 1
        gaps.append((first, end))
    return united(gaps)  # Drops the empty ones.


def covers(held: Iterable[Span], wanted: Iterable[Span]) -> bool:
    """Whether all wanted bytes are held."""
    return not missing(wanted, held)


def coalesce(wanted: Iterable[Span], *, hole_bytes: int, request_bytes: int) -> tuple[Span, ...]:
    """The requests that fetch the wanted bytes, from front to back.

    Every byte of a request is fetched, so the requests are what is held afterwards.

    Args:
        wanted: The wanted spans.
        hole_bytes: A hole of at most this size between two spans is fetched too (bridged).
        request_bytes: The longest request.
    """
    return tuple(
        (at, min(at + request_bytes, end))
        for first, end in united(wanted, hole_bytes)
        for at in range(first, end, request_bytes)
    )


def aligned(num_bytes: int, alignment: int = 64) -> int:
    """The least multiple of `alignment` that is not below `num_bytes`.

    64 bytes are a cache line, the alignment that Arrow and torch give their buffers, and more than
    any dtype needs.
    """
    return -(-num_bytes // alignment) * alignment


def capped_cuts(
    offsets: "NDArray[Any]", max_values: int, batch_size: int, begun: tuple[int, int] = (0, 0)
) -> list[int]:
    """Where batches begin and end, from 0 to the number of rows. A row above the cap is alone.

    Args:
        offsets: Where the values of each row begin, and the last ones end: (num_rows + 1,).
        max_values: The most values of a batch.
        batch_size: The most rows of a batch.
        begun: The rows and values that the first batch has already. If no further row fits, it ends
            at 0, which then comes twice.
    """
    cuts, at, num_rows = [0], 0, len(offsets) - 1
    num_begun, num_values = begun
    while at < num_rows:
        fitting = fitting_end(offsets, at, max_values - num_values)
        at = max(min(fitting, at + batch_size - num_begun), at if num_begun else at + 1)
        cuts.append(at)
        num_begun = num_values = 0
    return cuts


def fitting_end(offsets: "NDArray[Any]", first: int, max_values: int) -> int:
    """The row after the last one whose values fit, together with those from row `first` on; below
    `first` if even the values before it are too many.
    """
    # Of the offsets' own type: numpy would convert all of them to that of another number.
    limit = offsets.dtype.type(min(int(offsets[first]) + max_values, int(offsets[-1])))
    return int(offsets.searchsorted(limit, side="right")) - 1


MOST_SAMPLED = 16  # files, or row groups, of which a sample reads some rows, if they have enough
_Item = TypeVar("_Item")


def spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` of the items, spread evenly over all of them."""
    num = min(most, len(items))
    return [items[i * len(items) // num] for i in range(num)]


def spread_with_rows(
    items: Sequence[_Item], rows_of: Callable[[_Item], int], num_rows: int
) -> list[_Item]:
    """Evenly spaced items: 16 of them, more if these have fewer than `num_rows` rows, at most all.

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
