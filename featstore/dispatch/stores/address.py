"""Which store a URL names, and how a handle on it is opened."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from featstore.dispatch.stores.base import Store as Store
from featstore.dispatch.stores.endpoint import ServerMark, Spares, job_store, parse_endpoint
from featstore.dispatch.stores.memory import MemoryRoom, MemoryStore, enter_room
from featstore.dispatch.stores.sqlite import SqliteStore
from featstore.errors import ConfigError, DispatchError, missing_extra
from featstore.redaction import redact

_KNOWN = (
    "memory:// (threads of one process), sqlite:///absolute/path (processes of one host) and "
    "tcp://host:port (many hosts; "
    "`featstore dispatch serve`)"
)
DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """A store's URL, bound to the process that bound it where the store lives inside of a process.

    Send the address, not the URL, to other processes: a memory store met by a second process is
    then a DispatchError instead of a second, empty store and a doubled epoch. What a memory store
    holds lives as long as an address or a handle does. `timeout_s`: after so long without an answer
    a tcp store counts as lost.
    """

    url: str = field(repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    room: MemoryRoom | None = field(default=None, repr=False, compare=False)
    mark: ServerMark | None = field(default=None, repr=False, compare=False)
    spares: Spares | None = field(default=None, repr=False, compare=False)

    def open(self) -> Store:
        """A new handle; the caller closes it. DispatchError where the store cannot be reached from
        here.
        """
        if self.room is not None:
            return MemoryStore(self.room)
        if self.mark is not None:
            options = {"timeout_s": self.timeout_s, "mark": self.mark, "spares": self.spares}
            return cast("Store", _tcp_module().TcpStore(parse_endpoint(self.url), **options))
        return SqliteStore(Path(self.url.removeprefix("sqlite://")))

    def keeping_connections(self) -> "StoreAddress":
        """The same address, whose handles leave their connections to the next ones, until
        `disconnect()`.
        """
        return self if self.mark is None else replace(self, spares=Spares())

    def disconnect(self) -> None:
        """Closes connections that no handle uses."""
        while self.spares is not None and (line := self.spares.take()) is not None:
            line.close(self.timeout_s)


def bind(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> StoreAddress:
    """The address of the store that `url` names; ConfigError for a URL that names none. Opens
    nothing.
    """
    scheme = url.partition("://")[0]
    known: dict[str, Callable[[str, float], StoreAddress]] = {
        "memory": _memory,
        "sqlite": _sqlite,
        "tcp": _tcp,
    }
    if "://" not in url or scheme not in known:
        raise ConfigError(f"no dispatch store {redact(url)!r}; there are {_KNOWN}")
    return known[scheme](url, timeout_s)


def bind_job(environ: Mapping[str, str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> StoreAddress:
    """The address of the store of the job of several processes that this one is of; starts its
    server where that is due.

    DispatchError where the launcher tells no place to meet, or the server cannot be started.
    """
    job = job_store(environ)
    if job.is_hosted_here:
        _tcp_module().host_server(job.endpoint)
    return _tcp(job.endpoint.url, timeout_s)


def open_store(url: str) -> Store:
    """`bind(url).open()`, for a store used by this process alone or whose URL needs no binding."""
    return bind(url).open()


def open_read_only(url: str) -> Store:
    """A handle on a store for who only reads: DispatchError where `url` names a file that is not
    there, which is not made.
    """
    address = bind(url)
    path = Path(url.removeprefix("sqlite://"))
    if url.startswith("sqlite://") and not path.exists():
        expected = "expected the file that a run's `dispatch.store` names, found none"
        raise DispatchError(f"no dispatch store at {redact(url)}: {expected}")
    return address.open()


def _memory(url: str, timeout_s: float) -> StoreAddress:
    return StoreAddress(url=url, timeout_s=timeout_s, room=enter_room(url))


def _sqlite(url: str, timeout_s: float) -> StoreAddress:
    path = Path(url.removeprefix("sqlite://"))
    if not path.is_absolute() or url.endswith("/"):
        raise ConfigError(
            f"dispatch store {redact(url)!r}: expected sqlite:///absolute/path/of/a/file"
        )
    return StoreAddress(url=url, timeout_s=timeout_s)


def _tcp(url: str, timeout_s: float) -> StoreAddress:
    return StoreAddress(url=parse_endpoint(url).url, timeout_s=timeout_s, mark=ServerMark())


def _tcp_module() -> Any:
    """Imported where a tcp store is used: it needs torch, and the others must not."""
    try:
        return import_module("featstore.dispatch.stores.tcp")
    except ModuleNotFoundError as error:
        raise missing_extra("a dispatch store tcp://", error) from error
