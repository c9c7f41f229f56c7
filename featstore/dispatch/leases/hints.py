"""What workers tell each other so that few of them need to look at leases. Hints only: the keys of
splits are the truth.
"""

from collections.abc import Iterable
from itertools import takewhile

from featstore.dispatch.leases.lease import Lease
from featstore.dispatch.leases.survey import Part, Survey
from featstore.dispatch.store_keys import EpochKeys
from featstore.dispatch.stores.address import Store

_MANY = 256


class Hints:
    """One worker's view of `low`, below which all is done, and of the list of leases that were
    given back.
    """

    def __init__(self, store: Store, keys: EpochKeys, survey: Survey, num_splits: int) -> None:
        self._store, self._keys, self._survey, self._num_splits = store, keys, survey, num_splits
        self._last: tuple[str | None, bool] | None = None
        self._num_read = 0

    def have_changed(self) -> bool:
        """Whether a lease was given back, or all was found done, since this was asked last. One
        exchange.
        """
        low, given_back = self._store.get_many([self._keys.low, self._keys.given_back])
        before, self._last = self._last, (given_back, int(low or 0) >= self._num_splits)
        return before != self._last

    def gave_back(self, parts: Iterable[Part]) -> None:
        """To be told once their leases say so."""
        for index, first in parts:
            number = self._store.add(self._keys.given_back, 1)
            self._store.set(self._keys.gave_back(number), f"{index} {first}")

    def given_back(self) -> list[Part]:
        """Parts that were given back since this was asked last, a bounded number."""
        count = int(self._store.get_or_none(self._keys.given_back) or 0)
        numbers = range(self._num_read + 1, min(count, self._num_read + _MANY) + 1)
        told = list(
            takewhile(
                bool, self._store.get_many([self._keys.gave_back(number) for number in numbers])
            )
        )
        self._num_read += len(told)
        parts = [
            (int(index), int(first)) for index, first in (text.split() for text in told if text)
        ]
        self._survey.add(part for part in parts if part[1])
        return parts

    def read(self, parts: list[Part]) -> list[tuple[Part, str | None, Lease | None]]:
        """The first of the parts as they are now, by value and as records, without those that
        others know to be done: those are settled. Takes what it reads from `parts`. One exchange
        with the store."""
        some = parts[:_MANY]
        del parts[:_MANY]
        low, *values = self._store.get_many([self._keys.low, *map(self._keys.part, some)])
        self._survey.skip_below(int(low or 0))
        if self._survey.low > int(low or 0):
            self._store.set(self._keys.low, str(self._survey.low))
        return [
            (part, value, None if value is None else Lease.decode(value))
            for part, value in zip(some, values, strict=True)
            if part[0] >= int(low or 0)
        ]

    def tell(self) -> None:
        """Learns from others up to where all is done, or tells them."""
        self.read([])
