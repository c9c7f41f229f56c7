"""Which store a URL names, and how to open a handle on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from featstore.base.errors import ConfigError, DispatchError, missing_extra
from featstore.base.redaction import redact
from featstore.dispatch.stores.base import Store as Store
from featstore.dispatch.stores.endpoint import (
    TCP,
    TLS,
    TORCH,
    ConnectionPool,
    job_store,
    parse_endpoint,
)
from featstore.dispatch.stores.memory import MemoryStore, MemoryStoreData, process_data
from featstore.dispatch.stores.served import Patience, ServerIdentity
from featstore.dispatch.stores.sqlite import SqliteStore
from featstore.dispatch.stores.tcp import TcpStore
from featstore.files.looks import exists

_KNOWN = (
    "memory:// (threads of one process), sqlite:///absolute/path (processes of one host), "
    "tcp://host:port and tls://host:port (many hosts; `featstore dispatch serve`) and "
    "torch://host:port (the TCPStore of a running job)"
)
# How long who only looks, such as `featstore dispatch status`, waits for a server.
DEFAULT_TIMEOUT_S = 30.0
# How long one waits that can do without an answer: the store may be gone, as that of a job is once
# its first rank has ended, and a longer wait delays the end of the others for a message only.
_BRIEF_S = 2.0
# How long a worker waits for one. Chosen: longer than a switch or a server takes to restart. More
# makes a worker that is cut off for good hold its host longer.
STORE_WAIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """A store's URL together with what identifies the store itself.

    Send the address, not the URL, to other processes. A memory store lives in the process that
    bound it: a second process then gets a DispatchError instead of a second, empty store and an
    epoch that is read twice. For a TCP store the address knows a server that took another's place.

    Attributes:
        url: The URL.
        timeout_s: Seconds to wait for a server that does not answer.
        memory: The data of a memory store. They live as long as an address or a handle does.
        server: What this process knows of the server of a TCP store, or torch's.
        connections: Unused connections to torch's store, for the next handles.
        patience: Until when its handles wait for a server that does not answer.
    """

    url: str = field(repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    memory: MemoryStoreData | None = field(default=None, repr=False, compare=False)
    server: ServerIdentity | None = field(default=None, repr=False, compare=False)
    connections: ConnectionPool | None = field(default=None, repr=False, compare=False)
    patience: Patience = field(default_factory=Patience, repr=False, compare=False)

    def open(self) -> Store:
        """Opens a new handle, which the caller closes.

        Raises:
            DispatchError: The store cannot be reached from this process.
        """
        if self.memory is not None:
            return MemoryStore(self.memory)
        if self.server is not None:
            endpoint = parse_endpoint(self.url)
            if endpoint.kind != TORCH:
                return TcpStore(
                    endpoint, timeout_s=self.timeout_s, server=self.server, patience=self.patience
                )
            store = _torch_module().TorchStore(
                endpoint,
                timeout_s=self.timeout_s,
                server=self.server,
                patience=self.patience,
                connections=self.connections,
            )
            return cast("Store", store)
        return SqliteStore(Path(self.url.removeprefix("sqlite://")))

    def unanswered_s(self) -> float:
        """Seconds in which the store did not answer this process's handles, also of earlier copies
        of the address: from each request that failed to the next answer. 0 without a server.
        """
        return 0.0 if self.server is None else self.server.unanswered_s()

    def keeping_connections(self) -> "StoreAddress":
        """The same address with a connection pool: a handle that is closed leaves its connection to
        the next one, until `disconnect()`.
        """
        is_torch = self.url.startswith(f"{TORCH}:")
        return replace(self, connections=ConnectionPool()) if is_torch else self

    def scoped(self, wait_s: float) -> "StoreAddress":
        """The same address for one of its users: once that one is about to end, and says so by
        `hurry`, all its handles together wait `wait_s` seconds more for a server that does not
        answer. They hurry with those of this address, too.
        """
        return replace(self, patience=Patience(wait_s, self.patience))

    def hurry(self) -> None:
        """Lets no handle of this address wait long any more, also one that waits now, or that is
        opened later. After that every call raises where it would wait.
        """
        self.patience.hurry()

    def briefly(self) -> "StoreAddress":
        """The same address, for who waits 2 s for a server that does not answer."""
        return replace(self, timeout_s=min(self.timeout_s, _BRIEF_S))

    def disconnect(self) -> None:
        """Closes the connections that no handle uses."""
        while self.connections is not None and (connection := self.connections.take()) is not None:
            connection.close()


def bind(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> StoreAddress:
    """The address of the store that `url` names. Opens nothing.

    Args:
        url: `memory://`, `sqlite:///absolute/path`, `tcp://host:port`, `tls://host:port` or
            `torch://host:port`.
        timeout_s: Seconds to wait for a server that does not answer.

    Raises:
        ConfigError: The URL names no store.
    """
    scheme = url.partition("://")[0]
    known: dict[str, Callable[[str, float], StoreAddress]] = {
        "memory": _memory,
        "sqlite": _sqlite,
        TCP: _remote,
        TLS: _remote,
        TORCH: _remote,
    }
    if "://" not in url or scheme not in known:
        raise ConfigError(f"no dispatch store {redact(url)!r}; there are {_KNOWN}")
    return known[scheme](url, timeout_s)


def bind_job(environ: Mapping[str, str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> StoreAddress:
    """The address of the store that the processes of this job share.

    Starts the server if this process has to: rank 0, if the launcher does not keep one.

    Args:
        environ: The environment variables that the launcher set, see `job_store`.
        timeout_s: Seconds to wait for a server that does not answer.

    Raises:
        DispatchError: The launcher names no place to meet, or the server cannot be started.
    """
    endpoint, is_hosted_here = job_store(environ)
    if is_hosted_here:
        _torch_module().host_server(endpoint)
    return _remote(endpoint.url, timeout_s)


def open_read_only(url: str) -> Store:
    """A handle for a caller that only reads. It does not create the file of a SQLite store.

    Raises:
        DispatchError: The URL names a file that does not exist.
    """
    address = bind(url)
    path = Path(url.removeprefix("sqlite://"))
    if url.startswith("sqlite://") and not exists(path):
        expected = "expected the file that a run's `dispatch.store` names, found none"
        raise DispatchError(f"no dispatch store at {redact(url)}: {expected}")
    return address.open()


def _memory(url: str, timeout_s: float) -> StoreAddress:
    return StoreAddress(url=url, timeout_s=timeout_s, memory=process_data(url))


def _sqlite(url: str, timeout_s: float) -> StoreAddress:
    path = Path(url.removeprefix("sqlite://"))
    if not path.is_absolute() or url.endswith("/"):
        raise ConfigError(
            f"dispatch store {redact(url)!r}: expected sqlite:///absolute/path/of/a/file"
        )
    return StoreAddress(url=url, timeout_s=timeout_s)


def _remote(url: str, timeout_s: float) -> StoreAddress:
    return StoreAddress(url=parse_endpoint(url).url, timeout_s=timeout_s, server=ServerIdentity())


def _torch_module() -> Any:
    """Imported only for torch's store: the other stores do not need torch."""
    try:
        return import_module("featstore.dispatch.stores.torch_store")
    except ModuleNotFoundError as error:
        raise missing_extra("a dispatch store torch://", error) from error
