"""Serves a dispatch store to processes of other hosts, from a thread of this process."""

import errno
import logging
import os
import secrets
import signal
import socket
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from featstore.base.closing import Closing
from featstore.base.errors import DispatchError, DispatchUnavailableError
from featstore.base.libraries import LazyModule
from featstore.base.processes import forget_in_child
from featstore.dispatch.stores.endpoint import TCP, TLS, Endpoint
from featstore.dispatch.stores.sqlite import ReplyingStore
from featstore.dispatch.stores.wire import (
    ACCEPTED,
    GREETING,
    LENGTH,
    NONCE_BYTES,
    PROOF_BYTES,
    REFUSED,
    TOKEN_VARIABLE,
    frame_bytes,
    is_proof,
    pack,
    proof,
    unpack,
)
from featstore.files.private_directory import PrivateDirectory

if TYPE_CHECKING:
    import asyncio
    import ssl
else:
    asyncio = LazyModule("asyncio")
    ssl = LazyModule("ssl")

_logger = logging.getLogger(__name__)
_NAME_KEY = "featstore/server"
# How long somebody who connects may take to show the token.
_HANDSHAKE_S = 10.0


class DispatchServer(Closing):
    """A store at `url`, until `close`. Made by `serve`.

    One thread runs an event loop and answers all clients, one request after the other. It owns the
    store and the connections; `close`, from any thread, only tells it to end. A forked child closes
    its copies of the connections, and serves nothing.

    Attributes:
        url: What `dispatch.store` of the workers is set to.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        file: Path | None,
        token: str,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        self._token, self._is_durable, self._tls = token, file is not None, tls
        with ExitStack() as failed:
            self._listener = failed.enter_context(_listen(host, port))
            if file is None:
                directory = PrivateDirectory()
                failed.callback(directory.remove)
                file = directory.path / "dispatch.db"
            self._data = _open(file, is_durable=self._is_durable)
            failed.callback(self._data.close)
            self._name = self._data.compare_set(_NAME_KEY, "", uuid.uuid4().hex)
            self._opened = failed.pop_all()
        found = int(self._listener.getsockname()[1])
        self.url = Endpoint(host=_reachable(host), port=found, kind=TLS if tls else TCP).url
        self._writers: dict[str, asyncio.StreamWriter] = {}  # of clients that have said their name
        self._talks: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._ready: Future[Callable[[], object]] = Future()
        self._thread = threading.Thread(
            target=self._run, name="featstore-dispatch-server", daemon=True
        )
        forget_in_child(self)
        self._thread.start()
        try:
            self._end = self._ready.result()
        except OSError as error:
            self._thread.join()
            self._opened.close()
            raise _not_served(host, port, error) from error

    def close(self) -> None:
        """Closes all connections and ends the thread. May be called more than once."""
        if self._thread.is_alive():
            self._end()
            self._thread.join()
        self._opened.close()

    def forget(self) -> None:
        """Closes the copies of the connections in a forked child, where no thread serves them.

        The transports that own them are part of the event loop, and stay as they are: they were in
        the hands of a thread that is not here.
        """
        self._listener.close()
        # A child of the child must not close these numbers again: they may be those of others then.
        self._talks_of_parent, self._talks = self._talks, {}
        for writer in self._talks_of_parent:
            number = writer.get_extra_info("socket").fileno()
            if number >= 0:  # Else the transport has closed it.
                os.close(number)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()  # It needs descriptors, too.
                runner.run(self._serve())
        except OSError as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(
            self._talk,
            sock=self._listener,
            backlog=1024,
            ssl=self._tls,
            ssl_handshake_timeout=_HANDSHAKE_S if self._tls else None,
        )
        self._ready.set_result(partial(loop.call_soon_threadsafe, ended.set))
        await ended.wait()
        server.close()
        for writer in self._talks:
            writer.transport.abort()
        # They end by themselves. Tasks that are cancelled would be reported as errors.
        await asyncio.gather(*self._talks.values())

    async def _talk(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        client = ""
        self._talks[writer] = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await asyncio.wait_for(self._greet(reader, writer), _HANDSHAKE_S)
            client = str((await _frame(reader))[0])
            # A client has one connection. What is still to be read from an older one is void: the
            # client has given it up.
            if client in self._writers:
                self._writers[client].transport.abort()
            self._writers[client] = writer
            writer.write(pack([self._name, self._is_durable]))
            while self._writers.get(client) is writer:
                request, verb, *arguments = await _frame(reader)
                if self._writers.get(client) is not writer:
                    break
                writer.write(pack(self._answer(client, request, verb, arguments)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client ended, or asks again on a new connection.
        # What a message that is none raises where it is unpacked, done, or bound to a statement.
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
            where = writer.get_extra_info("peername")
            _logger.warning("connection of %s to %s closed: %s", where, self.url, error)
        finally:
            if self._writers.get(client) is writer:
                del self._writers[client]
            del self._talks[writer]
            writer.close()

    async def _greet(self, reader: "asyncio.StreamReader", writer: "asyncio.StreamWriter") -> None:
        ours = secrets.token_bytes(NONCE_BYTES)
        writer.write(GREETING + ours)
        # Not a byte more is read before the token is known to be right.
        found = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
        theirs, shown = found[:NONCE_BYTES], found[NONCE_BYTES:]
        if not is_proof(shown, self._token, "client", ours, theirs):
            writer.write(REFUSED)
            raise ValueError(f"its {TOKEN_VARIABLE} is not that of the server")
        writer.write(ACCEPTED + proof(self._token, "server", ours, theirs))

    def _answer(self, client: str, number: int, verb: str, arguments: list[Any]) -> list[Any]:
        try:
            return [self._data.answer(client, number, verb, *arguments)]
        except DispatchError as error:
            return [None, str(error)]


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    file: str | Path | None = None,
    token: str | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
) -> DispatchServer:
    """Serves a dispatch store to the workers of a run, from a thread of this process.

    ```python
    with featstore.dispatch.serve("0.0.0.0", 29600, file="/data/dispatch.db") as server:
        run_workers(store=server.url)
    ```

    Args:
        host: The address to listen at; `0.0.0.0` for all interfaces.
        port: The port; 0 for any free one.
        file: Where the store's data are kept, on a local disk. A server that is started again with
            the same file goes on where the last one ended; workers wait for it for their
            `store_wait_s`. None keeps them in a temporary file: the run ends with the server.
        token: What workers must have in `FEATSTORE_DISPATCH_TOKEN`; by default that variable of
            this process. Empty: whoever reaches the port may read and write.
        certificate: A PEM file of the server's certificate and those that lead to its authority.
            All connections are then encrypted (`tls://`), and workers check that the certificate
            names the host, and that its authority is in the PEM file of `FEATSTORE_DISPATCH_CA`, by
            default in the system's list. None: nothing is encrypted (`tcp://`).
        key: A PEM file of the certificate's private key, without a password; by default in the
            certificate's file.

    Returns:
        The server, to be closed, or used in a `with` block.

    Raises:
        DispatchError: The address cannot be listened at, or a file cannot be used.
    """
    return DispatchServer(
        host,
        port,
        file=None if file is None else Path(file).absolute(),
        token=os.environ.get(TOKEN_VARIABLE, "") if token is None else token,
        tls=_tls(certificate, key),
    )


def serve_until_signal(
    host: str, port: int, on_ready: Callable[[str], None], **options: Any
) -> None:
    """Serves a store until SIGTERM or SIGINT. Call it from the main thread.

    Args:
        host: As of `serve`.
        port: As of `serve`.
        on_ready: Called with the store's URL once the server listens.
        **options: As of `serve`.

    Raises:
        DispatchError: As of `serve`.
    """
    ends = (signal.SIGTERM, signal.SIGINT)
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    # Any thread may get a signal. The main thread, in which Python runs handlers, would sleep on if
    # another one got it, but the signal's number comes through the socket in any case.
    before = [signal.signal(number, lambda *_: None) for number in ends]
    wakeup = signal.set_wakeup_fd(waker.fileno())
    try:
        with woken, waker, serve(host, port, **options) as server:
            on_ready(server.url)
            while woken.recv(1)[0] not in ends:
                pass
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(ends, before, strict=True):
            signal.signal(number, handler)


async def _frame(reader: "asyncio.StreamReader") -> list[Any]:
    length = frame_bytes(await reader.readexactly(LENGTH.size))
    return unpack(await reader.readexactly(length))


def _open(path: Path, *, is_durable: bool) -> ReplyingStore:
    try:
        return ReplyingStore(path, is_durable=is_durable)
    except DispatchError as error:
        raise type(error)(
            f"{error}; a file is for one server at a time: is another one running with it?"
        ) from error


def _tls(certificate: str | Path | None, key: str | Path | None) -> "ssl.SSLContext | None":
    if certificate is None:
        if key is not None:
            raise DispatchError(f"key {key}: expected its certificate too, found none")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without the function a key with a password would wait for one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:
        raise DispatchError(
            f"certificate {certificate}, key {key or 'in the same file'}: cannot be used: {error}; "
            "expected PEM files that belong together, the key without a password"
        ) from error
    return context


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        raise _not_served(host, port, error) from error


def _not_served(host: str, port: int, error: OSError) -> DispatchError:
    # An earlier server may still be about to end.
    kind = DispatchUnavailableError if error.errno == errno.EADDRINUSE else DispatchError
    return kind(
        f"dispatch store tcp://{host}:{port} cannot be served: {error}; choose another --host or "
        f"--port"
    )


def _reachable(host: str) -> str:
    """A host name for other machines, if `host` stands for all addresses of this one."""
    if host not in ("", "0.0.0.0", "::"):
        return host
    name = socket.getfqdn()
    # A machine whose name is among those of the loopback address has the first of them.
    return socket.gethostname() if name.startswith("localhost") else name
