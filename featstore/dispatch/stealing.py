"""What a worker claims besides the next split of the plan: splits whose files its host has staged,
and leases of other workers at the end of the epoch (work stealing). Does no I/O.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from featstore.dispatch.lease import Lease
from featstore.dispatch.plan import Plan
from featstore.dispatch.survey import Part

# How many positions beyond the cursor a worker looks for staged files. A larger number finds more
# of them; observers (accounts/status.py) read as many more keys, and leases are claimed farther out
# of order.
AHEAD = 64


@dataclass(frozen=True, kw_only=True)
class StealCandidate:
    """A lease of another worker, as it was read from the store.

    Attributes:
        part: The split or part.
        record: The lease.
        value: Its text in the store, which a compare-and-set must find to take or cut the lease.
    """

    part: Part
    record: Lease
    value: str

    @property
    def num_left(self) -> int:
        """Rows that the holder has not reserved, and that others may therefore take."""
        return (self.record.limit or 0) - max(self.record.rows, self.record.reserved)


def victims(seen: Sequence[StealCandidate], salt: str) -> list[StealCandidate]:
    """The leases from which an idle worker may take rows, in the order in which it should try.

    First come those with at least half of the largest number of rows left, then the rest. Within
    each group every `salt` gives another order, so that many idle workers do not all try the same
    lease first.

    Args:
        seen: Leases of other workers.
        salt: A text of the worker's own.
    """
    most_left = max((one.num_left for one in seen), default=0)
    keyed = [
        (one.num_left < most_left / 2, zlib.crc32(f"{salt} {one.part}".encode()), one)
        for one in seen
        if one.num_left > 0
    ]
    return [one for *_, one in sorted(keyed, key=lambda item: item[:2])]


class StagedSplits:
    """Finds the splits a little ahead of the cursor whose files this host has staged.

    Args:
        is_staged: Whether this host has the file of a path; None finds nothing.
    """

    def __init__(self, is_staged: Callable[[str], bool] | None) -> None:
        self._is_staged = is_staged
        self._next = 0
        self._staged: list[int] = []

    def staged(self, plan: Plan, cursor: int) -> Iterator[int]:
        """Positions from `cursor` on, at most `AHEAD` further and of the same section of the plan,
        whose files are staged.

        Looks at each position once, and yields it once, so a file that is staged later is missed.
        """
        if self._is_staged is None or cursor >= len(plan):
            return
        end = min(cursor + AHEAD, plan.section_of(cursor).stop)
        self._next = max(self._next, cursor)
        self._staged += [
            index for index in range(self._next, end) if self._is_staged(plan[index].path)
        ]
        self._next = max(self._next, end)
        while self._staged:
            index = self._staged.pop(0)
            if index >= cursor:
                yield index
