"""A store in the memory of one server, for the processes of many hosts: torch's TCPStore.

A call of torch's cannot be interrupted, and waits for ever for a server that neither answers nor
closes its connection. So each handle has a thread that talks, and whoever asks waits for its answer
no longer than the timeout.
"""

import os
import queue
import signal
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from featstore.dispatch.stores.endpoint import Endpoint, ServerMark, Spares
from featstore.errors import DispatchError

_SERVER_KEY = "featstore/server"
_RETRY_S = 0.1
_MANY = 256
# torch looks up the name of the address that it has connected to; the resolver asks again after 5
# s, and gives up after 10.
_CONNECT_S = 11.0
_Act = Callable[[TCPStore], Any]


class TcpStore:
    """A handle with a connection of its own, safe for threads and for fork; see `Store`.

    Threads that share a handle wait for each other. Once the server was lost every call says so:
    what it held is gone, so no handle connects again. A forked child gets a connection of its own,
    and leaves the parent's alone. A handle begins with one of the `spares`, and leaves its
    connection there.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        mark: ServerMark,
        spares: Spares | None = None,
    ) -> None:
        self._endpoint, self._timeout_s, self._mark, self._spares = (
            endpoint,
            timeout_s,
            mark,
            spares,
        )
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self._is_closed = False
        self._failure: str | None = None
        _handles.add(self)
        self._connected()

    def set(self, key: str, value: str) -> None:
        self._ask(lambda store: store.set(key, value))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(lambda store: store.add(key, amount)))

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return str(self._ask(lambda store: store.compare_set(key, expected, desired).decode()))

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask(lambda store: store.check(keys)))

    def get_or_none(self, key: str) -> str | None:
        """torch's `get` waits for a missing key, so it is asked for only once the key is there; no
        key is ever deleted.
        """
        value = self._ask(lambda store: store.get(key).decode() if store.check([key]) else None)
        return None if value is None else str(value)

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        """Two exchanges for keys that are all there; torch's `multi_get` would wait for one that is
        missing.
        """
        found = []
        for first in range(0, len(keys), _MANY):
            found += self._ask(partial(_get_many, keys=list(keys[first : first + _MANY])))
        return found

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            line, self._line = self._line, None
        if line is not None and not (self._spares is not None and self._spares.keep(line)):
            line.close(self._timeout_s)

    def forget(self) -> None:
        """In a forked child: the thread is not here, and the connection is the parent's."""
        self._lock = threading.Lock()
        if self._line is not None:
            _parents_lines.append(self._line)
            self._line = None

    def _ask(self, act: _Act) -> Any:
        line = self._connected()
        try:
            return line.ask(act, self._timeout_s)
        except (RuntimeError, OSError) as error:
            raise self._lost(error) from error

    def _connected(self) -> "_Line":
        with self._lock:
            if self._is_closed:
                raise DispatchError(f"this handle of dispatch store {self._endpoint.url} is closed")
            if self._failure is not None:
                raise DispatchError(self._failure)
            if self._line is None:
                self._line = self._connect()
            return self._line

    def _spare(self) -> tuple["_Line", str] | None:
        """A spare connection on which the server still answers, and the server's name."""
        while self._spares is not None and (line := self._spares.take()) is not None:
            try:
                return line, line.ask(_server_name, self._timeout_s)
            except (RuntimeError, OSError):  # Who answers there now is asked on a new connection.
                line.close(self._timeout_s)
        return None

    def _connect(self) -> "_Line":
        line, name = self._spare() or (None, "")
        try:
            if line is None:
                _await_server(self._endpoint, self._timeout_s)
                line = _Line(self._endpoint, self._timeout_s)
                name = line.ask(_server_name, max(self._timeout_s, _CONNECT_S))
        except (RuntimeError, OSError) as error:
            if line is not None:
                line.leave()
            raise DispatchError(
                f"dispatch store {self._endpoint.url} cannot be reached within {self._timeout_s:g} "
                f"s: {_first_line(error)}; "
                "is its server running (`featstore dispatch serve`, or rank 0 of the job), and the "
                "port open?"
            ) from error
        if not self._mark.is_same(name):
            line.close(self._timeout_s)
            raise DispatchError(
                f"dispatch store {self._endpoint.url} was lost: another server, which holds "
                f"nothing of this run, is in its "
                "place; restart all workers from their last checkpoint"
            )
        return line

    def _lost(self, error: Exception) -> DispatchError:
        why = (
            f"no answer within {self._timeout_s:g} s"
            if isinstance(error, TimeoutError)
            else _first_line(error)
        )
        with self._lock:
            self._failure = self._failure or (
                f"dispatch store {self._endpoint.url} is lost, and with it who reads what: {why}; "
                "restart its server and all workers from their last checkpoint"
            )
            line, self._line = self._line, None
        if line is not None:
            line.leave()
        return DispatchError(self._failure)


