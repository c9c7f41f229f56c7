"""What one worker knows of the leases of others: which are open, and how long they stood still by
its own clock.

A part is `(position in the plan, first row)`: `(7, 0)` is split 7 itself, `(7, 5000)` what was cut
off it at row 5,000.
"""

import math
from collections.abc import Hashable, Iterable
from heapq import nsmallest
from zlib import crc32

from featstore.dispatch.leases.lease import Lease

Part = tuple[int, int]


class LeaseWatch:
    """What one observer has seen of the leases of others, and since when by its own monotonic
    clock.

    A lease has expired when two reads at least `lease_s` apart found the same life (`Lease.life`)
    and none between found another. A missing key counts as a life: its claimer may have died
    between the cursor and the split's key. How long a holder has done nothing is known only while
    this observer looks at least once per `lease_s`: one that slept itself, as ranks do together in
    an evaluation, cannot tell. Not safe for several threads.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[tuple[Part, str], tuple[Hashable, float, float]] = {}
        self._before: dict[Part, Hashable] = {}
        self._living: set[Part] = set()

    def begin_waiting(self) -> None:
        """From now on `is_living` tells of whom a renewal is seen; what expires goes on to be
        measured.
        """
        self._before.clear()
        self._living.clear()

    def is_expired(self, part: Part, lease: Lease | None, now: float) -> bool:
        """Notes that `lease` was read at `now`, None for a missing key; whether the part is to be
        taken over.
        """
        life = None if lease is None else lease.life
        if self._before.setdefault(part, life) != life:
            self._living.add(part)
        return self._still_s(part, "life", life, now, longest_gap_s=math.inf) >= self._lease_s

    def is_living(self, part: Part) -> bool:
        """Whether the part was claimed or renewed between two reads since `begin_waiting`.

        Two reads of that time are needed: what changed since an earlier one may have been the last
        act of a holder that died before the waiting began.
        """
        return part in self._living

    def silent_s(self, part: Part, now: float) -> float:
        """For how long the part's life has stood still, as far as it was looked at."""
        _, since, _ = self._seen.get((part, "life"), (None, now, now))
        return now - since

    def standstill_s(self, part: Part, lease: Lease, now: float) -> float:
        """For how long the holder has neither acknowledged nor reserved anything, of any split."""
        mark = (lease.worker, lease.nonce, lease.fence, lease.work)
        return self._still_s(part, "work", mark, now, longest_gap_s=self._lease_s)

    def is_unbegun(self, part: Part, lease: Lease, now: float, for_s: float) -> bool:
        """Whether the holder was seen for `for_s` to have reserved nothing that it did not
        acknowledge.
        """
        mark = (lease.nonce, lease.fence, lease.rows, lease.reserved)
        return (
            self._still_s(part, "begin", mark, now, longest_gap_s=self._lease_s) >= for_s
            and not lease.is_begun
        )

    def forget(self, part: Part) -> None:
        for what in ("life", "work", "begin"):
            self._seen.pop((part, what), None)
        self._before.pop(part, None)
        self._living.discard(part)

    def _still_s(
        self, part: Part, what: str, mark: Hashable, now: float, *, longest_gap_s: float
    ) -> float:
        before, since, last = self._seen.get((part, what), (mark, now, now))
        if before != mark or now - last > longest_gap_s:
            since = now
        self._seen[part, what] = (mark, since, now)
        return now - since


class Survey:
    """The splits below the cursor, and parts cut off them, that are not known to be done; a bounded
    number at a time.

    `settled` are positions that nobody needs to look at, such as those that a restored state had
    delivered.
    """

    def __init__(self, settled: frozenset[int]) -> None:
        self._settled = settled
        self._known: set[Part] = set()
        self._pending: dict[Part, None] = {}
        self._next = 0

    def pending(self, cursor: int, limit: int) -> list[Part]:
        """Parts below `cursor`, oldest splits first; `limit` bounds how many splits are under
        way.
        """
        while self._next < cursor and len(self._pending) < limit:
            if self._next not in self._settled:
                self._pending[self._next, 0] = None
            self._next += 1
        return list(self._pending)

    @property
    def num_open(self) -> int:
        """How many parts are not known to be done, of those that were looked for."""
        return len(self._pending)

    @property
    def low(self) -> int:
        """All splits below this position, and their parts, are known to be done."""
        return min((index for index, _ in self._pending), default=self._next)

    def skip_below(self, low: int) -> None:
        """Another worker knows that all splits below `low` are done."""
        self._next = max(self._next, low)
        for part in [part for part in self._pending if part[0] < low]:
            self.settle(part)

    def look(self, cursor: int, limit: int, salt: str) -> list[Part]:
        """Up to `limit` of all parts below `cursor`: the same at each look until they are settled,
        as whoever is to see a lease expire must look at it twice, and others for each `salt`, so
        that many observers together see all."""
        parts = self.pending(cursor, cursor + 1 + len(self._pending))
        return (
            parts
            if len(parts) <= limit
            else nsmallest(limit, parts, key=lambda part: crc32(f"{salt} {part}".encode()))
        )

    def add(self, parts: Iterable[Part]) -> list[Part]:
        """Notes parts that were cut off; returns those that are new."""
        new = [part for part in parts if part not in self._known]
        self._known.update(new)
        self._pending.update(dict.fromkeys(new))
        return new

    def settle(self, part: Part) -> None:
        """The part is done: never offered again."""
        self._pending.pop(part, None)
