"""A store in the memory of one server, for the processes of a job: torch's TCPStore, which the
launcher or rank 0 keeps.

A call of torch's client cannot be interrupted, and waits for ever for a server that neither answers
nor closes its connection. Each handle therefore has a thread that calls torch, and the caller waits
for its answer no longer than the timeout.
"""

import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.base.errors import DispatchError
from featstore.base.processes import forget_in_child
from featstore.dispatch.stores.endpoint import (
    ConnectionPool,
    Endpoint,
    ServedStore,
    ServerIdentity,
    first_line,
)

_SERVER_KEY = "featstore/server"
# Between two attempts to reach a server that does not listen yet.
_RETRY_S = 0.1
# torch looks up the name of the address that it has connected to. The resolver asks again after 5 s
# and gives up after 10 (docs/design/dispatch.md).
_CONNECT_S = 11.0
_Act = Callable[[TCPStore], Any]


class TorchStore(ServedStore):
    """A handle with a connection of its own, safe for threads and for fork; see `Store`.

    Threads that share a handle wait for each other. Once the server is lost, every call raises: its
    data are gone, so a handle never reconnects. A forked child makes a connection of its own and
    leaves the parent's alone.

    `_lock` guards the connection and the state of the handle. It is held while a connection is
    made, and not during requests.

    Args:
        endpoint: Where the server is.
        timeout_s: Seconds without an answer after which the server counts as lost.
        server: Remembers the server, to notice one that took its place.
        connections: A pool from which the handle takes its connection, and to which it returns it.

    Raises:
        DispatchError: The server cannot be reached, or another one is in its place.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        server: ServerIdentity,
        connections: ConnectionPool | None = None,
    ) -> None:
        super().__init__(endpoint, timeout_s, server)
        self._pool = connections
        self._lock = threading.Lock()
        self._connection: _TorchConnection | None = None
        self._is_closed = False
        forget_in_child(self)
        self._connected()

    def set(self, key: str, value: str) -> None:
        """See `Store`. Torch's `set` does not wait for the server, which may serve another handle
        first. It answers the check after it has stored the value.
        """
        self._ask(lambda store: store.set(key, value))
        self._ask(lambda store: store.check([key]))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(lambda store: store.add(key, amount)))

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return str(self._ask(lambda store: store.compare_set(key, expected, desired).decode()))

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        """See `Store`. Takes two exchanges if all keys exist: torch's `multi_get` waits for a
        missing one, so they are checked first.
        """
        found: list[str | None] = self._ask(partial(_get_many, keys=list(keys)))
        return found

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connection, self._connection = self._connection, None
        if connection is not None and not (self._pool is not None and self._pool.put(connection)):
            connection.close(self._timeout_s)

    def forget(self) -> None:
        """Drops the connection in a forked child: it is the parent's, whose thread is not here."""
        self._lock = threading.Lock()
        if self._connection is not None:
            _parent_connections.append(self._connection)
            self._connection = None

    def _ask(self, act: _Act) -> Any:
        connection = self._connected()
        try:
            return connection.ask(act, self._timeout_s)
        except (RuntimeError, OSError) as error:
            raise self._lost(error) from error

    def _connected(self) -> "_TorchConnection":
        with self._lock:
            self._require_usable(is_closed=self._is_closed)
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def _spare(self) -> tuple["_TorchConnection", str] | None:
        """A spare connection on which the server still answers, and the server's name."""
        while self._pool is not None and (connection := self._pool.take()) is not None:
            try:
                return connection, connection.ask(_server_name, self._timeout_s)
            except (RuntimeError, OSError):
                # A new connection will show whether a server is there, and which one.
                connection.close(self._timeout_s)
        return None

    def _connect(self) -> "_TorchConnection":
        connection, name = self._spare() or (None, "")
        try:
            if connection is None:
                _await_server(self._endpoint, self._timeout_s)
                connection = _TorchConnection(self._endpoint, self._timeout_s)
                name = connection.ask(_server_name, max(self._timeout_s, _CONNECT_S))
        except (RuntimeError, OSError) as error:
            if connection is not None:
                connection.leave()
            servers = "the launcher's, or that of rank 0 of the job"
            raise self._unreachable(error, servers) from error
        if not self._server.is_same(name):
            connection.close(self._timeout_s)
            raise self._replaced()
        return connection

    def _lost(self, error: Exception) -> DispatchError:
        with self._lock:
            lost = super()._lost(error)
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave()
        return lost


