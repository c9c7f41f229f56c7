"""Hints that workers leave for each other, so that idle ones seldom need to read leases. Hints
only: the leases in the keys of splits are the truth.
"""

from collections.abc import Iterable
from itertools import takewhile

from featstore.dispatch.lease import Lease
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store
from featstore.dispatch.survey import Part, Survey

# Keys per exchange with the store: as many as a TCP store reads in one (stores/tcp.py).
_KEYS_PER_READ = 256


class Hints:
    """One worker's view of two hints: `low`, the position below which every split is done, and the
    list of leases that were given back.

    Any thread may call `gave_back`; the rest is not thread-safe, and called under the coordinator's
    lock.
    """

    def __init__(self, store: Store, keys: EpochKeys, survey: Survey, num_splits: int) -> None:
        self._store, self._keys, self._survey, self._num_splits = store, keys, survey, num_splits
        self._last: tuple[str | None, bool] | None = None
        self._num_read = 0

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
        """Parts that were given back since the last call, at most `_KEYS_PER_READ` of them."""
        count = int(self._store.get_or_none(self._keys.given_back) or 0)
        numbers = range(self._num_read + 1, min(count, self._num_read + _KEYS_PER_READ) + 1)
        # The count is raised before its entry is written: stop at the first missing one, and read
        # it at the next call.
        texts = list(
            takewhile(
                bool, self._store.get_many([self._keys.gave_back(number) for number in numbers])
            )
        )
        self._num_read += len(texts)
        parts = [
            (int(index), int(first)) for index, first in (text.split() for text in texts if text)
        ]
        self._survey.add(part for part in parts if part[1])
        return parts

    def read(self, parts: list[Part]) -> list[tuple[Part, str | None, Lease | None]]:
        """Takes the first parts out of `parts` and reads their leases, in one exchange.

        Also exchanges `low` with the store, both ways. Parts below it are settled, and left out of
        the result.

        Returns:
            Each part with the value of its key and the decoded lease; None for a missing key.
        """
        some = parts[:_KEYS_PER_READ]
        del parts[:_KEYS_PER_READ]
        low, *values = self._store.get_many([self._keys.low, *map(self._keys.part, some)])
        self._survey.skip_below(int(low or 0))
        if self._survey.low > int(low or 0):
            self._store.set(self._keys.low, str(self._survey.low))
        return [
            (part, value, None if value is None else Lease.decode(value))
            for part, value in zip(some, values, strict=True)
            if part[0] >= int(low or 0)
        ]

    def sync_low(self) -> None:
        """Learns `low` from other workers, or raises it for them."""
        self.read([])
