"""A store in the memory of one server, for the processes of a job: torch's TCPStore, which the
launcher or rank 0 keeps.

A call of torch's client cannot be interrupted, and waits for ever for a server that neither answers
nor closes its connection. Each connection therefore has a thread that calls torch, and the caller
waits for its answer no longer than it wants to. A thread that is left to its call may send the
request once more, late: so nothing is written here but by `compare_set` and `add`.
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

from featstore.base.errors import DispatchUnavailableError
from featstore.dispatch.stores.endpoint import ConnectionPool, Endpoint
from featstore.dispatch.stores.served import (
    LEAST_ATTEMPT_S,
    Patience,
    ServedStore,
    ServerIdentity,
    first_line,
)

_SERVER_KEY = "featstore/server"
# torch looks up the name of the address that it has connected to. The resolver asks again after 5 s
# and gives up after 10 (docs/design/dispatch.md).
_CONNECT_S = 11.0
# How often a caller that waits for an answer looks whether it still wants to.
_GLANCE_S = 0.25
# What the end of an idle connection may take: a bound that is not met.
_CLOSE_S = 10.0
_Act = Callable[[TCPStore], Any]


class TorchStore(ServedStore):
    """A handle with a connection of its own; see `ServedStore`. A forked child makes a connection
    of its own and leaves the parent's alone.

    A request that is sent again may be done twice: `add` then counts twice, and `compare_set` does
    nothing the second time.

    Args:
        endpoint: As of `ServedStore`.
        timeout_s: As of `ServedStore`.
        server: As of `ServedStore`.
        patience: As of `ServedStore`.
        connections: A pool from which the handle takes its connection, and to which it returns it.

    Raises:
        DispatchError: The server cannot be reached, or another one is in its place.
    """

    _servers = "the launcher's, or that of rank 0 of the job"
    _no_answer = (OSError, RuntimeError)

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        server: ServerIdentity,
        patience: Patience,
        connections: ConnectionPool | None = None,
    ) -> None:
        super().__init__(endpoint, timeout_s, server, patience)
        self._pool, self._left = connections, list[_TorchConnection]()
        self._connection: _TorchConnection | None = None
        self._ask(lambda _: None)

    def set(self, key: str, value: str) -> None:
        """See `Store`. By `compare_set`: torch's `set` is not answered, so that a later `get` of
        another handle may be served first, and one that arrives late would undo a later one.
        """
        found = self.compare_set(key, "", value)
        while found != value:
            found = self.compare_set(key, found, value)

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

    def _attempt_s(self) -> float:
        """Doubled for each connection whose thread still waits for the server: one that is stopped
        accepts further ones and answers the last of them, too, once it goes on.
        """
        self._left = [connection for connection in self._left if connection.is_alive()]
        return float(super()._attempt_s() * 2 ** len(self._left))

    def _exchange(self, request: _Act, within_s: float) -> Any:
        if self._connection is None:
            self._connect(within_s)
        assert self._connection is not None
        return self._connection.ask(request, self._is_given_up(within_s))

    def _is_given_up(self, within_s: float) -> Callable[[], bool]:
        """Whether nobody waits for an answer any more, so many seconds from now or earlier."""
        now_s = time.monotonic()
        until_s, least_s = now_s + within_s, now_s + LEAST_ATTEMPT_S
        return lambda: (
            self._closed.is_set()
            or time.monotonic() > min(until_s, max(least_s, self._patience.until_s))
        )

    def _connect(self, within_s: float) -> None:
        """Takes a connection of the pool on which the server answers, or makes a new one."""
        self._connection = None if self._pool is None else self._pool.take()
        if self._connection is None:
            # torch prints pages of native stack traces if nothing listens, and takes 7 s for 2
            # (docs/design/dispatch.md).
            socket.create_connection(
                (self._endpoint.host, self._endpoint.port), timeout=within_s
            ).close()
            self._connection = _TorchConnection(self._endpoint)
            within_s = max(within_s, _CONNECT_S)
        if not self._server.is_same(
            self._connection.ask(_server_name, self._is_given_up(within_s))
        ):
            self._connection.close()
            raise self._replaced()

    def _drop(self) -> None:
        """And those of the pool, which are not better."""
        connection, self._connection = self._connection, None
        while connection is not None:
            connection.leave()
            self._left.append(connection)
            connection = None if self._pool is None else self._pool.take()

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not (self._pool is not None and self._pool.put(connection)):
            connection.close()

    def _interrupt(self) -> None:
        """Does nothing: who waits for an answer looks by itself."""

    def _abandon(self) -> None:
        """In a forked child: the connection is the parent's, whose thread is not here."""
        _parent_connections.extend(self._left)
        if self._connection is not None:
            _parent_connections.append(self._connection)
        self._connection, self._left = None, []


class _TorchConnection:
    """A connection, and the thread that owns torch's client.

    Once the thread ends it drops the client, which closes the connection.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._requests = queue.SimpleQueue[tuple[_Act, Future[Any]] | None]()
        # A daemon: a call that never returns must not keep the process alive.
        self._thread = threading.Thread(
            target=self._talk, args=(endpoint,), name="featstore-torch-store", daemon=True
        )
        self._thread.start()

    def ask(self, act: _Act, is_given_up: Callable[[], bool]) -> Any:
        """Calls `act` with the client, and returns or raises what it does.

        Raises:
            TimeoutError: It was given up before there was an answer. The thread may be stuck: call
                `leave`.
        """
        reply, began_s = Future[Any](), time.monotonic()
        self._requests.put((act, reply))
        while True:
            try:
                return reply.result(_GLANCE_S)
            except TimeoutError:
                if not reply.done() and is_given_up():
                    waited_s = time.monotonic() - began_s
                    raise TimeoutError(f"no answer within {waited_s:.1f} s") from None

    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def leave(self) -> None:
        """Ends the thread once it is not waiting for the server. Does not wait for it."""
        self._requests.put(None)

    def close(self) -> None:
        """Ends the thread, which is not waiting for the server, and waits for it."""
        self.leave()
        self._thread.join(_CLOSE_S)

    def _talk(self, endpoint: Endpoint) -> None:
        store: TCPStore | None = None
        while (request := self._requests.get()) is not None:
            act, reply = request
            try:
                store = store or _client(endpoint)
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
        raise DispatchUnavailableError(
            f"dispatch store {endpoint.url} cannot be started by rank 0: {first_line(error)}"
        ) from error


def _client(endpoint: Endpoint) -> TCPStore:
    timeout = timedelta(seconds=_CONNECT_S)
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


# The parent's connections in a forked child. Kept, as dropping one would end it for the parent too.
_parent_connections: list[_TorchConnection] = []
_hosted: list[TCPStore] = []
