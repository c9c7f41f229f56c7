"""A store that a `DispatchServer` keeps, for the processes of many hosts."""

import contextlib
import os
import secrets
import socket
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from featstore.base.errors import DispatchUnavailableError
from featstore.base.libraries import LazyModule
from featstore.dispatch.stores.endpoint import TLS, Endpoint
from featstore.dispatch.stores.served import Patience, ServedStore, ServerIdentity
from featstore.dispatch.stores.wire import (
    ACCEPTED,
    CA_VARIABLE,
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

if TYPE_CHECKING:
    import ssl
else:
    ssl = LazyModule("ssl")


class TcpStore(ServedStore):
    """A handle with a connection of its own; see `ServedStore`.

    A request is sent again with the same number, so that the server does it once.

    Args:
        endpoint: As of `ServedStore`.
        timeout_s: As of `ServedStore`.
        server: As of `ServedStore`.
        patience: As of `ServedStore`.

    Raises:
        DispatchError: The server cannot be reached, does not take the token, has no certificate
            that is trusted, or another one is in its place.
    """

    _no_answer = (OSError, EOFError, ValueError)

    def __init__(
        self, endpoint: Endpoint, *, timeout_s: float, server: ServerIdentity, patience: Patience
    ) -> None:
        certificate = "with" if endpoint.kind == TLS else "without"
        self._servers = f"`featstore dispatch serve` {certificate} --certificate"
        super().__init__(endpoint, timeout_s, server, patience)
        self._begin()
        self._ask([])  # Makes the connection.

    def _begin(self) -> None:
        self._connection: socket.socket | None = None
        self._client, self._number = uuid.uuid4().hex, 0

    def set(self, key: str, value: str) -> None:
        self._ask(["set", key, value])

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(["add", key, amount]))

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return str(self._ask(["compare_set", key, expected, desired]))

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        return list(self._ask(["get_many", list(keys)]))

    def _ask(self, request: list[Any]) -> Any:
        """The reply to a verb and its arguments."""
        reply = super()._ask(request)
        if len(reply) > 1:
            raise DispatchUnavailableError(f"dispatch store {self._endpoint.url}: {reply[1]}")
        return reply[0]

    def _until_answered(self, request: list[Any]) -> list[Any]:
        self._number += 1
        return list(super()._until_answered(pack([self._number, *request]) if request else b""))

    def _exchange(self, request: bytes, within_s: float) -> list[Any]:
        if self._connection is None:
            self._connection = socket.create_connection(
                (self._endpoint.host, self._endpoint.port), timeout=within_s
            )
            if self._endpoint.kind == TLS:
                self._encrypt(self._connection)
            self._greet(self._connection)
        self._connection.settimeout(within_s)
        self._connection.sendall(request)
        return self._receive_frame() if request else [None]

    def _encrypt(self, connection: socket.socket) -> None:
        file = os.environ.get(CA_VARIABLE) or None
        try:
            context = ssl.create_default_context(cafile=file)
        except OSError as error:
            raise self._failed(
                f": {CA_VARIABLE}={file} cannot be used: {error}; expected a PEM file of the "
                "authority's certificate"
            ) from error
        try:
            # A handshake that waits must be known as the connection, which others close.
            encrypted = context.wrap_socket(
                connection, server_hostname=self._endpoint.host, do_handshake_on_connect=False
            )
            self._connection = encrypted
            encrypted.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise self._failed(
                f": its certificate does not hold for {self._endpoint.host}: "
                f"{error.verify_message}; expected one that names this host, signed by an "
                f"authority in {file or 'the list of the system'} ({CA_VARIABLE} is a PEM file of "
                "others)"
            ) from error
        except ssl.SSLError as error:
            if error.reason != "WRONG_VERSION_NUMBER":
                raise  # A connection that broke.
            raise self._failed(
                ": what listens there does not speak TLS; a server without --certificate is tcp://"
            ) from error

    def _greet(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = self._receive(len(GREETING) + NONCE_BYTES)
        if not greeting.startswith(GREETING):
            raise self._failed(": what listens there is no dispatch server of this version")
        token, ours = os.environ.get(TOKEN_VARIABLE, ""), secrets.token_bytes(NONCE_BYTES)
        theirs = greeting[len(GREETING) :]
        connection.sendall(ours + proof(token, "client", theirs, ours))
        if self._receive(1) != ACCEPTED or not is_proof(
            self._receive(PROOF_BYTES), token, "server", theirs, ours
        ):
            raise self._failed(
                f": the server has another token: set {TOKEN_VARIABLE} to that with which it was "
                "started"
            )
        connection.sendall(pack([self._client]))
        name, is_durable = self._receive_frame()
        if not self._server.is_same(name, is_durable=is_durable):
            raise self._replaced()

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

    def _leave(self) -> None:
        if self._connection is not None:
            # The server can forget the last reply. That of a client that was killed it keeps.
            with contextlib.suppress(OSError):
                self._connection.sendall(pack([self._number, "leave"]))
            self._drop()

    def _interrupt(self) -> None:
        connection = self._connection
        # Unless the thread that waits for an answer has closed the connection.
        # The method of a TLS connection would take the keys from under that thread.
        with contextlib.suppress(OSError):
            if connection is not None:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _abandon(self) -> None:
        if self._connection is not None:
            self._connection.close()  # This process's copy only.
        self._begin()
