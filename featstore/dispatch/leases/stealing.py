"""What a worker takes that is not simply the next: files that its host has, and leases of others at
the end. Pure.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from featstore.dispatch.leases.lease import Lease
from featstore.dispatch.leases.survey import Part
from featstore.dispatch.plan import Plan

AHEAD = 64


@dataclass(frozen=True, kw_only=True)
class StealCandidate:
    """A lease of another worker, as it was read."""

    part: Part
    record: Lease
    value: str

    @property
    def num_left(self) -> int:
        """Rows that the holder has not reserved."""
        return (self.record.limit or 0) - max(self.record.rows, self.record.reserved)


def victims(seen: Sequence[StealCandidate], salt: str) -> list[StealCandidate]:
    """Whom a worker with nothing to do relieves: first those with at least half of the most rows
    left, in an order of its own, so that many such workers do not all ask the same one; then the
    rest."""
    most = max((one.num_left for one in seen), default=0)
    keyed = [
        (one.num_left < most / 2, zlib.crc32(f"{salt} {one.part}".encode()), one)
        for one in seen
        if one.num_left > 0
    ]
    return [one for *_, one in sorted(keyed, key=lambda item: item[:2])]


class StagedSplits:
    """Positions a bounded number ahead of a cursor whose files are staged here; each position is
    looked at once.
    """

    def __init__(self, is_staged: Callable[[str], bool] | None) -> None:
        self._is_staged = is_staged
        self._next = 0
        self._staged: list[int] = []

    def staged(self, plan: Plan, cursor: int) -> Iterator[int]:
        """Such positions from `cursor` on; each is given once."""
        if self._is_staged is None:
            return
        end = min(cursor + AHEAD, len(plan))
        self._next = max(self._next, cursor)
        self._staged += [
            index for index in range(self._next, end) if self._is_staged(plan[index].path)
        ]
        self._next = max(self._next, end)
        while self._staged:
            index = self._staged.pop(0)
            if index >= cursor:
                yield index
