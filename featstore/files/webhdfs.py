"""HDFS over its REST interface: fsspec's WebHDFS client, with what a table needs beyond it.

fsspec's client knows one name node, waits without a time limit, does not notice a refused rename
and appends the blocks of a file one by one. This one asks all name nodes of a service, sends each
file in one request under a hidden name, and renames it when it is whole. The operations and the
order of their requests follow the published REST contract; only `renameoptions` is not in it, and
is what Hadoop's own client sends.
"""

import contextlib
import importlib.util
import re
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any
from urllib.parse import quote, urlsplit

import requests
from fsspec.implementations.webhdfs import WebHDFS

from featstore.base.libraries import LazyModule
from featstore.files.random_reader import RandomReader
from featstore.files.retry import BRIEF, Failures, RetryPolicy
from featstore.files.store_errors import PASSING_WORDS, is_unresolved, retry_after_s

requests_kerberos: Any = LazyModule("requests_kerberos")

_TIMEOUTS_S = (10.0, 60.0)  # to connect, and between two reads of a response
_SPOOLED_BYTES = 8 << 20  # of a file that is being written: larger ones are kept on local disk
_REDIRECT = 307
_PREFIX = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
_ASKED = re.compile(r"with url: \S+")  # the request's query may hold a token
# Exceptions of a name node that another one, or a later request, may not raise.
_PASSING = (
    *("StandbyException", "RetriableException", "ObserverRetryOnActiveException"),
    "SafeModeException",
)
_REFUSED = (
    *("AccessControlException", "SecurityException", "AuthenticationException"),
    *("AuthorizationException", "InvalidToken"),
)


