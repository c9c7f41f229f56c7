"""A small HDFS over HTTP on loopback: name nodes and data nodes after the published REST contract.

It is written from the description of WebHDFS, not from a client: redirects (307) of OPEN and CREATE
to data nodes, `RemoteException` bodies, booleans of RENAME and DELETE, a file that is visible while
it is written, standby name nodes, delegation tokens in the redirects. Faults are queued by a test,
and each happens to exactly one request.
"""

import contextlib
import http.server
import itertools
import json
import posixpath
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tests.http_servers import serving

PREFIX = "/webhdfs/v1"
TICKET = "Negotiate ticket-of-the-test"


@dataclass
class Node:
    """A file, or a directory if `data` is None."""

    data: bytes | None
    number: int
    modified_ms: int
    owner: str = "dr.who"


class RemoteError(Exception):
    """An exception of a name node, with the status that it answers."""

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.name = status, name


def transfer_port(port: int) -> int:
    """The port for data of the data node with this port for HTTP. Nothing listens there."""
    return 65_536 - port


def on_standby(category: str) -> RemoteError:
    return RemoteError(
        403,
        "StandbyException",
        f"Operation category {category} is not supported in state standby. Visit "
        "https://s.apache.org/sbnn-error",
    )


def missing(path: str) -> RemoteError:
    return RemoteError(404, "FileNotFoundException", f"File does not exist: {path}")


