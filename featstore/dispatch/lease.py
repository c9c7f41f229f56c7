"""Leases as data: the record in a split's key, its transitions, and when an observer may call it expired.

Nothing here has a clock or does I/O. A record is only ever replaced by compare-and-set from the very value that was read,
so a value must be unique to its claim: it names a fence that grows by one with each claim of the split, and a nonce.

    (no key) --claim--> held --renew, advance--> held --finish--> done
                         |  \\--release--> free --claim--> held (fence + 1)
                         \\--claim, once expired--> held (fence + 1)
"""

import enum
import json
from dataclasses import dataclass, replace
from typing import Any

from featstore.errors import DispatchError

FORMAT = 1


class LeaseState(enum.StrEnum):
    HELD = "held"
    FREE = "free"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The value of one split's key.

    `fence` counts the claims of the split, `nonce` is unique to the claim, `beat` grows with each renewal, `rows` are the
    split's rows that were acknowledged, in delivery order, by this claim and those before it.
    """

    state: LeaseState
    fence: int
    worker: str
    nonce: str
    beat: int = 0
    rows: int = 0

    def encode(self) -> str:
        """The record as JSON with sorted keys: what is written into the store."""
        fields: dict[str, Any] = {"format": FORMAT, "state": self.state.value, "fence": self.fence, "worker": self.worker}
        fields |= {"nonce": self.nonce, "beat": self.beat, "rows": self.rows}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> "Lease":
        """DispatchError for a value that this version did not write."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            return cls(state=LeaseState(fields.pop("state")), **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DispatchError(
                f"the store holds a lease that this version cannot read: expected format {FORMAT}, found {text[:200]!r}; "
                "all workers of a run need the same version of featstore"
            ) from error

    def same_claim(self, other: "Lease") -> bool:
        """Whether both records belong to one claim of one worker."""
        return self.fence == other.fence and self.nonce == other.nonce


def claim(current: Lease | None, *, worker: str, nonce: str, start_row: int = 0) -> Lease:
    """The record of a new claim on what is now held (None: no key yet, delivered up to `start_row`)."""
    fence, rows = (0, start_row) if current is None else (current.fence, current.rows)
    return Lease(state=LeaseState.HELD, fence=fence + 1, worker=worker, nonce=nonce, rows=rows)


def renew(mine: Lease) -> Lease:
    return replace(mine, beat=mine.beat + 1)


def advance(mine: Lease, num_rows: int) -> Lease:
    """`num_rows` of the split are acknowledged; what was acknowledged before is never taken back."""
    return replace(mine, rows=max(mine.rows, num_rows), beat=mine.beat + 1)


def release(mine: Lease) -> Lease:
    return replace(mine, state=LeaseState.FREE)


def finish(mine: Lease, num_rows: int) -> Lease:
    return replace(mine, state=LeaseState.DONE, rows=num_rows)


class Watch:
    """What one observer has seen of the leases of others, and since when by its own monotonic clock.

    A lease has expired when two reads at least `lease_s` apart found the same value and none between found another. A
    missing key counts as a value: its claimer may have died between the cursor and the split's key.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._seen: dict[int, tuple[str | None, float]] = {}
        self._moved: set[int] = set()

    def is_expired(self, index: int, value: str | None, now: float) -> bool:
        """Notes that `value` was read at `now`; whether the lease on split `index` is to be taken over."""
        before, since = self._seen.get(index, (value, now))
        if before != value:
            since = now
            self._moved.add(index)
        self._seen[index] = (value, since)
        return now - since >= self.lease_s

    def has_moved(self, index: int) -> bool:
        """Whether the split's value was seen to change: its holder lived while this observer watched."""
        return index in self._moved

    def forget(self, index: int) -> None:
        self._seen.pop(index, None)
        self._moved.discard(index)


class Survey:
    """The splits below the cursor that are not known to be done, oldest first, a bounded number at a time.

    `settled` are positions that nobody needs to look at, such as those that a restored state had delivered.
    """

    def __init__(self, settled: frozenset[int]) -> None:
        self._settled = settled
        self._pending: dict[int, None] = {}
        self._next = 0

    def pending(self, cursor: int, limit: int) -> list[int]:
        """Up to `limit` positions below `cursor`; those already under way come first."""
        while self._next < cursor and len(self._pending) < limit:
            if self._next not in self._settled:
                self._pending[self._next] = None
            self._next += 1
        return list(self._pending)

    def settle(self, index: int) -> None:
        """The split is done: never offered again."""
        self._pending.pop(index, None)
