"""Which splits of an epoch one worker knows to be open, which files its host has staged, and the
hints that workers leave each other.

A part is `(position in the plan, first row)`: `(7, 0)` is split 7 itself, `(7, 5000)` the part that
was cut off it at row 5,000.

With the hints idle workers seldom need to read leases. Hints only: the leases in the keys of splits
are the truth.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from zlib import crc32

from featstore.dispatch.lease import Lease
from featstore.dispatch.plan import Plan
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.base import KEYS_PER_READ, Store

Part = tuple[int, int]
# How many positions beyond the cursor a worker looks for staged files. A larger number finds more
# of them; observers (status.py) read as many more keys, and leases are claimed farther out
# of order.
AHEAD = 64


class Survey:
    """The splits below the cursor, and the parts cut off them, that are not known to be done.

    During the epoch it takes in a bounded number of splits at a time. Not safe for several threads.

    Args:
        settled: Positions that nobody needs to look at, because a restored state had delivered
            them.
    """

    def __init__(self, settled: frozenset[int]) -> None:
        self._settled = settled
        # Parts that were cut off and seen once, so that a settled one does not come back.
        self._known: set[Part] = set()
        # A dict for its order: oldest splits first.
        self._pending: dict[Part, None] = {}
        # The first position that was not taken in yet.
        self._next = 0

    def pending(self, cursor: int, limit: int) -> list[Part]:
        """Open parts below `cursor`, oldest splits first.

        Takes in further splits while fewer than `limit` parts are open.
        """
        while self._next < cursor and len(self._pending) < limit:
            if self._next not in self._settled:
                self._pending[self._next, 0] = None
            self._next += 1
        return list(self._pending)

    @property
    def num_open(self) -> int:
        """How many of the parts taken in so far are not known to be done."""
        return len(self._pending)

    @property
    def low(self) -> int:
        """The position below which all splits, with their parts, are known to be done."""
        return min((index for index, _ in self._pending), default=self._next)

    def skip_below(self, low: int) -> None:
        """Settles all splits below `low`, of which another worker knows that they are done."""
        self._next = max(self._next, low)
        for part in [part for part in self._pending if part[0] < low]:
            self.settle(part)

    def look(self, cursor: int, limit: int, salt: str) -> list[Part]:
        """Up to `limit` of all open parts below `cursor`.

        They are the same at each look until they are settled, because an observer must see a lease
        twice to know that it has expired. They differ by `salt`, so that many observers together
        see all parts.
        """
        parts = self.pending(cursor, cursor + 1 + len(self._pending))
        # A CRC and not `hash()`, whose salt differs between processes: a run can be repeated.
        return (
            parts
            if len(parts) <= limit
            else nsmallest(limit, parts, key=lambda part: crc32(f"{salt} {part}".encode()))
        )

    def add(self, parts: Iterable[Part]) -> list[Part]:
        """Takes in parts that were cut off; returns those that were not known."""
        new = [part for part in parts if part not in self._known]
        self._known.update(new)
        self._pending.update(dict.fromkeys(new))
        return new

    def settle(self, part: Part) -> None:
        """The part is done, and is not listed again."""
        self._pending.pop(part, None)


class Hints:
    """One worker's view of two hints: `low`, the position below which every split is done, and the
    list of leases that were given back.

    Any thread may call `gave_back`; the rest is not thread-safe, and called under the coordinator's
    lock.
    """

    def __init__(self, store: Store, keys: EpochKeys, survey: Survey, num_splits: int) -> None:
        self._store, self._keys, self._survey, self._num_splits = store, keys, survey, num_splits
        self._last: tuple[str | None, bool] | None = None
        # The highest number read, and those before it whose entries are not written yet, or never.
        self._num_read, self._missing = 0, list[int]()

    def have_changed(self) -> bool:
        """Whether, since the last call, a lease was given back or all splits were found done.

        One exchange with the store.
        """
        low, given_back = self._store.get_many([self._keys.low, self._keys.given_back])
        before, self._last = self._last, (given_back, int(low or 0) >= self._num_splits)
        return before != self._last

    def gave_back(self, parts: Iterable[Part]) -> None:
        """Lists parts that were given back. Call it after their leases were written."""
        for index, first in parts:
            number = self._store.add(self._keys.given_back, 1)
            self._store.set(self._keys.gave_back(number), f"{index} {first}")

    def given_back(self) -> list[Part]:
        """Parts that were given back since the last call, at most `KEYS_PER_READ` new ones.

        The count is raised before its entry is written, and may be raised twice for one: a missing
        entry is asked for again at each call.
        """
        count = int(self._store.get_or_none(self._keys.given_back) or 0)
        through = min(count, self._num_read + KEYS_PER_READ)
        numbers = [*self._missing, *range(self._num_read + 1, through + 1)]
        texts = self._store.get_many([self._keys.gave_back(number) for number in numbers])
        self._num_read = through
        self._missing = [number for number, text in zip(numbers, texts, strict=True) if not text]
        parts = [
            (int(index), int(first)) for index, first in (text.split() for text in texts if text)
        ]
        self._survey.add(part for part in parts if part[1])
        return parts

    def read(self, parts: list[Part]) -> list[tuple[Part, str | None, Lease | None]]:
        """Takes the first parts out of `parts` and reads their leases, in one exchange.

        Also exchanges `low` with the store, both ways, even if there are no parts. Those below it
        are settled, and left out of the result.

        Returns:
            Each part with the value of its key and the decoded lease; None for a missing key.
        """
        some = parts[:KEYS_PER_READ]
        del parts[:KEYS_PER_READ]
        low, *values = self._store.get_many([self._keys.low, *map(self._keys.part, some)])
        self._survey.skip_below(int(low or 0))
        if self._survey.low > int(low or 0):
            self._store.set(self._keys.low, str(self._survey.low))
        return [
            (part, value, None if value is None else Lease.decode(value))
            for part, value in zip(some, values, strict=True)
            if part[0] >= int(low or 0)
        ]


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