@dataclass
class Cluster:
    """What all nodes share. `lock` guards everything; a handler holds it for one operation.

    `standby` holds the ports of name nodes that are not active, `secure` whether a token or a
    ticket is asked for, `read_only` the users who may not write, `asked` each request as
    `(kind, op, query)`, `served` with its port instead of the query, `faults` what happens to coming requests: `(kind, op) -> names`.
    """

    lock: Any = field(default_factory=threading.RLock)
    nodes: dict[str, Node] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(16_386))
    clock_ms: Iterator[int] = field(default_factory=lambda: itertools.count(1_700_000_000_000, 7))
    turns: Iterator[int] = field(default_factory=itertools.count)
    name_ports: list[int] = field(default_factory=list)
    data_ports: list[int] = field(default_factory=list)
    standby: set[int] = field(default_factory=set)
    read_only: set[str] = field(default_factory=set)
    is_secure: bool = False
    tokens: set[str] = field(default_factory=set)
    is_in_safe_mode: bool = False
    redirected: Callable[[str], str] = str  # the Location of a redirect, from that of the data node
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    served: list[tuple[str, str, int]] = field(default_factory=list)
    faults: dict[tuple[str, str], deque[Any]] = field(default_factory=dict)

    def fail(self, kind: str, op: str, *names: Any) -> None:
        """Queues faults of requests `op` to a `name` or `data` node: `drop` (no answer), `lost`
        (done, but no answer), `cut` (half a body), a status, or a callable that runs before the
        request is served.
        """
        with self.lock:
            self.faults.setdefault((kind, op), deque()).extend(names)

    def fault(self, kind: str, op: str) -> Any:
        with self.lock:
            queue = self.faults.get((kind, op))
            return queue.popleft() if queue else None

    def queries(self, kind: str, op: str) -> list[dict[str, str]]:
        with self.lock:
            return [query for k, o, query in self.asked if (k, o) == (kind, op)]

    def make_directories(self, path: str) -> None:
        for parent in [path, *_parents(path)]:
            if parent not in self.nodes:
                self.nodes[parent] = Node(None, next(self.numbers), next(self.clock_ms))
            elif self.nodes[parent].data is not None:
                raise RemoteError(
                    403, "ParentNotDirectoryException", f"{parent} is not a directory"
                )

    def put(self, path: str, data: bytes, owner: str = "dr.who") -> None:
        with self.lock:
            self.make_directories(posixpath.dirname(path))
            self.nodes[path] = Node(data, next(self.numbers), next(self.clock_ms), owner)

    def status(self, path: str, suffix: str = "") -> dict[str, Any]:
        node = self.nodes.get(path)
        if node is None:
            raise missing(path)
        return {
            "accessTime": 0,
            "blockSize": 0 if node.data is None else 134_217_728,
            "fileId": node.number,
            "group": "supergroup",
            "length": len(node.data or b""),
            "modificationTime": node.modified_ms,
            "owner": node.owner,
            "pathSuffix": suffix,
            "permission": "755" if node.data is None else "644",
            "replication": 0 if node.data is None else 3,
            "type": "DIRECTORY" if node.data is None else "FILE",
        }

    def listing(self, path: str) -> list[dict[str, Any]]:
        status = self.status(path)
        if status["type"] == "FILE":
            return [status]
        names = sorted(p for p in self.nodes if p != path and posixpath.dirname(p) == path)
        return [self.status(name, posixpath.basename(name)) for name in names]

    def locations(self, path: str) -> list[dict[str, Any]]:
        """Where the blocks of a file are: on all data nodes."""
        self.status(path)
        nodes = [
            {"hostName": "localhost", "ipAddr": "127.0.0.1", "infoPort": port}
            | {"xferPort": transfer_port(port)}
            for port in self.data_ports
        ]
        return [{"locations": nodes}]

    def rename(self, source: str, target: str, option: str) -> bool | None:
        """The result of `rename`, or None as of `rename2`, which has options."""
        is_checked = bool(option)
        if source not in self.nodes:
            if is_checked:
                raise missing(source)
            return False
        if not is_checked and target in self.nodes and self.nodes[target].data is None:
            target = posixpath.join(target, posixpath.basename(source))
        parent = self.nodes.get(posixpath.dirname(target))
        if parent is None or parent.data is not None:
            if is_checked:
                raise missing(posixpath.dirname(target))
            return False
        if target in self.nodes and option != "OVERWRITE":
            if is_checked:
                raise RemoteError(
                    403, "FileAlreadyExistsException", f"rename destination {target} already exists"
                )
            return False
        moved = [p for p in self.nodes if p == source or p.startswith(f"{source}/")]
        for path in moved:
            self.nodes[target + path[len(source) :]] = self.nodes.pop(path)
        return None if is_checked else True

    def delete(self, path: str, *, recursive: bool) -> bool:
        if path not in self.nodes:
            return False
        below = [p for p in self.nodes if p.startswith(f"{path}/")]
        if below and not recursive:
            raise RemoteError(403, "PathIsNotEmptyDirectoryException", f"{path} is non empty")
        for name in [path, *below]:
            del self.nodes[name]
        return True

    def files(self) -> dict[str, bytes]:
        """All files by path."""
        with self.lock:
            return {path: node.data for path, node in self.nodes.items() if node.data is not None}


LOOKS: dict[str, Callable[[Cluster, str], Any]] = {
    "GETFILESTATUS": lambda cluster, path: {"FileStatus": cluster.status(path)},
    "LISTSTATUS": lambda cluster, path: {"FileStatuses": {"FileStatus": cluster.listing(path)}},
    "GET_BLOCK_LOCATIONS": lambda cluster, path: {
        "LocatedBlocks": {"locatedBlocks": cluster.locations(path)}
    },
}


def _parents(path: str) -> list[str]:
    parents = []
    while path != "/":
        path = posixpath.dirname(path)
        parents.append(path)
    return parents


class _Dropped(Exception):
    """The connection is closed without an answer."""


