"""Spans of a file: which bytes are wanted, held and missing, and which requests fetch them. Pure
functions.

A span is `(first, end)`, `end` excluded. The spans that a function returns are ascending, not
empty, and do not touch; only requests may touch.
"""

from collections.abc import Callable, Iterable, Sequence

from featstore.base.intervals import Span, united

# From the last bytes of a file, its size and its name to the spans to read. A number instead asks
# to be called again with that many last bytes.
PlanRanges = Callable[[bytes, int, str], Sequence[Span] | int]


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
