"""HDFS over the protocol of its name nodes and data nodes, by the package hdfs-native: a client in
Rust, without Java.

It knows name services, mount tables, Kerberos and tokens, passes over name nodes on standby, and
reads on from another data node where one fails or falls silent. Here requests are made again by
featstore's policy, in place of its own, and have a time limit where name nodes are asked: it waits
without one for a name node that has stopped, or whose host is cut off. The limit is kept by the
thread that asks, so many threads wait at the same time, each for one limit a name node.
"""

import contextlib
import ctypes
import functools
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import hdfs_native

from featstore.base.processes import forget_in_child
from featstore.files.hdfs_files import HdfsError, HdfsFiles, HdfsReader, SilentError, remote_error
from featstore.files.retry import BRIEF, RetryPolicy, with_time_limit

_LOG = logging.getLogger(__name__)
# Of a name node: to connect, as Hadoop's own client unless the configuration has a longer time, and
# to answer.
_CONNECT_S, _ANSWER_S = 20.0, 10.0
# Of a data node, unless the configuration has another time: to connect, and between two packets.
# Other stores have 60 s. Here one that falls silent is asked once more, then those with the other
# copies, so that a third of it is enough for two copies.
_DATA_S = 20.0
_MAX_WAITS = 4  # of so long, for a packet of three copies
_NO_LIMIT_S = threading.TIMEOUT_MAX / _MAX_WAITS
# Of writing _BLOCK_BYTES. The client itself notices within 60 s that no data node confirms them.
_BLOCK_S = 90.0
_BLOCK_BYTES = 4 << 20
_PACKETS = 16  # of 64 KiB that are one block of a stream
_NAMES = "dfs.ha.namenodes."
_CONNECT_TIMEOUT, _DATA_TIMEOUT = "ipc.client.connect.timeout", "dfs.client.socket-timeout"
_MAX_ATTEMPTS = "dfs.client.failover.max.attempts"  # after the first one
# How hdfs-native shows an exception of a server, and its own errors.
_REMOTE = re.compile(r'^(?:Fatal)?RPCError\("([\w.$]*)", "(.*)"\)$', re.DOTALL)
_SASL = re.compile(r"^(SASLError|GSSAPIError|NoSASLMechanism)|libgssapi")
# The words of the system's client of Kerberos, without those that say nothing of the cause.
_GSS = re.compile(r'^GSSAPIError\(.*?, "(?:[^"]*?: )?(.*)"\)$', re.DOTALL)
_PASSING = re.compile(
    r"^(DataTransferError|ChecksumError|BlocksNotFound|InvalidRPCResponse|FatalRPCError|"
    r"OperationFailed..Failed to complete)"
)
_NODE = re.compile(r'ip_addr: \\?"([^"\\]*).*?xfer_port: (\d+)')
_Result = TypeVar("_Result")


