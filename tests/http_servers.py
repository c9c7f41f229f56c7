"""Real HTTP servers on loopback, in a thread of the tests' process."""

import contextlib
import http.server
import ssl
import threading
from collections.abc import Iterator


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD alike, by `_answer`, and writes no log."""

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that close their connection, as they do in many tests."""


@contextlib.contextmanager
def serving(
    handler: type[http.server.BaseHTTPRequestHandler],
    tls: ssl.SSLContext | None = None,
    **known: object,
) -> Iterator[int]:
    """The port of a server whose handlers have the attributes `known`."""
    server = _Server(("127.0.0.1", 0), type("Handler", (handler,), known))
    if tls is not None:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
