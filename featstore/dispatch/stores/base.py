"""The key-value store that a coordinator needs."""

from collections.abc import Callable, Sequence
from typing import Protocol

# Keys that users of a store read per exchange with a server: more hold it up longer for its other
# clients. The last look at 2,000 splits takes about 30 exchanges of torch's store
# (docs/design/orders.md).
KEYS_PER_READ = 256


class Store(Protocol):
    """Text values under text keys, shared by the workers of a run. Keys are never deleted.

    Every method is atomic with respect to all users of the store, except `check` and `get_many`,
    which are atomic for each key. Several threads may use one handle. A store that is lost, or
    whose handle is closed, raises DispatchError. `tests/contracts/test_store_contract.py` tests
    this contract for every implementation.
    """

    def set(self, key: str, value: str) -> None:
        """Writes `value`, whatever the key held before."""

    def add(self, key: str, amount: int) -> int:
        """Adds to the decimal number that the key holds, or to 0. Returns the sum.

        A store may add twice and return the second sum, where it lost the reply to the first: no
        two callers get the same sum, but nobody may get one between (`counted`, `first_free`).
        """

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        """Writes `desired` if the key holds `expected`. Returns the value that it holds then.

        A missing key is created if `expected` is empty; otherwise nothing is written, and
        `expected` is returned (as by torch's TCPStore). A caller therefore knows from the result
        that it has written only if `desired` is a text that nobody else would write.
        """

    def check(self, keys: list[str]) -> bool:
        """Whether all keys exist."""
        return None not in self.get_many(keys)

    def get_or_none(self, key: str) -> str | None:
        """The value of the key, or None if it does not exist."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        """The value of each key, or None: one exchange with the store where that is possible."""

    def close(self) -> None:
        """Closes the handle, not the store. May be called more than once."""


def counted(store: Store, key: str, *, at_least: int = 1) -> int:
    """Raises the number that the key holds by one, to `at_least` that number, and returns it: by no
    more, as `add` may. Only one user of the store may do so at a time.
    """
    number = max(int(store.get_or_none(key) or 0) + 1, at_least)
    store.set(key, str(number))
    return number


def first_free(store: Store, key: Callable[[int], str], mine: str) -> int:
    """The first number, from 0, whose key nobody else has: it holds `mine` then. A list without a
    length, so that nobody can leave a hole in it.
    """
    number = 0
    while store.compare_set(key(number), "", mine) != mine:
        number += 1
    return number