class _TorchConnection:
    """A connection, and the thread that owns torch's client. Several threads may call `ask`.

    Once the thread ends it drops the client, which closes the connection.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._requests = queue.SimpleQueue[tuple[_Act, Future[Any]] | None]()
        # A daemon: a call that never returns must not keep the process alive.
        self._thread = threading.Thread(
            target=self._talk, args=(endpoint, timeout_s), name="featstore-torch-store", daemon=True
        )
        self._thread.start()

    def ask(self, act: _Act, timeout_s: float) -> Any:
        """Calls `act` with the client, and returns or raises what it does.

        Raises:
            TimeoutError: There was no answer in time. The thread may be stuck: call `leave`.
        """
        reply = Future[Any]()
        self._requests.put((act, reply))
        try:
            return reply.result(timeout_s)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    def leave(self) -> None:
        """Ends the thread once it is not waiting for the server. Does not wait for it."""
        self._requests.put(None)

    def close(self, timeout_s: float) -> None:
        """Ends the thread, and waits at most `timeout_s` for it."""
        self.leave()
        self._thread.join(timeout_s)

    def _talk(self, endpoint: Endpoint, timeout_s: float) -> None:
        store: TCPStore | None = None
        while (request := self._requests.get()) is not None:
            act, reply = request
            try:
                store = store or _client(endpoint, timeout_s)
                reply.set_result(act(store))
            except Exception as error:  # noqa: BLE001  The caller raises it.
                reply.set_exception(error)
            # Else the last answer, or an error with its frames, would live until the next request.
            del act, reply, request


def host_server(endpoint: Endpoint) -> None:
    """Starts the server of a job's store. It lives as long as this process.

    `torch.distributed` with `env://` shares the server, in either order: `multi_tenant` makes torch
    return the server that this process has at the port already.

    Raises:
        DispatchError: The port is taken by something else.
    """
    try:
        _hosted.append(
            TCPStore(
                endpoint.host,
                endpoint.port,
                is_master=True,
                wait_for_workers=False,
                multi_tenant=True,
            )
        )
    except (RuntimeError, OSError) as error:
        raise DispatchError(
            f"dispatch store {endpoint.url} cannot be started by rank 0: {first_line(error)}"
        ) from error


def _client(endpoint: Endpoint, timeout_s: float) -> TCPStore:
    timeout = timedelta(seconds=timeout_s)
    return TCPStore(
        endpoint.host, endpoint.port, is_master=False, wait_for_workers=False, timeout=timeout
    )


def _server_name(store: TCPStore) -> str:
    """The random name that the first client gave the server."""
    return str(store.compare_set(_SERVER_KEY, "", uuid.uuid4().hex).decode())


def _get_many(store: TCPStore, keys: list[str]) -> list[str | None]:
    """Reads the keys by halves: a half of which all keys exist takes two exchanges."""
    if not keys:
        return []
    if store.check(keys):
        return [value.decode() for value in store.multi_get(keys)]
    if len(keys) == 1:
        return [None]
    middle = len(keys) // 2
    return _get_many(store, keys[:middle]) + _get_many(store, keys[middle:])


def _await_server(endpoint: Endpoint, timeout_s: float) -> None:
    """Waits until something listens at the endpoint, because workers may start before their server.

    torch would wait too, but for longer than it is told (7 s for 2 s), and it prints pages of
    native stack traces (docs/design/dispatch.md).
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(
                (endpoint.host, endpoint.port), timeout=max(0.01, deadline - time.monotonic())
            ).close()
            return
        except OSError:
            if time.monotonic() + _RETRY_S > deadline:
                raise
            time.sleep(_RETRY_S)


# The parent's connections in a forked child. Kept, as dropping one would end it for the parent too.
_parent_connections: list[_TorchConnection] = []
_hosted: list[TCPStore] = []