class _Line:
    """A connection, and the thread that talks on it; torch closes the connection where the thread
    ends.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._requests: queue.SimpleQueue[tuple[_Act, queue.SimpleQueue[Any]] | None] = (
            queue.SimpleQueue()
        )
        # A daemon: a call that never returns must not keep the process from ending.
        self._thread = threading.Thread(
            target=self._talk, args=(endpoint, timeout_s), name="featstore-tcp-store", daemon=True
        )
        self._thread.start()

    def ask(self, act: _Act, timeout_s: float) -> Any:
        """What `act` returns or raises; TimeoutError where it takes too long."""
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put((act, reply))
        try:
            is_error, result = reply.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None
        if is_error:
            raise result
        return result

    def leave(self) -> None:
        """Ends the thread as soon as it is not waiting for the server."""
        self._requests.put(None)

    def close(self, timeout_s: float) -> None:
        self.leave()
        self._thread.join(timeout_s)

    def _talk(self, endpoint: Endpoint, timeout_s: float) -> None:
        store: TCPStore | None = None
        while (request := self._requests.get()) is not None:
            act, reply = request
            try:
                store = store or _client(endpoint, timeout_s)
                answer: tuple[bool, Any] = False, act(store)
            except Exception as error:  # noqa: BLE001  A thread hands what went wrong to the one who asked.
                answer = True, error
            reply.put(answer)
            del act, reply, request, answer


def host_server(endpoint: Endpoint) -> None:
    """Starts the server of a job's store in this process, to its end, unless the process has one at
    that port already.

    `torch.distributed` with `env://` finds and shares it, before or after. DispatchError where the
    port is taken.
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
            f"dispatch store {endpoint.url} cannot be started by rank 0: {_first_line(error)}"
        ) from error


def serve(host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serves a store, at a free port if `port` is 0, until SIGTERM or SIGINT; `on_ready` gets its
    address as a URL.

    Everybody who reaches the port may read and write: it belongs into a trusted network.
    DispatchError where the address cannot be had. To be called by the main thread.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    blocked = signal.pthread_sigmask(
        signal.SIG_BLOCK, ends
    )  # Before torch's threads begin, which must not take them.
    try:
        listener = _listen(host, port)
        port = int(listener.getsockname()[1])
        server = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        on_ready(Endpoint(host=_reachable(host), port=port).url)
        signal.sigwait(ends)
        del server
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _listen(host: str, port: int) -> socket.socket:
    """A socket of torch's choice would listen on every address of the machine."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        raise DispatchError(
            f"dispatch store tcp://{host}:{port} cannot be served: {error}; choose another --host "
            f"or --port"
        ) from error


def _reachable(host: str) -> str:
    """What to tell others of an address that stands for all of the machine's."""
    return socket.getfqdn() if host in ("", "0.0.0.0", "::") else host


def _client(endpoint: Endpoint, timeout_s: float) -> TCPStore:
    timeout = timedelta(seconds=timeout_s)
    return TCPStore(
        endpoint.host, endpoint.port, is_master=False, wait_for_workers=False, timeout=timeout
    )


def _server_name(store: TCPStore) -> str:
    """What the first to ask called the server."""
    return str(store.compare_set(_SERVER_KEY, "", uuid.uuid4().hex).decode())


def _get_many(store: TCPStore, keys: list[str]) -> list[str | None]:
    """Halves the keys until all of a part are there, or one is alone and missing."""
    if not keys:
        return []
    if store.check(keys):
        return [value.decode() for value in store.multi_get(keys)]
    if len(keys) == 1:
        return [None]
    middle = len(keys) // 2
    return _get_many(store, keys[:middle]) + _get_many(store, keys[middle:])


def _await_server(endpoint: Endpoint, timeout_s: float) -> None:
    """Returns once somebody listens there: workers may start before their server.

    torch would try as well, but longer than it is told, and with pages of native stack traces on
    standard error.
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


def _first_line(error: Exception) -> str:
    """torch appends the native stack to its messages."""
    return (str(error).splitlines() or [type(error).__name__])[0]


_handles: "weakref.WeakSet[TcpStore]" = weakref.WeakSet()
_parents_lines: list[
    _Line
] = []  # Kept in a forked child: their end would be said on the parent's connection.
_hosted: list[TCPStore] = []


def _after_fork() -> None:
    for handle in list(_handles):
        handle.forget()


os.register_at_fork(after_in_child=_after_fork)