class HdfsRpc(HdfsFiles):
    """A client of one name service or mount table. Threads may share it.

    Args:
        root: The URL of the service, such as `hdfs://prod` or `hdfs://namenode:8020`.
        config: The properties of Hadoop's configuration.
        retry: When a failed request is made again.
    """

    protocol = ("hdfs", "viewfs")

    def __init__(
        self, root: str, config: Mapping[str, str], *, retry: RetryPolicy = BRIEF, **options: Any
    ) -> None:
        if self._cached:
            return
        super().__init__(retry, **options)
        self.root = root
        self._num_name_nodes = num_name_nodes(root, config)
        self._call_s = max(_CONNECT_S, seconds_of(config, _CONNECT_TIMEOUT, 0.0)) + _ANSWER_S
        self.data_s = seconds_of(config, _DATA_TIMEOUT, _DATA_S)
        said = config.get(_DATA_TIMEOUT, "")
        data_timeout = said if said.isdecimal() else f"{self.data_s * 1000:.0f}"
        attempts = str(self._num_name_nodes - 1)
        once = {**config, _DATA_TIMEOUT: data_timeout, _MAX_ATTEMPTS: attempts}
        with translated(root):
            self._shared = _shared(root, tuple(sorted(once.items())))

    def ask(self, act: Callable[[Any], _Result]) -> _Result:
        """The result of `act` on the client, one operation of a name node."""
        return self.again(partial(self.ask_once, act))

    def ask_once(self, act: Callable[[Any], _Result]) -> _Result:
        """As `ask`, once.

        Raises:
            SilentError: A name node has not answered in time. The next one is asked first then.
            HdfsError: It failed.
        """
        client = self._shared.client
        with translated(self.root):
            try:
                return with_time_limit(partial(act, client), self._call_s, "answer")
            except TimeoutError as error:
                # What waits, waits on: others get new connections, to another name node first.
                self._shared.renew(client)
                raise SilentError(f"{error} ({self.root})", self._num_name_nodes) from None

    def limited(self, act: Callable[[], _Result], limit_s: float) -> _Result:
        """The result of `act`, within a time limit.

        Raises:
            HdfsError: It failed.
        """
        with translated(self.root):
            return with_time_limit(act, limit_s, "answer")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        where = self._strip_protocol(path)
        return _info(path, self.ask(lambda client: client.get_file_info(where)))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        where = self._strip_protocol(path)
        listed = self.ask(lambda client: list(client.list_status(where)))
        # A listed file has no name below itself.
        names = [status.path.removeprefix(where.rstrip("/")).lstrip("/") for status in listed]
        infos = [
            _info(f"{path.rstrip('/')}/{name}", status)
            for name, status in zip(names, listed, strict=True)
        ]
        return infos if detail else [info["name"] for info in infos]

    def remove_once(self, path: str) -> None:
        where = self._strip_protocol(path)
        self.ask_once(lambda client: client.delete(where))

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        old, new = self._strip_protocol(source), self._strip_protocol(target)
        self.ask(lambda client: client.rename(old, new, overwrite))

    def create(self, path: str, data: IO[bytes]) -> None:
        self.again(partial(self._create, self._strip_protocol(path), data, []))

    def _create(self, where: str, data: IO[bytes], copies: list[int]) -> None:
        """Writes a file. `copies` is kept from one attempt to the next: how many copies the file is
        to have, once an attempt has failed.

        hdfs-native cannot write a block while one of the data nodes that it is to go to is gone, in
        which a name node believes for minutes. So a file that is sent again goes to one data node,
        and gets its other copies from there.
        """
        if not copies:
            # Its name is unique: if it is there, an earlier attempt has begun it.
            with contextlib.suppress(FileNotFoundError):
                found = self.ask_once(lambda client: client.get_file_info(where))
                copies.append(found.replication)
        options = hdfs_native.WriteOptions(overwrite=True, replication=1 if copies else None)
        writer = self.ask_once(lambda client: client.create(where, options))
        data.seek(0)
        for block in iter(partial(data.read, _BLOCK_BYTES), b""):
            self.limited(partial(writer.write, block), _BLOCK_S)
        self.limited(writer.close, _BLOCK_S)
        if copies:
            self.ask_once(lambda client: client.set_replication(where, *copies))

    def reader(self, path: str) -> HdfsReader:
        return _RpcReader(self, self._strip_protocol(path))


class _RpcReader(HdfsReader):
    """A file that is open: what is known of it are the places of its blocks."""

    def __init__(self, files: HdfsRpc, where: str) -> None:
        self._files, self._where = files, where
        self._file: Any = files.again(self._opened)
        super().__init__(files, len(self._file))

    def _opened(self) -> Any:
        return self._files.ask_once(lambda client: client.read(self._where))

    def stream(self, first: int, num_bytes: int) -> Iterator[bytes]:
        packets = self._packets(first, num_bytes)
        while block := b"".join(itertools.islice(packets, _PACKETS)):
            yield block

    def _packets(self, first: int, num_bytes: int) -> Iterator[bytes]:
        """The packets of a stream.

        Raises:
            SilentError: Data nodes were waited for as long as they may take, and none is left.
            HdfsError: It failed.
        """
        if self._file is None:
            self._file = self._opened()
        asked_s, data_s = time.monotonic(), self._files.data_s
        try:
            with translated(self._files.root):
                if first + num_bytes > len(self._file):
                    raise HdfsError(f"expected {first + num_bytes:,} bytes: it was replaced")
                packets = self._file.read_range_stream(first, num_bytes)
                # Before the first one hdfs-native may ask a name node, without a limit.
                first_one = partial(next, packets, b"")
                packet = with_time_limit(first_one, _MAX_WAITS * data_s, "answer")
                while packet:
                    yield packet
                    asked_s = time.monotonic()
                    packet = next(packets, b"")
        except HdfsError as error:
            self._file = None  # Its blocks may have moved.
            if error.is_passing and time.monotonic() - asked_s >= data_s:
                raise SilentError(str(error)) from None
            raise


