"""Where the server of a TCP store is, from a URL or from the environment that a launcher such as
torchrun sets, and what a process remembers of it. Does not import torch.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from featstore.base.errors import ConfigError, DispatchError
from featstore.base.processes import forget_in_child
from featstore.base.redaction import redact

TCP, TLS, TORCH = "tcp", "tls", "torch"
_MOST_IDLE = 4  # connections of a pool


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The host of a server, by name or address, and its port.

    Attributes:
        host: The host.
        port: The port.
        kind: What is served: `tcp` by featstore, `tls` the same under TLS, `torch` by torch's
            TCPStore.
    """

    host: str
    port: int
    kind: str = TCP

    @property
    def url(self) -> str:
        """`kind://host:port`, with an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{host}:{self.port}"


class ConnectionPool:
    """Connections to one server that no handle uses, for the next handle of this process.

    An epoch opens four or five handles, one after the other. Each new connection takes round trips,
    and torch looks up the server's name, which may take 5 s (docs/design/dispatch.md).
    Thread-safe. A copy in another process, forked or unpickled, begins empty.
    """

    def __init__(self) -> None:
        self._connections = list[Any]()
        self._lock = threading.Lock()
        # In a forked child. Kept, as dropping one would end it for the parent too.
        self._parent_connections: list[Any] = []
        forget_in_child(self)
        # The finalizer holds the list and not the pool, which could otherwise never be collected.
        # Not at exit: the threads of the connections are daemons, and end with the process.
        weakref.finalize(self, _leave_all, self._connections).atexit = False

    def __reduce__(self) -> tuple[Callable[..., "ConnectionPool"], tuple[()]]:
        return ConnectionPool, ()

    def take(self) -> Any | None:
        """A connection out of the pool, or None."""
        with self._lock:
            return self._connections.pop() if self._connections else None

    def put(self, connection: Any) -> bool:
        """Leaves a connection to the next handle. False if the pool is full."""
        with self._lock:
            if len(self._connections) >= _MOST_IDLE:
                return False
            self._connections.append(connection)
            return True

    def forget(self) -> None:
        """Empties the pool in a forked child, whose connections are the parent's."""
        self._lock = threading.Lock()
        self._parent_connections += self._connections
        self._connections.clear()


def _leave_all(connections: list[Any]) -> None:
    """Ends the connections of a pool that was garbage collected."""
    for connection in connections:
        connection.leave()


def parse_endpoint(url: str) -> Endpoint:
    """Reads `tcp://host:port`, `tls://host:port` or `torch://host:port`.

    Raises:
        ConfigError: The URL has no host or port, or has a user, path, query or fragment.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if (
        not host
        or not port
        or parts.scheme not in (TCP, TLS, TORCH)
        or any((parts.path, parts.query, parts.fragment, parts.username))
    ):
        kind = next((kind for kind in (TLS, TORCH) if url.startswith(kind)), TCP)
        expected = f"{kind}://host:port, with a port from 1 to 65535, and no user, path or query"
        raise ConfigError(f"dispatch store {redact(url)!r}: expected {expected}")
    return Endpoint(host=host, port=port, kind=parts.scheme)


def num_processes(environ: Mapping[str, str]) -> int:
    """How many processes the job has, by the launcher's WORLD_SIZE; 1 without it."""
    return int(environ.get("WORLD_SIZE") or 1)


def has_agent_store(environ: Mapping[str, str]) -> bool:
    """Whether the launcher keeps the job's store, which then outlives a restart of its workers."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def job_store(environ: Mapping[str, str]) -> tuple[Endpoint, bool]:
    """The store at MASTER_ADDR and MASTER_PORT, and whether this process must start its server.

    It is the launcher's own if TORCHELASTIC_USE_AGENT_STORE says so; otherwise rank 0 starts it
    there. `torch.distributed` with `env://` meets at the same place by the same rules, so both
    share one server.

    Raises:
        DispatchError: The environment has no MASTER_ADDR or MASTER_PORT.
    """
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host or not port:
        raise DispatchError(
            f"dispatch store 'auto' in one of {environ.get('WORLD_SIZE')} processes (WORLD_SIZE) "
            "needs a place to meet: expected MASTER_ADDR and MASTER_PORT, as torchrun sets them, "
            "found none; set them, or name a store: sqlite:///absolute/path for the processes of "
            "one host, tcp://host:port of `featstore dispatch serve` for many"
        )
    is_first = (environ.get("RANK") or "0") == "0"
    is_server = is_first and not has_agent_store(environ)
    return Endpoint(host=host, port=int(port), kind=TORCH), is_server
