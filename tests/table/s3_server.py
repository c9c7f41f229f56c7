"""A small S3 store in a process of its own, for tests: prints its port, serves until it is killed.

delta-rs holds Python's lock while it waits for some answers, so a server in a thread of the same process would never answer.
"""

import hashlib
import http.server
import json
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass
class Store:
    """The objects by `/bucket/key`. A careless one overwrites a name that is taken, whatever the request says."""

    careless: bool = False
    objects: dict[str, bytes] = field(default_factory=dict)
    num_refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, path: str, data: bytes, headers: Any) -> int:
        with self.lock:
            known = self.objects.get(path)
            if not self.careless and not _allowed(headers, known):
                self.num_refused += 1
                return 412
            self.objects[path] = data
            return 200


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _allowed(headers: Any, known: bytes | None) -> bool:
    if headers.get("If-None-Match") == "*":
        return known is None
    wanted = headers.get("If-Match")
    return wanted is None or (known is not None and _etag(known) == wanted)


class Handler(http.server.BaseHTTPRequestHandler):
    """What of S3 the clients use: objects, ranges, conditional writes, copies, listings."""

    store = Store()
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    @property
    def path_and_query(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, query = self.path_and_query
        if path == "/_state":
            self._state()
        elif "list-type" in query:
            self._send(200, self._listing(path.strip("/"), query))
        elif path in self.store.objects:
            self._send_object(self.store.objects[path])
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_PUT(self) -> None:
        path, _ = self.path_and_query
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        source = self.headers.get("x-amz-copy-source")
        if source is not None:
            data = self.store.objects["/" + unquote(source).lstrip("/")]
        status = self.store.put(path, data, self.headers)
        body = f"<CopyObjectResult><ETag>{_etag(data)}</ETag></CopyObjectResult>".encode() if source else b""
        self._send(status, body, _etag(data))

    def do_DELETE(self) -> None:
        self.store.objects.pop(self.path_and_query[0], None)
        self._send(204, b"")

    def do_POST(self) -> None:
        """Begins anew, or deletes several objects at once."""
        if self.path.startswith("/_reset"):
            self._reset(careless="careless" in self.path)
            return
        data = self.rfile.read(int(self.headers["Content-Length"])).decode()
        bucket = self.path_and_query[0].strip("/")
        keys = [part.partition("</Key>")[0] for part in data.split("<Key>")[1:]]
        for key in keys:
            self.store.objects.pop(f"/{bucket}/{key}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._send(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _send_object(self, data: bytes) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, data, _etag(data))
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        self._send(206, data[start:end], _etag(data), f"bytes {start}-{end - 1}/{len(data)}")

    def _send(self, status: int, data: bytes, etag: str = "", content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        if etag:
            self.send_header("ETag", etag)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter, after = (query.get(key, [""])[0] for key in ("prefix", "delimiter", "start-after"))
        objects = {path.removeprefix(f"/{bucket}/"): data for path, data in sorted(self.store.objects.items())}
        found = {key: data for key, data in objects.items() if key.startswith(prefix) and key > after}
        cut = {key: key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "") for key in found}
        folders = sorted({f"{prefix}{head}{mark}" for head, mark, _ in cut.values() if mark})
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>"
            f"<ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
            for key, data in found.items()
            if not cut[key][1]
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        head = f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
        return f'<?xml version="1.0"?><ListBucketResult>{head}{contents}{prefixes}</ListBucketResult>'.encode()

    def _reset(self, *, careless: bool) -> None:
        type(self).store = Store(careless=careless)
        self._send(200, b"")

    def _state(self) -> None:
        state = {"num_refused": self.store.num_refused, "paths": sorted(self.store.objects)}
        self._send(200, json.dumps(state).encode())


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may close its connection at any time."""


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()
