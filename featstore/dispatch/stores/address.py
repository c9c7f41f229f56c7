"""Which store a URL names, and how a handle on it is opened."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from featstore.dispatch.stores.base import Store as Store
from featstore.dispatch.stores.memory import MemoryRoom, MemoryStore, enter_room
from featstore.dispatch.stores.sqlite import SqliteStore
from featstore.errors import ConfigError

_KNOWN = "memory:// (threads of one process) and sqlite:///absolute/path (processes of one host)"


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """A store's URL, bound to the process that bound it where the store lives inside of a process.

    Send the address, not the URL, to other processes: a memory store met by a second process is then a DispatchError
    instead of a second, empty store and a doubled epoch. What a memory store holds lives as long as an address or a
    handle does.
    """

    url: str
    room: MemoryRoom | None = field(default=None, repr=False, compare=False)

    def open(self) -> Store:
        """A new handle; the caller closes it. DispatchError where the store cannot be reached from here."""
        if self.room is not None:
            return MemoryStore(self.room)
        return SqliteStore(Path(self.url.removeprefix("sqlite://")))


def bind(url: str) -> StoreAddress:
    """The address of the store that `url` names; ConfigError for a URL that names none. Opens nothing."""
    scheme = url.partition("://")[0]
    known: dict[str, Callable[[str], StoreAddress]] = {"memory": _memory, "sqlite": _sqlite}
    if "://" not in url or scheme not in known:
        later = "; tcp:// is not built yet" if scheme == "tcp" else ""
        raise ConfigError(f"no dispatch store {url!r}; there are {_KNOWN}{later}")
    return known[scheme](url)


def open_store(url: str) -> Store:
    """`bind(url).open()`, for a store used by this process alone or whose URL needs no binding."""
    return bind(url).open()


def _memory(url: str) -> StoreAddress:
    return StoreAddress(url=url, room=enter_room(url))


def _sqlite(url: str) -> StoreAddress:
    path = Path(url.removeprefix("sqlite://"))
    if not path.is_absolute() or url.endswith("/"):
        raise ConfigError(f"dispatch store {url!r}: expected sqlite:///absolute/path/of/a/file")
    return StoreAddress(url=url)
