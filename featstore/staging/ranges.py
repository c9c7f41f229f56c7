"""Spans of a file: which bytes are wanted, held and missing, and with which requests to fetch them.
Pure.

A span is `(first, end)`, `end` not included. Lists of spans that functions return are ascending,
neither empty nor touching, but for requests, which may touch.
"""

from collections.abc import Callable, Iterable, Sequence

Span = tuple[int, int]
# Tells which bytes of a file are to be read, from its last bytes, size and name; a number asks for
# that many last bytes.
PlanRanges = Callable[[bytes, int, str], Sequence[Span] | int]


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The bytes that any of the spans has."""
    merged: list[Span] = []
    for first, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return tuple(merged)


def num_bytes(spans: Iterable[Span]) -> int:
    """How many bytes the spans have together; they must not overlap."""
    return sum(end - first for first, end in spans)


def missing(wanted: Iterable[Span], held: Iterable[Span]) -> tuple[Span, ...]:
    """The wanted bytes that are not held."""
    left, taken, place = list[Span](), union(held), 0
    for first, end in union(wanted):
        while place < len(taken) and taken[place][1] <= first:
            place += 1
        following = place
        while following < len(taken) and taken[following][0] < end:
            if first < taken[following][0]:
                left.append((first, taken[following][0]))
            first = min(taken[following][1], end)
            following += 1
        left.append((first, end))
    return union(left)


def covers(held: Iterable[Span], wanted: Iterable[Span]) -> bool:
    """Whether all wanted bytes are held."""
    return not missing(wanted, held)


def coalesce(wanted: Iterable[Span], *, hole_bytes: int, request_bytes: int) -> tuple[Span, ...]:
    """The requests, front to back, that fetch the wanted bytes.

    A hole of at most `hole_bytes` between two spans is fetched too rather than asked around, and no
    request is longer than `request_bytes`. Every byte of a request is fetched, so what is held
    afterwards is the requests.
    """
    bridged: list[Span] = []
    for first, end in union(wanted):
        if bridged and first - bridged[-1][1] <= hole_bytes:
            bridged[-1] = (bridged[-1][0], end)
        else:
            bridged.append((first, end))
    return tuple(
        (at, min(at + request_bytes, end))
        for first, end in bridged
        for at in range(first, end, request_bytes)
    )


def buffered(wanted: Iterable[Span], buffer_bytes: int) -> tuple[Span, ...]:
    """The requests of a reader that reads the wanted spans in their order through a buffer: whole
    multiples of the buffer's size as they are, what is left of a span by filling the buffer, which
    serves the next span where that begins in it."""
    requests: list[Span] = []
    held = (0, 0)
    for first, end in wanted:
        at = min(held[1], end) if held[0] <= first < held[1] else first
        direct = (end - at) // buffer_bytes * buffer_bytes
        if direct:
            requests.append((at, at + direct))
        if at + direct < end:
            held = (at + direct, at + direct + buffer_bytes)
            requests.append(held)
    return tuple(requests)
