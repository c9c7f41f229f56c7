"""moto's S3 in a process of its own, for tests: prints its port, and serves until it is killed.

delta-rs holds Python's lock while it waits for some responses, so a server in a thread of the same
process would never respond. After `POST /_careless` it ignores conditions of writes, like a store
that has none. `/_state` returns the number of writes refused because the object existed. After
`POST /_busy?after=N&seconds=S` the next N requests are served, and those after them answered with
503 for S seconds; `after=-1` ends that. After `POST /_meet` the next two writes that must not
overwrite anything wait for each other, since a writer that comes later may look before it writes.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Start = Callable[..., Any]


class Store:
    """Wraps moto: can ignore conditions, and counts refusals."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._careless = False
        self._num_refused = 0
        self._meeting: threading.Barrier | None = None
        # How many requests are served before an outage, how long it is, and when it ends.
        self._num_served, self._outage_s, self._busy_until_s = -1, 0.0, 0.0

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in ("/_careless", "/_careful"):
            self._careless, self._num_refused = path == "/_careless", 0
        if path == "/_meet":
            self._meeting = threading.Barrier(2)
        if path == "/_busy":
            asked = parse_qs(environ["QUERY_STRING"])
            self._num_served, self._outage_s = int(asked["after"][0]), float(asked["seconds"][0])
            self._busy_until_s = 0.0
        if path.startswith("/_"):
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"num_refused": self._num_refused}).encode()]
        if self._is_busy():
            start("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        meeting = self._meeting
        if meeting and environ["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in environ:
            meeting.wait(60)
            self._meeting = None
        if self._careless:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ.pop("HTTP_IF_MATCH", None)
        answer: Iterable[bytes] = self._moto(environ, self._counting(start))
        return answer

    def _is_busy(self) -> bool:
        if self._num_served == 0 and not self._busy_until_s:
            self._busy_until_s = time.monotonic() + self._outage_s
        self._num_served -= self._num_served > 0
        return time.monotonic() < self._busy_until_s

    def _counting(self, start: Start) -> Start:
        def counted(status: str, *rest: Any) -> Any:
            self._num_refused += status.startswith("412")
            return start(status, *rest)

        return counted


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, Store(), threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()
