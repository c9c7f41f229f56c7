"""Where a TCP store's server is, from a URL or from what a launcher such as torchrun tells its
processes, and what a process keeps of it. Without torch."""

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from featstore.errors import ConfigError, DispatchError
from featstore.redaction import redact


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A server's host, by name or number, and its port."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class JobStore:
    """The store of a job of several processes; `is_hosted_here`: nobody else starts its server, so
    this process does.
    """

    endpoint: Endpoint
    is_hosted_here: bool


class ServerMark:
    """Which server a store's address was first connected to: one that took its place holds nothing
    of the run.

    Goes along with the address to other processes.
    """

    def __init__(self) -> None:
        self._name: str | None = None

    def is_same(self, name: str) -> bool:
        """Whether this is the server that was met first; the first one always is."""
        self._name = self._name or name
        return self._name == name


class Spares:
    """Connections to one server that no handle uses, for the next handle of the process: to connect
    takes round trips, and torch looks the server's name up, for which a resolver may take seconds.

    Safe for threads. A copy in another process, forked or sent, begins with none.
    """

    def __init__(self, most: int = 4) -> None:
        self._most, self._lines, self._lock = most, list[Any](), threading.Lock()
        self._parents: list[Any] = []  # Kept: their end would be said on the parent's connections.
        _spares.add(self)
        weakref.finalize(self, _leave, self._lines).atexit = False

    def __reduce__(self) -> tuple[Callable[..., "Spares"], tuple[int]]:
        return Spares, (self._most,)

    def take(self) -> Any | None:
        with self._lock:
            return self._lines.pop() if self._lines else None

    def keep(self, line: Any) -> bool:
        """False where there are enough."""
        with self._lock:
            if len(self._lines) >= self._most:
                return False
            self._lines.append(line)
            return True

    def forget(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()
        self._parents += self._lines
        self._lines.clear()


def _leave(lines: list[Any]) -> None:
    """Nobody can ask for them any more."""
    for line in lines:
        line.leave()


_spares: "weakref.WeakSet[Spares]" = weakref.WeakSet()


def _after_fork() -> None:
    for spares in list(_spares):
        spares.forget()


os.register_at_fork(after_in_child=_after_fork)


def parse_endpoint(url: str) -> Endpoint:
    """The endpoint that `tcp://host:port` names; ConfigError for any other text."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if (
        not host
        or not port
        or parts.scheme != "tcp"
        or any((parts.path, parts.query, parts.fragment, parts.username))
    ):
        expected = "tcp://host:port, with a port from 1 to 65535, and no user, path or query"
        raise ConfigError(f"dispatch store {redact(url)!r}: expected {expected}")
    return Endpoint(host=host, port=port)


def num_processes(environ: Mapping[str, str]) -> int:
    """How many processes the job has, as its launcher says in WORLD_SIZE."""
    return int(environ.get("WORLD_SIZE") or 1)


def job_store(environ: Mapping[str, str]) -> JobStore:
    """The store at MASTER_ADDR and MASTER_PORT: the launcher's own where it keeps one, else rank 0
    starts it there.

    That is where `torch.distributed` with `env://` meets too, under the same rules, so both share
    one server. DispatchError where the launcher tells no place to meet.
    """
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host or not port:
        raise DispatchError(
            f"dispatch store 'auto' in one of {environ.get('WORLD_SIZE')} processes (WORLD_SIZE) "
            f"needs a place to meet: "
            "expected MASTER_ADDR and MASTER_PORT, as torchrun sets them, found none; or name a "
            "store: "
            "sqlite:///absolute/path for the processes of one host, tcp://host:port of `featstore "
            "dispatch serve` for many"
        )
    has_server = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_first = (environ.get("RANK") or "0") == "0"
    return JobStore(
        endpoint=Endpoint(host=host, port=int(port)), is_hosted_here=is_first and not has_server
    )