class HdfsError(OSError):
    """An answer or a connection that failed.

    Attributes:
        is_passing: Whether another request may succeed.
        headers: The headers of the answer.
        tried: How often and how long, where the request was made again.
    """

    tried: str = ""

    def __init__(
        self, text: str, *, is_passing: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.is_passing, self.headers = is_passing, headers or {}


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
    name = str(exception["exception"]) if exception else ""
    text = f"host='{urlsplit(f'//{host}').hostname}', port={urlsplit(f'//{host}').port}"
    if exception:
        words = str(exception.get("message", "")).partition("\n")[0]
        text = f"{name}: {words} ({text})"
    else:
        text = f"HTTP {status} ({text})"
    if name == "FileNotFoundException":
        return FileNotFoundError(text)
    if name == "FileAlreadyExistsException":
        return FileExistsError(text)
    if status == 401 and "negotiate" in headers.get("WWW-Authenticate", "").lower():
        return PermissionError(f"the server demands Kerberos: {kerberos_state()} ({text})")
    if name in _REFUSED or (not name and status in (401, 403)):
        return PermissionError(text)
    is_passing = (
        name in _PASSING
        or (bool(exception) and PASSING_WORDS.search(text) is not None)
        or (not name and (status >= 500 or status in (408, 429)))
    )
    return HdfsError(text, is_passing=is_passing, headers=headers)


def kerberos_state() -> str:
    """What a client lacks that the server refused although it may know Kerberos."""
    if importlib.util.find_spec("requests_kerberos") is None:
        return "the package requests-kerberos is not installed"
    return "no valid ticket was found"


class WebHdfs(WebHDFS):  # type: ignore[misc]
    """A client of one name service. Threads may share it.

    `_active` is the name node that answered last. It is a hint: an old value costs one request.

    Args:
        name_nodes: Each `host:port`; one of them is active.
        is_secure: Whether they speak HTTPS.
        user: Who asks, where the cluster believes it.
        password: For a gateway with passwords; sent to no other host.
        token: A delegation token, in place of a user.
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
        retry: RetryPolicy = BRIEF,
        **options: Any,
    ) -> None:
        if self._cached:
            return
        first = urlsplit(f"//{name_nodes[0]}")
        super().__init__(
            first.hostname,
            first.port,
            use_https=is_secure,
            user=user,
            password=password,
            token=token,
            **options,
        )
        kind = "https" if is_secure else "http"
        self._hosts = frozenset(urlsplit(f"//{node}").hostname for node in name_nodes)
        self._roots = [f"{kind}://{node}/webhdfs/v1" for node in name_nodes]
        self._active, self._retry = 0, retry

    def _connect(self) -> None:
        super()._connect()
        # It answers a server that asks for Kerberos, and is silent otherwise.
        if (
            self.password is None
            and "delegation" not in self.pars
            and importlib.util.find_spec("requests_kerberos") is not None
        ):
            self.session.auth = requests_kerberos.HTTPKerberosAuth(
                mutual_authentication=requests_kerberos.OPTIONAL
            )

    def _call(
        self,
        op: str,
        method: str = "get",
        path: str | None = None,
        data: Any = None,
        redirect: bool = True,
        **query: Any,
    ) -> requests.Response:
        """Makes one operation at the active name node, and at the data node that it names.

        Name nodes that are down or on standby are passed over. If a data node fails, the name node
        is asked again, which chooses among those that live. So an operation may be made twice.
        """
        where = quote(self._strip_protocol(path), safe="/=") if path else "/"
        params = {**query, **self.pars, "op": op.upper()}
        failures = Failures()
        while True:
            try:
                answer = self._ask_name_nodes(method, where, params)
                if answer.status_code != _REDIRECT or not redirect:
                    return answer
                return self._send(method, answer.headers.get("Location", ""), **_body(data))
            except HdfsError as error:
                self._pause(failures, error)

    def _ask_name_nodes(
        self, method: str, where: str, params: Mapping[str, Any]
    ) -> requests.Response:
        """The answer of the first name node that gives one, the active one being asked first."""
        errors = list[HdfsError]()
        for root in self._roots[self._active :] + self._roots[: self._active]:
            try:
                answer = self._send(method, f"{root}{where}", params=params)
            except HdfsError as error:
                if not error.is_passing:
                    raise
                errors.append(error)
            else:
                self._active = self._roots.index(root)
                return answer
        # That the name of one does not resolve says less than what others answer.
        raise min(errors, key=lambda error: is_unresolved(str(error)))

    def _pause(self, failures: Failures, error: HdfsError) -> None:
        """Waits after a failure. Raises it if it is final."""
        policy = self._retry
        if is_unresolved(str(error)):  # It is most often misspelled.
            policy = replace(policy, max_attempts=BRIEF.max_attempts)
        asked_s = retry_after_s(error.headers, time.time())
        pause_s = failures.add(policy, asked_s=asked_s) if error.is_passing else None
        if pause_s is None:
            error.tried = failures.told("retry_s", policy) if failures.num else ""
            raise error
        time.sleep(pause_s)

    def _send(self, method: str, url: str, **options: Any) -> requests.Response:
        host = urlsplit(url)
        if self.password is not None and host.hostname not in self._hosts:
            options["auth"] = lambda request: request
        try:
            answer = self.session.request(
                method.upper(), url, timeout=_TIMEOUTS_S, allow_redirects=False, **options
            )
        except requests.RequestException as error:
            words = _ASKED.sub("", f"{type(error).__name__}: {error}")
            text = f"{words} (host='{host.hostname}', port={host.port})"
            raise HdfsError(text, is_passing=True) from None
        if answer.status_code < 400:
            return answer
        raise error_of(answer.status_code, answer.headers, _remote_exception(answer), host.netloc)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return _PREFIX.sub("", path).rstrip("/") or "/"

    @staticmethod
    def _process_info(info: dict[str, Any]) -> dict[str, Any]:
        info["type"], info["size"] = info["type"].lower(), info["length"]
        info["mtime"] = info["modificationTime"] / 1000
        return info

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Renames a file or directory in one step. It never replaces a file.

        Raises:
            FileExistsError: The new name is taken, or there is nothing at the old one: a name node
                does not say which.
        """
        target = self._strip_protocol(path2)
        answer = self._call("RENAME", "put", path1, destination=target)
        if not answer.json()["boolean"]:
            raise FileExistsError(f"the name node refuses to rename {path1} to {target}")

    def replace(self, source: str, target: str) -> None:
        """Renames a file of a unique name in one step, in place of the file at the target."""
        where = self._strip_protocol(target)
        try:
            answer = self._call(
                "RENAME", "put", source, destination=where, renameoptions="OVERWRITE"
            )
        except FileNotFoundError:
            # After a lost reply the operation is made again: the source is then gone.
            with contextlib.suppress(FileNotFoundError):
                self.info(target)
                return
            raise
        if answer.content and not answer.json()["boolean"]:
            raise FileExistsError(
                f"{target} exists, and the gateway knows no rename that replaces a file"
            )

    def upload(self, source: IO[bytes], path: str) -> None:
        """Sends a file of known size, which appears whole under its name, or not at all."""
        size_bytes = source.seek(0, 2)
        directory, _, name = self._strip_protocol(path).rpartition("/")
        partial = f"{directory}/.{name}.{uuid.uuid4().hex[:8]}.partial"
        try:
            self._call("CREATE", "put", partial, data=source, overwrite="true")
            if (written := self.info(partial)["size"]) != size_bytes:
                raise HdfsError(f"{written:,} of {size_bytes:,} bytes were written")
            self.replace(partial, path)
        except BaseException:
            # What cannot be removed now is left to a vacuum.
            with contextlib.suppress(OSError):
                self.rm(partial)
            raise

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb":
            return HdfsWriter(self, path)
        return HdfsReader(self, path)


class HdfsReader(RandomReader):
    """An unbuffered reader: each read is a request to a data node, with the bytes' position."""

    def __init__(self, client: WebHdfs, path: str) -> None:
        super().__init__(client.info(path)["size"])
        self._client, self._path = client, path

    def fetch(self, first: int, num_bytes: int) -> bytes:
        data: bytes = self._client._call(
            "OPEN", path=self._path, offset=first, length=num_bytes
        ).content
        if len(data) != num_bytes:
            raise HdfsError(f"{len(data):,} of {num_bytes:,} bytes from {first:,} on were read")
        return data


class HdfsWriter:
    """A writer that keeps the file on this machine until it is closed. Not thread-safe.

    HDFS publishes a file when the request that writes it ends, also when it ends early. A file that
    is sent whole can be sent again, to another data node.
    """

    def __init__(self, client: WebHdfs, path: str) -> None:
        self._client, self._path = client, path
        self._file = tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115  closed below

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def close(self) -> None:
        """Publishes the file."""
        try:
            self._client.upload(self._file, self._path)
        finally:
            self._file.close()

    def discard(self) -> None:
        """Forgets the file."""
        self._file.close()


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
        return found if "exception" in found else None
    except (ValueError, KeyError, TypeError):
        return None