class _NodeHandler(http.server.BaseHTTPRequestHandler):
    """What name nodes and data nodes have in common. `cluster` is set by the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the second of two small writes waits for 40 ms
    cluster: Cluster
    kind: str

    def log_message(self, *args: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        op = query.get("op", "").upper()
        path = unquote(parts.path.removeprefix(PREFIX)).rstrip("/") or "/"
        with self.cluster.lock:
            self.cluster.asked.append((self.kind, op, query))
            self.cluster.served.append((self.kind, op, self._port()))
        fault = self.cluster.fault(self.kind, op)
        try:
            if callable(fault):
                fault()
            if fault == "drop":
                raise _Dropped
            if isinstance(fault, int):
                self._answer(fault, b"<html>an error of a proxy</html>", content_type="text/html")
                return
            self._checked(op, path, query, fault)
        except RemoteError as error:
            exception = {
                "exception": error.name,
                "javaClassName": f"org.apache.hadoop.{error.name}",
                "message": str(error),
            }
            self._answer_json({"RemoteException": exception}, error.status)
        except _Dropped:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _port(self) -> int:
        return cast(http.server.HTTPServer, self.server).server_port

    def _checked(self, op: str, path: str, query: dict[str, str], fault: Any) -> None:
        raise NotImplementedError

    def _answer_json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), content_type="application/json")

    def _answer(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = "application/octet-stream",
        num_sent: int | None = None,
        **headers: str,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content_type, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:num_sent])

    def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        while line := self.rfile.readline():
            length = int(line.split(b";")[0], 16)
            chunk = self.rfile.read(length)
            body += chunk
            is_whole = len(chunk) == length and self.rfile.readline() == b"\r\n"
            if not is_whole or not length:
                return body, is_whole
        return body, False

    def _body(self) -> tuple[bytes, bool]:
        """The body, and whether it is whole."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._chunks()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        return body, len(body) == length


class NameNodeHandler(_NodeHandler):
    kind = "name"

    def _checked(self, op: str, path: str, query: dict[str, str], fault: Any) -> None:
        cluster = self.cluster
        self._body()  # a name node reads no content
        with cluster.lock:
            if not self._is_known(query):
                return
            if self._port() in cluster.standby and op != "CREATE":  # which it redirects
                raise on_standby("READ")
            user = query.get("user.name", "dr.who")
            if op in ("CREATE", "RENAME", "DELETE", "MKDIRS"):
                if cluster.is_in_safe_mode:
                    raise RemoteError(
                        403, "SafeModeException", f"Cannot {op} {path}. Name node is in safe mode."
                    )
                if user in cluster.read_only:
                    raise RemoteError(
                        403,
                        "AccessControlException",
                        f'Permission denied: user={user}, access=WRITE, inode="{path}"',
                    )
            answer = self._operate(op, path, query)
        if fault == "lost":
            raise _Dropped
        if isinstance(answer, str):
            self._answer(307, Location=cluster.redirected(answer))
        elif answer is None:
            self._answer(200)
        else:
            self._answer_json(answer)

    def _is_known(self, query: dict[str, str]) -> bool:
        """Whether the request may go on; else it is answered."""
        token = query.get("delegation")
        if token is not None and token not in self.cluster.tokens:
            raise RemoteError(
                403, "InvalidToken", "token (token for dr.who) can't be found in cache"
            )
        if not self.cluster.is_secure or token or self.headers.get("Authorization") == TICKET:
            return True
        self._answer(401, b"Authentication required", WWW_Authenticate="Negotiate")
        return False

    def _operate(self, op: str, path: str, query: dict[str, str]) -> Any:
        """The JSON of the answer, a location to redirect to, or None for an empty answer."""
        cluster = self.cluster
        if op in LOOKS:
            return LOOKS[op](cluster, path)
        if op == "MKDIRS":
            cluster.make_directories(path)
            return {"boolean": True}
        if op == "RENAME":
            done = cluster.rename(path, query["destination"], query.get("renameoptions", ""))
            return None if done is None else {"boolean": done}
        if op == "DELETE":
            return {"boolean": cluster.delete(path, recursive=query.get("recursive") == "true")}
        if op == "OPEN":
            status = cluster.status(path)
            if status["type"] == "DIRECTORY":
                raise RemoteError(404, "FileNotFoundException", f"Path is not a file: {path}")
            if int(query.get("offset", 0)) > status["length"]:
                raise RemoteError(403, "IOException", f"Offset={query['offset']} out of the range")
            return self._location(path, query)
        if op == "CREATE":
            return self._location(path, query)
        raise RemoteError(400, "UnsupportedOperationException", f"op={op} is not supported")

    def _location(self, path: str, query: dict[str, str]) -> str:
        excluded = query.get("excludedatanodes", "").split(",")
        ports = [
            port
            for port in self.cluster.data_ports
            if f"127.0.0.1:{transfer_port(port)}" not in excluded
        ]
        if not ports:
            raise RemoteError(403, "IOException", "Failed to find datanode")
        host = f"127.0.0.1:{ports[next(self.cluster.turns) % len(ports)]}"
        passed = dict(query)
        if self.cluster.is_secure and "delegation" not in passed:
            # The name node gives a token to whom it knows by a ticket.
            token = f"token-{next(self.cluster.numbers)}"
            self.cluster.tokens.add(token)
            passed["delegation"] = token
        passed["namenoderpcaddress"] = f"127.0.0.1:{self._port()}"
        passed.setdefault("offset", "0")
        return f"http://{host}{PREFIX}{_quoted(path)}?{urlencode(passed)}"


