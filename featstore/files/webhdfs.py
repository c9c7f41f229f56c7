"""HDFS over its REST interface. The operations and the order of their requests follow the published
contract; `renameoptions` and GET_BLOCK_LOCATIONS are not in it, and are what Hadoop's own client
sends.
"""

import contextlib
import importlib.util
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, Any
from urllib.parse import quote, urljoin, urlsplit

import requests

from featstore.base.libraries import LazyModule
from featstore.files.hdfs_files import (
    HdfsError,
    HdfsFiles,
    HdfsReader,
    remote_error,
)
from featstore.files.retry import BRIEF, RetryPolicy
from featstore.files.store_errors import is_unresolved

requests_kerberos: Any = LazyModule("requests_kerberos")

# To connect, and between two reads of a response: of a name node, and of a data node.
_NAME_TIMEOUTS_S = (4.0, 30.0)
_DATA_TIMEOUTS_S = (4.0, 60.0)
# So long a data node that failed is left out. Name nodes believe in a dead one for 10.5 minutes by
# Hadoop's defaults; it may also be back in seconds.
_AVOIDED_S = 60.0
_REDIRECT = 307
_STANDBY = "StandbyException"
_STREAMED_BYTES = 1 << 20
_ASKED = re.compile(r"with url: \S+|\?\S*")  # a query may hold a token


def error_of(status: int, headers: Mapping[str, str], exception: Any, host: str) -> OSError:
    """The error for an answer with a status of 400 or more. Pure.

    A name node answers 403 for most exceptions, whether or not access is refused, so the name of
    the exception decides, and the status only where there is none.

    Args:
        status: The HTTP status.
        headers: The headers of the answer.
        exception: The `RemoteException` of the body, or None.
        host: Who answered, as `host:port`.
    """
    where = _server_of(f"//{host}")
    if status == 401 and "negotiate" in headers.get("WWW-Authenticate", "").lower():
        return PermissionError(f"the server demands Kerberos: {kerberos_state()} ({where})")
    if exception:
        error = remote_error(str(exception["exception"]), str(exception.get("message", "")), where)
        if isinstance(error, HdfsError):
            error.headers = headers
        return error
    text = f"HTTP {status} ({where})"
    if status in (401, 403):
        return PermissionError(text)
    return HdfsError(text, is_passing=status >= 500 or status in (408, 429), headers=headers)


def kerberos_state() -> str:
    """What a client lacks that the server refused although it may know Kerberos."""
    if importlib.util.find_spec("requests_kerberos") is None:
        return "the package requests-kerberos is not installed"
    return "no valid ticket was found"


class _Session(requests.Session):  # type: ignore[misc]
    """Leaves redirects to its user. It would prepare the next request also where it is not to
    follow, and fail by an invalid `Location` with the connection open.
    """

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


