"""A store that a `DispatchServer` keeps, for the processes of many hosts."""

import contextlib
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from featstore.base.errors import DispatchError
from featstore.base.processes import forget_in_child
from featstore.dispatch.stores.endpoint import Endpoint, ServedStore, ServerIdentity
from featstore.dispatch.stores.wire import (
    ACCEPTED,
    GREETING,
    LENGTH,
    NONCE_BYTES,
    PROOF_BYTES,
    TOKEN_VARIABLE,
    frame_bytes,
    is_proof,
    pack,
    proof,
    unpack,
)

# Between two attempts to reach a server.
_RETRY_S = 0.1
# Of the timeout, what one attempt may take: a connection to a host that is gone gives no error.
_ATTEMPT_SHARE = 1 / 3


class TcpStore(ServedStore):
    """A handle with a connection of its own, safe for threads and for fork; see `Store`.

    A request that gets no answer is sent again, on a new connection and with the same number, so
    that the server does it once. It is given up after the timeout, or at once if the server has no
    file from which it could come back. Then every call raises.

    `_lock` guards the connection and the number, and is held during a request: threads that share a
    handle wait for each other. `close` does not wait for it.

    Args:
        endpoint: Where the server is.
        timeout_s: Seconds without an answer after which the server counts as lost.
        server: Remembers the server, to notice one that took its place.

    Raises:
        DispatchError: The server cannot be reached, does not take the token, or another one is in
            its place.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, server: ServerIdentity) -> None:
        super().__init__(endpoint, timeout_s, server)
        self._is_durable = True  # Known once it is connected: a server may be awaited.
        self._begin(is_closed=False)
        forget_in_child(self)
        with self._lock:
            self._until_answered(lambda: None, first=True)

    def set(self, key: str, value: str) -> None:
        self._ask("set", key, value)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return str(self._ask("compare_set", key, expected, desired))

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        return list(self._ask("get_many", list(keys)))

    def close(self) -> None:
        self._closed.set()
        connection = self._connection
        if connection is None:
            return
        if self._lock.acquire(blocking=False):
            # The server can forget the last reply. That of a client that was killed it keeps.
            with contextlib.suppress(OSError):
                connection.sendall(pack([self._number, "leave"]))
            self._drop()
            self._lock.release()
        else:
            # Wakes up the thread that waits for an answer, unless it has closed the connection.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Starts over in a forked child: the connection and its numbers are the parent's."""
        if self._connection is not None:
            self._connection.close()  # This process's copy only.
        self._begin(is_closed=self._closed.is_set())

    def _begin(self, *, is_closed: bool) -> None:
        self._lock, self._closed = threading.Lock(), threading.Event()
        if is_closed:
            self._closed.set()
        self._connection: socket.socket | None = None
        self._client, self._number = uuid.uuid4().hex, 0

    def _ask(self, verb: str, *arguments: Any) -> Any:
        with self._lock:
            self._number += 1
            request = pack([self._number, verb, *arguments])
            reply = self._until_answered(lambda: self._exchange(request))
            if self._closed.is_set():
                self._drop()  # `close` found this thread at work, and left the connection to it.
        if len(reply) > 1:
            raise DispatchError(f"dispatch store {self._endpoint.url}: {reply[1]}")
        return reply[0]

    def _until_answered(self, act: Callable[[], Any], *, first: bool = False) -> Any:
        """Calls `act` with a connection, until it succeeds or the time is over."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._require_usable(is_closed=self._closed.is_set())
            try:
                share = _ATTEMPT_SHARE if self._is_durable else 1.0
                left_s = deadline - time.monotonic()
                self._connect(max(0.01, min(left_s, share * self._timeout_s)))
                return act()
            except (OSError, EOFError, ValueError) as error:
                self._drop()
                can_wait = first or self._is_durable
                if not can_wait or time.monotonic() + _RETRY_S > deadline:
                    if first:
                        raise self._unreachable(error, "`featstore dispatch serve`") from error
                    raise self._lost(error) from error
                self._closed.wait(_RETRY_S)
            except BaseException:
                # A signal handler may raise at any time. The reply that is still to come would be
                # taken for that of the next request.
                self._drop()
                raise

    def _connect(self, timeout_s: float) -> None:
        if self._connection is not None:
            self._connection.settimeout(timeout_s)
            return
        self._connection = socket.create_connection(
            (self._endpoint.host, self._endpoint.port), timeout=timeout_s
        )
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = self._receive(len(GREETING) + NONCE_BYTES)
        if not greeting.startswith(GREETING):
            raise ValueError("what listens there is no dispatch server of this version")
        token, ours = os.environ.get(TOKEN_VARIABLE, ""), secrets.token_bytes(NONCE_BYTES)
        theirs = greeting[len(GREETING) :]
        self._connection.sendall(ours + proof(token, "client", theirs, ours))
        if self._receive(1) != ACCEPTED or not is_proof(
            self._receive(PROOF_BYTES), token, "server", theirs, ours
        ):
            raise self._failed(
                f": the server has another token: set {TOKEN_VARIABLE} to that with which it was "
                "started"
            )
        self._connection.sendall(pack([self._client]))
        name, self._is_durable = self._receive_frame()
        if not self._server.is_same(name):
            raise self._replaced()

    def _exchange(self, request: bytes) -> list[Any]:
        assert self._connection is not None  # `_connect` was called
        self._connection.sendall(request)
        return self._receive_frame()

    def _receive_frame(self) -> list[Any]:
        return unpack(self._receive(frame_bytes(self._receive(LENGTH.size))))

    def _receive(self, num_bytes: int) -> bytes:
        assert self._connection is not None
        parts, left = list[bytes](), num_bytes
        while left:
            part = self._connection.recv(left)
            if not part:
                raise EOFError("the server closed the connection")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
