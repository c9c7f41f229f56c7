"""What a coordinator needs of a key-value store."""

from collections.abc import Sequence
from typing import Protocol


class Store(Protocol):
    """Text values under text keys, shared by the workers of a run. No key is ever deleted.

    Every verb is atomic with respect to all users of the store and safe to call from several
    threads of one handle. A store that is lost or closed raises DispatchError.
    `tests/contracts/test_store_contract.py` is the contract.
    """

    def set(self, key: str, value: str) -> None:
        """Writes `value` whatever was held before."""

    def add(self, key: str, amount: int) -> int:
        """Adds to the decimal number held, a missing key being 0; returns the sum."""

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        """Writes `desired` if the value held is `expected`; returns the value now held.

        On a missing key an empty `expected` creates it; any other writes nothing and returns
        `expected`. So a caller knows that it has written only if `desired` is a text that nobody
        else would write.
        """

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are held."""

    def get_or_none(self, key: str) -> str | None:
        """The value held, or None."""

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        """What `get_or_none` says of each key, in one exchange with the store where it can."""

    def close(self) -> None:
        """Gives the handle back; what is stored stays for the other users. May be called more than
        once.
        """