def _quoted(path: str) -> str:
    return urlsplit(Path(path).as_uri()).path


class DataNodeHandler(_NodeHandler):
    kind = "data"

    def _checked(self, op: str, path: str, query: dict[str, str], fault: Any) -> None:
        cluster = self.cluster
        if cluster.is_secure and query.get("delegation") not in cluster.tokens:
            raise RemoteError(403, "InvalidToken", "token () can't be found in cache")
        if op == "OPEN":
            with cluster.lock:
                node = cluster.nodes.get(path)
                data = None if node is None else node.data
            if data is None:
                raise missing(path)
            first = int(query["offset"])
            end = first + int(query["length"]) if "length" in query else len(data)
            body = data[first:end]
            is_cut = fault == "cut"
            self._answer(200, body, num_sent=len(body) // 2 if is_cut else None)
            if is_cut:
                self.wfile.flush()
                raise _Dropped
        elif op == "CREATE":
            self._create(path, query, fault)
        else:
            raise RemoteError(400, "IllegalArgumentException", f"Invalid operation {op}")

    def _create(self, path: str, query: dict[str, str], fault: Any) -> None:
        cluster = self.cluster
        if int(query["namenoderpcaddress"].rpartition(":")[2]) in cluster.standby:
            self._body()  # The connection serves the next request.
            raise on_standby("WRITE")
        with cluster.lock:
            if path in cluster.nodes and query.get("overwrite") != "true":
                raise RemoteError(403, "FileAlreadyExistsException", f"{path} already exists")
            cluster.put(path, b"", query.get("user.name", "dr.who"))
        body, is_whole = self._body()
        if fault == "cut":
            body, is_whole = body[: len(body) // 2], False
        cluster.put(path, body, query.get("user.name", "dr.who"))
        if fault == "lost" or not is_whole:
            raise _Dropped
        self._answer(201, Location=f"hdfs://127.0.0.1{path}")


@contextlib.contextmanager
def hdfs_cluster(num_name_nodes: int = 1, num_data_nodes: int = 2) -> Iterator[Cluster]:
    """A running cluster with an empty root."""
    cluster = Cluster()
    cluster.make_directories("/")
    with contextlib.ExitStack() as stack:
        for handler, ports, num in (
            (DataNodeHandler, cluster.data_ports, num_data_nodes),
            (NameNodeHandler, cluster.name_ports, num_name_nodes),
        ):
            ports += [stack.enter_context(serving(handler, cluster=cluster)) for _ in range(num)]
        yield cluster


def write_site(directory: Path, service: str, cluster: Cluster) -> None:
    """Writes the `hdfs-site.xml` of a name service of the cluster's name nodes."""
    names = [f"nn{index}" for index in range(len(cluster.name_ports))]
    properties = {"dfs.nameservices": service, f"dfs.ha.namenodes.{service}": ",".join(names)}
    for name, port in zip(names, cluster.name_ports, strict=True):
        properties[f"dfs.namenode.http-address.{service}.{name}"] = f"127.0.0.1:{port}"
    text = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    (directory / "hdfs-site.xml").write_text(f"<configuration>{text}</configuration>")
