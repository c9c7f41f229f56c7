"""A store that does requests twice, as torch's does one whose reply was lost."""

import random
from typing import Any

from featstore.dispatch.stores.address import StoreAddress


class RepeatingAddress:
    """Opens handles on a store that do about half of all requests twice, by a seed."""

    def __init__(self, address: StoreAddress, seed: int = 0) -> None:
        self._address, self._draw, self.num_repeated = address, random.Random(seed), 0

    def open(self) -> Any:
        return _Repeating(self._address.open(), self)

    def unanswered_s(self) -> float:
        return 0.0

    def scoped(self, wait_s: float) -> "RepeatingAddress":
        return self

    def hurry(self) -> None:
        """Its handles wait for nobody."""

    def repeats(self) -> bool:
        """Whether the next request is done twice."""
        is_next = self._draw.random() < 0.5
        self.num_repeated += is_next
        return is_next


class _Repeating:
    def __init__(self, inner: Any, address: RepeatingAddress) -> None:
        self._inner, self._address = inner, address

    def __getattr__(self, verb: str) -> Any:
        act = getattr(self._inner, verb)

        def call(*arguments: Any) -> Any:
            if self._address.repeats():
                act(*arguments)
            return act(*arguments)

        return act if verb == "close" else call
