"""What lies between a client and its server, and fails as networks do."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from featstore.dispatch.stores.endpoint import Endpoint, parse_endpoint

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset.


class Forwarder:
    """Passes connections on to a server, until the end of a `with` block.

    Args:
        url: The server's.
        loses: Asked at each reply whether it is lost: both connections are then reset.

    Attributes:
        url: What clients connect to.
        num_lost: Replies that were lost.
        passed: Whatever came from either end.
    """

    def __init__(self, url: str, loses: Callable[[], bool] = lambda: False) -> None:
        self._server, self._loses = parse_endpoint(url), loses
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        port = self._listener.getsockname()[1]
        self.url = Endpoint(host="127.0.0.1", port=port, kind=self._server.kind).url
        self.num_lost, self.passed = 0, list[bytes]()
        self._open, self._dead = list[socket.socket](), set[socket.socket]()
        self._is_open = threading.Event()
        self._is_open.set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "Forwarder":
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Wakes the thread that accepts.
        self._listener.close()
        self._threads[0].join(60)
        self.release()
        for end in self._open:
            self._reset(end)
        for thread in self._threads:
            thread.join(60)

    def forget_connections(self) -> None:
        """From now on nothing passes through the connections that there are, and no end hears of
        it, as after a router has lost its table. New ones are passed on.
        """
        self._dead.update(self._open)

    def hold(self) -> None:
        """From now on bytes wait here, of new connections too, until `release`."""
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._server.host, self._server.port))
                self._open += [client, server]
                self._start(client, server, lambda: False)
                self._start(server, client, self._loses)

    def _start(self, source: socket.socket, to: socket.socket, loses: Callable[[], bool]) -> None:
        thread = threading.Thread(target=self._pass, args=(source, to, loses), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _pass(self, source: socket.socket, to: socket.socket, loses: Callable[[], bool]) -> None:
        with contextlib.suppress(OSError):  # Either end may be gone already.
            while part := source.recv(1 << 16):
                self.passed.append(part)
                if source in self._dead:
                    continue
                self._is_open.wait()
                if loses():
                    self.num_lost += 1
                    break
                to.sendall(part)
        if source not in self._dead:
            self._reset(source)
            self._reset(to)

    def _reset(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.shutdown(socket.SHUT_RDWR)
        end.close()
