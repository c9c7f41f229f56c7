"""A real HTTP server that misbehaves on request, and counts what it sends."""

import contextlib
import email.utils
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from tests.http_servers import Handler, serving

MODIFIED = 1_700_000_000


@dataclass
class Request:
    """A request, and how many bytes of the body were sent."""

    method: str
    path: str
    span: str | None
    condition: str | None
    status: int = 0
    sent_bytes: int = 0


@dataclass
class Fault:
    """A fault in the answer to one GET. After `after_bytes` of the body `act(site, request)` is
    called, and the connection is closed if `cuts`. With `trickle_s` one byte follows in each such
    interval. `status` is answered instead of the body. `claimed_bytes` is added to the content
    length.
    """

    after_bytes: int = 0
    act: Callable[["Unruly", Request], None] = lambda site, request: None
    cuts: bool = False
    trickle_s: float = 0.0
    status: int = 0
    claimed_bytes: int = 0


@dataclass
class Unruly:
    """The server's files and its log. `faults` has, by path, one for each of the next GETs.
    `versions` has ETags by path; the default is one of the content. `has_etags` and `has_times` say
    whether answers have an ETag and a modification time. With `ignores_ranges` the server always
    sends the whole file.
    """

    fault: ClassVar[type[Fault]] = Fault
    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    modified: dict[str, int] = field(default_factory=dict)
    has_etags: bool = True
    has_times: bool = True
    ignores_ranges: bool = False
    has_gone_on: bool = False
    log: list[Request] = field(default_factory=list)

    def gets(self, path: str) -> list[Request]:
        return [request for request in self.log if (request.method, request.path) == ("GET", path)]

    def sent_bytes(self, path: str) -> int:
        return sum(request.sent_bytes for request in self.gets(path))

    def fail(self, path: str, *faults: Fault) -> None:
        self.faults.setdefault(path, deque()).extend(faults)

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file by another one whose modification time is a second later."""
        self.files[path] = data
        self.modified[path] = self.modified.get(path, MODIFIED) + 1

    def etag(self, path: str) -> str:
        return f'"{hash(self.files[path]):x}"'

    def stall(self) -> tuple[threading.Event, Callable[["Unruly", Request], None]]:
        """An event that is set when the server stalls, and an action that makes it stall until the
        test ends, or for a minute: then it `has_gone_on`.
        """
        begun = threading.Event()

        def act(site: "Unruly", request: Request) -> None:
            begun.set()
            site.has_gone_on |= not site.released.wait(60)

        return begun, act

    released: threading.Event = field(default_factory=threading.Event)


class _Handler(Handler):
    site: Unruly
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        site, path = self.site, unquote(urlsplit(self.path).path)
        condition = self.headers.get("If-Match") or self.headers.get("If-Unmodified-Since")
        request = Request(self.command, path, self.headers.get("Range"), condition)
        site.log.append(request)
        waiting = site.faults.get(path) if self.command == "GET" else None
        fault = waiting.popleft() if waiting else Fault()
        request.status = fault.status or self._status(path)
        if request.status in (200, 206):
            self._send_file(request, fault)
        else:
            self.send_response(request.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _status(self, path: str) -> int:
        site, wanted = self.site, self.headers.get("If-Match")
        if path not in site.files:
            return 404
        since = self.headers.get("If-Unmodified-Since")
        is_newer = since and email.utils.parsedate_to_datetime(
            since
        ).timestamp() < site.modified.get(path, MODIFIED)
        if (wanted and wanted != site.etag(path)) or is_newer:
            return 412
        return 206 if self.headers.get("Range") and not site.ignores_ranges else 200

    def _send_file(self, request: Request, fault: Fault) -> None:
        site, data = self.site, self.site.files[request.path]
        first, end = 0, len(data)
        if request.status == 206:
            start, _, last = str(request.span).removeprefix("bytes=").partition("-")
            first, end = (
                (int(start), min(int(last) + 1, len(data)) if last else len(data))
                if start
                else (len(data) - int(last), end)
            )
        self.send_response(request.status)
        self.send_header("Content-Length", str(end - first + fault.claimed_bytes))
        if site.has_etags:
            self.send_header("ETag", site.etag(request.path))
        if site.has_times:
            self.send_header(
                "Last-Modified",
                email.utils.formatdate(site.modified.get(request.path, MODIFIED), usegmt=True),
            )
        if request.status == 206:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self._send_body(request, fault, data[first:end])

    def _send_body(self, request: Request, fault: Fault, body: bytes) -> None:
        self._send(request, body[: fault.after_bytes])
        fault.act(self.site, request)
        if fault.trickle_s:
            self._trickle(request, fault, body[fault.after_bytes :])
            return
        if fault.cuts or fault.claimed_bytes:
            self.close_connection = True
        if not fault.cuts:
            self._send(request, body[fault.after_bytes :])

    def _trickle(self, request: Request, fault: Fault, rest: bytes) -> None:
        for i in range(len(rest)):
            if self.site.released.wait(fault.trickle_s):
                self.close_connection = True
                return
            self._send(request, rest[i : i + 1])

    def _send(self, request: Request, data: bytes) -> None:
        request.sent_bytes += len(data)
        self.wfile.write(data)
        self.wfile.flush()


@pytest.fixture
def make_server() -> Iterator[Callable[[Unruly], Unruly]]:
    """Starts servers, which end with the test."""
    with contextlib.ExitStack() as running:

        def start(site: Unruly) -> Unruly:
            site.url = f"http://127.0.0.1:{running.enter_context(serving(_Handler, site=site))}"
            running.callback(site.released.set)
            return site

        yield start


@pytest.fixture
def unruly(make_server: Callable[[Unruly], Unruly]) -> Unruly:
    return make_server(Unruly())