class _Shared:
    """The client of a service, which all threads share: each has threads and connections of its
    own. `_lock` guards `client`. In a forked child it only stays: storage.py lets nobody use it.

    Attributes:
        client: Of hdfs-native.
    """

    def __init__(self, root: str, config: dict[str, str]) -> None:
        self._root, self._config, self._lock = root, config, threading.Lock()
        self.client = hdfs_native.Client(root, config)
        forget_in_child(self)

    def forget(self) -> None:
        """Lets a forked child never free the client, also at its end: it would wait for the
        client's threads, which are not there.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.client))

    def renew(self, stuck: Any) -> None:
        """Replaces a client that is stuck by one that asks the other name nodes first."""
        with self._lock:
            if self.client is stuck:
                self._config = rotated(self._config)
                self.client = hdfs_native.Client(self._root, self._config)


@functools.cache
def _shared(root: str, config: tuple[tuple[str, str], ...]) -> _Shared:
    return _Shared(root, dict(config))


def rotated(config: Mapping[str, str]) -> dict[str, str]:
    """The configuration with the first name node of each service as its last one. Pure."""
    found = dict(config)
    for key in _services(config):
        first, *others = config[key].split(",")
        found[key] = ",".join([*others, first])
    return found


def num_name_nodes(root: str, config: Mapping[str, str]) -> int:
    """How many name nodes a service has; those of the largest service for a mount table. Pure."""
    service = urlsplit(root)
    keys = [f"{_NAMES}{service.netloc}"] if service.scheme == "hdfs" else _services(config)
    return 1 + max((config[key].count(",") for key in keys if key in config), default=0)


def seconds_of(config: Mapping[str, str], key: str, default_s: float) -> float:
    """A time limit of Hadoop's configuration, which has milliseconds; 0 is none. Of a text that is
    no number, such as `${...}`, the default.
    """
    text = config.get(key)
    if text is None:
        return default_s
    if not text.isdecimal():
        _LOG.warning(
            "%s is %r in the XML files of HADOOP_CONF_DIR: expected milliseconds; featstore takes "
            "%g s",
            key,
            text,
            default_s,
        )
        return default_s
    return int(text) / 1000 or _NO_LIMIT_S


def _services(config: Mapping[str, str]) -> list[str]:
    """The keys of the name nodes of each service."""
    return [key for key in config if key.startswith(_NAMES)]


@contextlib.contextmanager
def translated(root: str) -> Iterator[None]:
    """Translates the errors of hdfs-native in the block.

    Args:
        root: The service, for messages.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, IsADirectoryError, HdfsError):
        raise
    except OSError as error:
        raise HdfsError(f"{error} ({root})", is_passing=True) from None
    except NotImplementedError as error:
        raise HdfsError(f"hdfs-native does not support this: {error} ({root})") from None
    except RuntimeError as error:
        raise error_of(str(error), root) from None


def error_of(text: str, root: str) -> OSError:
    """The error for a RuntimeError of hdfs-native. Pure.

    Args:
        text: Its text, which shows an error in Rust's form.
        root: The service.
    """
    if remote := _REMOTE.match(text):
        words = remote[2].partition("\\n")[0].replace('\\"', '"').replace("\\\\", "\\")
        return remote_error(re.split(r"[.$]", remote[1])[-1], words, root)
    if _SASL.search(text):
        words = _GSS.sub(r"\1", text)
        return PermissionError(f"the name node demands Kerberos: {words} ({root})")
    nodes = ", ".join(":".join(node) for node in _NODE.findall(text))
    words = f"no data node answers: {nodes}" if nodes else text
    return HdfsError(f"{words} ({root})", is_passing=_PASSING.match(text) is not None)


def _info(name: str, status: Any) -> dict[str, Any]:
    """What fsspec calls a file's or directory's information."""
    return {
        "name": name,
        "type": "directory" if status.isdir else "file",
        "size": status.length,
        "mtime": status.modification_time / 1000,
    }
