"""A web server of one directory with a latency per request and one line of limited bandwidth for
all connections.

Run as a process of its own: `python server.py DIRECTORY LATENCY_S BYTES_PER_S [one]` prints its
port. `/sent` answers with how many bytes of files were sent so far, `/cpu` with the CPU seconds that
the server took. BYTES_PER_S 0: no limit. `one`:
works on one request at a time, as a disk with one head.
"""

import contextlib
import http.server
import os
import socket
import sys
import threading
import time
from pathlib import Path

_SLICE_BYTES, _LONGEST_SLICE_BYTES, _SLICE_S = 64 << 10, 1 << 20, 0.001
_BURST_S = 0.01


class Line:
    """Bandwidth that all connections share: each slice takes its time on the line, after those
    before it. Who slept too long catches up; a line that was idle does not."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._free_at_s, self._lock = bytes_per_s, 0.0, threading.Lock()
        self.slice_bytes = max(_SLICE_BYTES, min(int(bytes_per_s * _SLICE_S), _LONGEST_SLICE_BYTES))
        self.sent_bytes = 0

    def begin(self) -> None:
        """An answer begins: what the line could have carried before is lost."""
        with self._lock:
            self._free_at_s = max(self._free_at_s, time.monotonic())

    def pass_on(self, num_bytes: int) -> None:
        """Waits until the slice has passed."""
        with self._lock:
            self.sent_bytes += num_bytes
            if not self._bytes_per_s:
                return
            self._free_at_s = (
                max(self._free_at_s, time.monotonic() - _BURST_S) + num_bytes / self._bytes_per_s
            )
            pause_s = self._free_at_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)


class Handler(http.server.BaseHTTPRequestHandler):
    root: Path
    latency_s: float
    line: Line
    head: contextlib.AbstractContextManager[object]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # or the last bytes of an answer wait 40 ms for the client's word, as no store's do
    )

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        with self.head:
            self._get()

    def _get(self) -> None:
        time.sleep(self.latency_s)
        if self.path == "/sent":
            self._answer(200, str(self.line.sent_bytes).encode())
            return
        if self.path == "/cpu":
            self._answer(200, str(time.process_time()).encode())
            return
        path = self.root / self.path.lstrip("/")
        if not path.is_file():
            self._answer(404, b"")
            return
        with path.open("rb") as file:
            self._send(file.fileno(), path.stat().st_size)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, file: int, size_bytes: int) -> None:
        wanted = self.headers.get("Range")
        first, end = _span(wanted, size_bytes)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(end - first))
        self.send_header("ETag", f'"{size_bytes:x}"')
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size_bytes}")
        self.end_headers()
        self.wfile.flush()
        self.line.begin()
        while self.command == "GET" and first < end:
            num_bytes = min(self.line.slice_bytes, end - first)
            self.line.pass_on(num_bytes)
            first += os.sendfile(self.connection.fileno(), file, first, num_bytes)


def _span(wanted: str | None, size_bytes: int) -> tuple[int, int]:
    if wanted is None:
        return 0, size_bytes
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    if not first:
        return size_bytes - int(last), size_bytes
    return int(first), min(int(last) + 1, size_bytes) if last else size_bytes


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """A congestion control that paces would have timers interrupt the reader, as those of
        another machine do not.
        """
        with contextlib.suppress(AttributeError, OSError):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may go away."""


def serve(directory: str, latency_s: float, bytes_per_s: float, *, has_one_head: bool) -> None:
    head = threading.Lock() if has_one_head else contextlib.nullcontext()
    site = {
        "root": Path(directory),
        "latency_s": latency_s,
        "line": Line(bytes_per_s),
        "head": head,
    }
    server = _Server(("127.0.0.1", 0), type("Bound", (Handler,), site))
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), has_one_head=sys.argv[4:] == ["one"])