class WebHdfs(HdfsFiles):
    """A client of one name service. Threads may share it.

    `_active` is the name node that answered last. It is a hint: an old value costs one request.

    Args:
        name_nodes: Each `host:port`; one of them is active.
        is_secure: Whether they speak HTTPS.
        user: Who asks, where the cluster believes it.
        password: For a gateway with passwords; sent to no other host.
        token: A delegation token, in place of a user.
        certificates: The file with the certificates to trust; True: those that requests trusts.
        retry: When rounds over all name nodes are made again.
    """

    protocol = ("webhdfs", "swebhdfs")

    def __init__(
        self,
        name_nodes: tuple[str, ...],
        *,
        is_secure: bool = False,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        certificates: str | bool = True,
        retry: RetryPolicy = BRIEF,
        **options: Any,
    ) -> None:
        if self._cached:
            return
        super().__init__(retry, **options)
        kind = "https" if is_secure else "http"
        self._hosts = frozenset(urlsplit(f"//{node}").hostname for node in name_nodes)
        self._roots = [f"{kind}://{node}/webhdfs/v1" for node in name_nodes]
        self._active, self._failed = 0, FailedNodes()
        self._has_password = password is not None
        self._who = {"delegation": token} if token else {}
        if user is not None and password is None:
            self._who["user.name"] = user
        self.session, self._certificates = _Session(), certificates
        if password is not None:
            self.session.auth = (user, password)
        # It answers a server that asks for Kerberos, and is silent otherwise.
        elif not token and importlib.util.find_spec("requests_kerberos") is not None:
            self.session.auth = requests_kerberos.HTTPKerberosAuth(
                mutual_authentication=requests_kerberos.OPTIONAL
            )

    def _call(
        self, op: str, method: str, path: str, data: IO[bytes] | None = None, **query: Any
    ) -> requests.Response:
        """Makes one operation at the active name node, and at the data node that it names.

        Name nodes that are down or on standby are passed over. If a data node fails, the name node
        is asked for another one. So an operation may be made twice.
        """
        return self.again(partial(self._once, method, *self._asked(op, path, query), data))

    def _asked(self, op: str, path: str, query: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The path and the parameters of a request."""
        where = quote(self._strip_protocol(path), safe="/=")
        return where, {**query, **self._who, "op": op}

    def _once(
        self, method: str, where: str, params: Mapping[str, Any], data: IO[bytes] | None
    ) -> requests.Response:
        avoided = self._failed.among(time.monotonic()) if params["op"] in ("OPEN", "CREATE") else ""
        asked = {**params, "excludedatanodes": avoided} if avoided else params
        try:
            answer = self._ask_name_nodes(method, where, asked)
        except HdfsError as error:
            if avoided and error.is_passing:  # Perhaps no other data node is left.
                self._failed.forget()
            raise
        if answer.status_code != _REDIRECT:
            return answer  # of a gateway, which sends the bytes of a file itself
        active = self._active
        _ = answer.content  # When it is read, its connection serves the next request.
        location = redirect_of(answer.url, answer.headers.get("Location", ""))
        try:
            return self._send(
                method,
                location,
                timeout=_DATA_TIMEOUTS_S,
                stream=params["op"] == "OPEN",  # The answer may be as large as a file.
                **_body(data),
            )
        except HdfsError as error:
            if str(error).startswith(_STANDBY):
                # A name node on standby redirects CREATE, too, to a data node that then asks it.
                if self._active == active:
                    self._active = (active + 1) % len(self._roots)
            elif error.is_passing:
                self._failed.add(self._addresses(where, params, location), time.monotonic())
            raise

    def _addresses(self, where: str, params: Mapping[str, Any], location: str) -> set[str]:
        """By what a name node knows the data node of a redirect: its IP address, with its port for
        data where that can be told. A host's name and the port of a redirect, which Hadoop's own
        client sends, mean nothing to it.
        """
        node = urlsplit(location)
        found = set[str]()
        # A file that is yet to be created has no blocks, and gateways know no such operation.
        with contextlib.suppress(OSError):
            answer = self._ask_name_nodes("get", where, {**params, "op": "GET_BLOCK_LOCATIONS"})
            with _understood(answer):
                found = transfer_addresses(answer.json(), node.hostname, node.port)
        with contextlib.suppress(OSError):
            return found or {socket.gethostbyname(node.hostname or "")}
        return found

    def _ask_name_nodes(
        self, method: str, where: str, params: Mapping[str, Any]
    ) -> requests.Response:
        """The answer of the first name node that gives one, the active one being asked first."""
        errors = list[HdfsError]()
        for root in self._roots[self._active :] + self._roots[: self._active]:
            try:
                answer = self._send(
                    method,
                    f"{root}{where}",
                    timeout=_NAME_TIMEOUTS_S,
                    stream=params["op"] == "OPEN",
                    params=params,
                )
            except HdfsError as error:
                if not error.is_passing:
                    raise
                errors.append(error)
            else:
                self._active = self._roots.index(root)
                return answer
        # That the name of one does not resolve says less than what others answer.
        raise min(errors, key=lambda error: is_unresolved(str(error)))

    def _send(self, method: str, url: str, **options: Any) -> requests.Response:
        host = urlsplit(url)
        if self._has_password and host.hostname not in self._hosts:
            options["auth"] = lambda request: request
        try:
            # That of the session would yield to REQUESTS_CA_BUNDLE.
            answer = self.session.request(
                method.upper(), url, allow_redirects=False, verify=self._certificates, **options
            )
        except (requests.RequestException, ValueError) as error:  # urllib3's, of a host's name
            raise _broken(error, url) from None
        if answer.status_code < 400:
            return answer
        raise error_of(answer.status_code, answer.headers, _remote_exception(answer), host.netloc)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        with _understood(answer := self._call("GETFILESTATUS", "get", path)):
            return _info(path, answer.json()["FileStatus"])

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        with _understood(answer := self._call("LISTSTATUS", "get", path)):
            listed = answer.json()["FileStatuses"]["FileStatus"]
            root = path.rstrip("/")
            infos = [_info(f"{root}/{status['pathSuffix']}", status) for status in listed]
        return infos if detail else [info["name"] for info in infos]

    def remove_once(self, path: str) -> None:
        self._once("delete", *self._asked("DELETE", path, {"recursive": "false"}), None)

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        options: dict[str, Any] = {"renameoptions": "OVERWRITE"} if overwrite else {}
        where = self._strip_protocol(target)
        answer = self._call("RENAME", "put", source, destination=where, **options)
        with _understood(answer):
            is_done = not answer.content or answer.json()["boolean"]
        if not is_done:
            # Without options a name node does not say why. A gateway may not know them.
            raise FileExistsError(
                f"{target} exists, and the gateway knows no rename that replaces a file"
                if overwrite
                else f"the name node refuses to rename {source} to {where}"
            )

    def create(self, path: str, data: IO[bytes]) -> None:
        self._call("CREATE", "put", path, data, overwrite="true")

    def stream(self, path: str, **query: Any) -> Iterator[bytes]:
        """The bytes of a file as they arrive, by one attempt.

        Raises:
            HdfsError: It failed.
        """
        where, params = self._asked("OPEN", path, query)
        with self._once("get", where, params, None) as answer:
            try:
                yield from answer.iter_content(_STREAMED_BYTES)
            except requests.RequestException as error:
                self._failed.add(self._addresses(where, params, answer.url), time.monotonic())
                raise _broken(error, answer.url) from None

    def reader(self, path: str) -> HdfsReader:
        return _RestReader(self, path)


class _RestReader(HdfsReader):
    """Each stream is a request to a data node."""

    def __init__(self, client: WebHdfs, path: str) -> None:
        super().__init__(client, client.info(path)["size"])
        self._web, self._path = client, path

    def stream(self, first: int, num_bytes: int) -> Iterator[bytes]:
        return self._web.stream(self._path, offset=first, length=num_bytes)


class FailedNodes:
    """The data nodes that failed lately. Threads may share it: `_lock` guards `_until_s`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until_s: dict[str, float] = {}

    def add(self, addresses: set[str], now_s: float) -> None:
        """Has data nodes avoided for a while."""
        with self._lock:
            self._until_s |= dict.fromkeys(addresses, now_s + _AVOIDED_S)

    def among(self, now_s: float) -> str:
        """Those to avoid now, as a value of `excludedatanodes`."""
        with self._lock:
            return ",".join(sorted(each for each, end_s in self._until_s.items() if now_s < end_s))

    def forget(self) -> None:
        """Has none avoided any more."""
        with self._lock:
            self._until_s.clear()


def transfer_addresses(located: Any, host: str | None, port: int | None) -> set[str]:
    """The addresses for data, each `ip:port`, of a data node with this address for HTTP. Pure.

    Args:
        located: The answer to GET_BLOCK_LOCATIONS.
        host: The data node's name or IP address.
        port: Its port for HTTP or HTTPS.
    """
    blocks = (located.get("LocatedBlocks") or {}).get("locatedBlocks") or []
    return {
        f"{node['ipAddr']}:{node['xferPort']}"
        for block in blocks
        for node in block["locations"]
        if host in (node["hostName"].lower(), node["ipAddr"])
        and port in (node["infoPort"], node.get("infoSecurePort"))
    }


def redirect_of(url: str, location: str) -> str:
    """The URL of a redirect. Pure.

    Args:
        url: The URL that was asked.
        location: The header `Location` of the answer, which may be relative.

    Raises:
        HdfsError: It is no URL of HTTP.
    """
    with contextlib.suppress(ValueError):
        found = urljoin(url, location)
        parts = urlsplit(found)
        if location and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return found
    raise HdfsError(
        "the answer is a redirect whose Location is "
        f"{'no URL of HTTP' if location else 'missing'} ({_server_of(url)})"
    )


def _server_of(url: str) -> str:
    """The server of a URL, in the form by which `store_errors` finds it in a text."""
    parts = urlsplit(url)
    return f"host='{parts.hostname}', port={parts.port}"


def _broken(error: Exception, url: str) -> HdfsError:
    """The error for a connection that failed, or for a URL, of which only a ValueError tells."""
    is_passing = not isinstance(error, ValueError)
    # What is said of a URL quotes it.
    words = _ASKED.sub("", str(error)) if is_passing else "the URL of a request is invalid"
    return HdfsError(f"{type(error).__name__}: {words} ({_server_of(url)})", is_passing=is_passing)


@contextlib.contextmanager
def _understood(answer: requests.Response) -> Iterator[None]:
    """Raises HdfsError if the block does not find in the JSON of an answer what it looks for."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError):
        raise HdfsError(
            f"found HTTP {answer.status_code} with a body that is none of WebHDFS "
            f"({_server_of(answer.url)})"
        ) from None


def _info(name: str, status: Mapping[str, Any]) -> dict[str, Any]:
    """What fsspec calls a file's or directory's information."""
    return {
        **status,
        "name": name,
        "type": status["type"].lower(),
        "size": status["length"],
        "mtime": status["modificationTime"] / 1000,
    }


def _body(data: IO[bytes] | None) -> dict[str, Any]:
    """The body of a request to a data node, from the file's beginning."""
    if data is None:
        return {}
    size_bytes = data.seek(0, 2)
    data.seek(0)
    # requests would send an empty file in chunks, without a length.
    body = data if size_bytes else b""
    return {"data": body, "headers": {"Content-Type": "application/octet-stream"}}


def _remote_exception(answer: requests.Response) -> Any:
    """The `RemoteException` of an answer; None if its body is none."""
    try:
        found = answer.json()["RemoteException"]
        return found if found["exception"] else None
    except (ValueError, KeyError, TypeError):
        return None
