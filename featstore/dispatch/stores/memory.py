"""A store for the threads of one process. In a second process it raises an error, and is never
silently a second, empty store.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from featstore.base.errors import DispatchError
from featstore.base.processes import OwnProcess, module_lock
from featstore.base.redaction import redact
from featstore.dispatch.stores.base import Store

_FIX = "use dispatch store sqlite:///absolute/path for the processes of one host"


class MemoryStoreData:
    """The values of a memory store, and the process that owns them. Handles of one URL share them.

    Pickling carries the owner but not the values. Unpickled in the owner, it is the same object; in
    any other process it is one that refuses every use.

    Args:
        url: The store's URL.
        owner: The process that owns the values.
    """

    def __init__(self, url: str, owner: OwnProcess) -> None:
        self.url, self.owner = url, owner
        self.values: dict[str, str] = {}
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., "MemoryStoreData"], tuple[str, OwnProcess]]:
        return _find_data, (self.url, self.owner)

    def require_owner(self) -> None:
        """Raises DispatchError in another process than the owner."""
        if not self.owner.is_this():
            raise DispatchError(
                f"dispatch store {redact(self.url)} belongs to process {self.owner.id}; found it "
                f"in process {os.getpid()}, where it would be empty and the epoch would be read "
                f"twice; {_FIX}"
            )


# Weak, so that the data end with the last address and handle. `_data_lock` guards it.
_data_by_url: "weakref.WeakValueDictionary[str, MemoryStoreData]" = weakref.WeakValueDictionary()
_data_lock = module_lock()


def process_data(url: str) -> MemoryStoreData:
    """The data that this process keeps for `url`, created at the first use.

    In a forked child they are still the parent's, so using them raises.

    Raises:
        DispatchError: WORLD_SIZE says that this is one of several processes, each of which would
            create a store of its own.
    """
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise DispatchError(
            f"dispatch store {redact(url)} in one of {os.environ['WORLD_SIZE']} processes "
            f"(WORLD_SIZE); {_FIX}"
        )
    return _find_data(url, OwnProcess())


def _find_data(url: str, owner: OwnProcess) -> MemoryStoreData:
    if not owner.is_this():
        return MemoryStoreData(url, owner)
    with _data_lock:
        data = _data_by_url.get(url)
        if data is None:
            data = _data_by_url[url] = MemoryStoreData(url, owner)
        return data


class MemoryStore(Store):
    """A handle on the data of a memory store; see `Store`."""

    def __init__(self, data: MemoryStoreData) -> None:
        data.require_owner()
        self._data: MemoryStoreData | None = data

    def set(self, key: str, value: str) -> None:
        with self._values() as values:
            values[key] = value

    def add(self, key: str, amount: int) -> int:
        with self._values() as values:
            total = int(values.get(key, "0")) + amount
            values[key] = str(total)
            return total

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        with self._values() as values:
            held = values.get(key)
            if held == expected or (held is None and not expected):
                values[key] = held = desired
            return expected if held is None else held

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        with self._values() as values:
            return [values.get(key) for key in keys]

    def close(self) -> None:
        self._data = None

    @contextmanager
    def _values(self) -> Iterator[dict[str, str]]:
        """The values, for this thread alone until the end of the block."""
        data = self._data
        if data is None:
            raise DispatchError("this handle of a memory store is closed")
        data.require_owner()  # At every call: the process may have been forked since the last one.
        with data.lock:
            yield data.values
