"""Hadoop's file systems by URL: which client reads them, as whom, and where its name nodes are.
`docs/design/files.md` says why.

| scheme | client |
|---|---|
| `hdfs://`, `viewfs://` | `hdfs_rpc.py`: the protocol of name nodes and data nodes |
| `webhdfs://`, `swebhdfs://` | `webhdfs.py`: the REST interface |
"""

import functools
import importlib.util
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import SplitResult, unquote, urlsplit
from xml.etree import ElementTree

from featstore.base.errors import ConfigError
from featstore.base.libraries import LazyModule
from featstore.base.redaction import redact
from featstore.files.looks import status_of
from featstore.files.retry import current_policy

if TYPE_CHECKING:
    import fsspec
else:
    fsspec = LazyModule("fsspec")

RPC_SCHEMES = frozenset({"hdfs", "viewfs"})
HADOOP_SCHEMES = RPC_SCHEMES | {"webhdfs", "swebhdfs"}
# A delegation token, as `hdfs fetchdt` and the operation GETDELEGATIONTOKEN give it.
TOKEN = "FEATSTORE_HDFS_TOKEN"
# Not fsspec's own names: other users of fsspec in the process keep its clients. A client is
# imported when it is used, and its package with it.
_WEB, _RPC = (
    ("featstore-webhdfs", "featstore.files.webhdfs.WebHdfs"),
    ("featstore-hdfs", "featstore.files.hdfs_rpc.HdfsRpc"),
)
# By these hdfs-native knows who asks, each time that it connects.
_WHO = ("HADOOP_USER_NAME", "HADOOP_PROXY_USER", "HADOOP_TOKEN_FILE_LOCATION", "KRB5CCNAME")
_INSTALL = "install featstore-pipeline[hdfs]"
_DEFAULT_PORTS = {"webhdfs": 9870, "swebhdfs": 9871, "hdfs": 8020}
_SERVICE = "dfs.ha.namenodes"
FileSystem: TypeAlias = "fsspec.AbstractFileSystem"


def hadoop_filesystem(url: str, environment: Mapping[str, str]) -> FileSystem:
    """The file system of a URL of one of `HADOOP_SCHEMES`.

    Args:
        url: The URL.
        environment: The environment variables.

    Raises:
        ConfigError: The URL does not say where the name nodes are, or says who asks in vain.
        OSError: A configuration file cannot be read.
        ImportError: The package of the client is not installed.
    """
    is_rpc = url.partition("://")[0].lower() in RPC_SCHEMES
    (protocol, client), options = (_RPC, rpc_options) if is_rpc else (_WEB, web_options)
    fsspec.register_implementation(protocol, client, clobber=True, errtxt=_INSTALL)
    return cast("FileSystem", fsspec.filesystem(protocol, **options(url, environment)))


def rpc_options(url: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The options of `HdfsRpc` for a URL: service, configuration, and the thread's retry policy.

    A host without a port is a name service, or else the host of a single name node. A URL without a
    host means the default file system of the configuration. Clients are shared where their options
    are equal, so the configuration also has the variables that say who asks.

    Raises:
        ConfigError: The URL has a user, or nothing names a host.
    """
    parts = urlsplit(url)
    if parts.username is not None:
        raise ConfigError(
            f"{redact(url)}: found a user in the URL, which Hadoop's own clients ignore; expected "
            f"it in HADOOP_USER_NAME"
        )
    config = _configuration(environment)
    host, port = _host_of(parts), parts.port
    if not host:
        default = urlsplit(config.get("fs.defaultFS", ""))
        if default.scheme != parts.scheme or not _host_of(default):
            raise ConfigError(
                f"{redact(url)}: expected a host, or {parts.scheme}:// as fs.defaultFS in "
                f"core-site.xml of HADOOP_CONF_DIR, found {default.geturl() or 'neither'}"
            )
        host, port = _host_of(default), default.port
    if port is None and parts.scheme == "hdfs" and f"{_SERVICE}.{host}" not in config:
        port = _DEFAULT_PORTS["hdfs"]
    root = f"{parts.scheme}://{_bracketed(host)}{f':{port}' if port else ''}"
    who = {name: environment[name] for name in _WHO if name in environment}
    return {"root": root, "config": config | who, "retry": current_policy()}


def _configuration(environment: Mapping[str, str]) -> dict[str, str]:
    """The properties of Hadoop's configuration; empty if there is none."""
    home = environment.get("HADOOP_HOME")
    directory = environment.get("HADOOP_CONF_DIR") or (home and f"{home}/etc/hadoop")
    if not directory:
        return {}
    found = dict[str, str]()
    for name in ("core-site.xml", "hdfs-site.xml"):
        found |= hadoop_properties(Path(directory, name))
    return {
        key: re.sub(r"\s+", "", value) if key.startswith(f"{_SERVICE}.") else value
        for key, value in found.items()
    }


def web_options(url: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The options of `WebHdfs` for a URL: name nodes, credentials, and the thread's retry policy.

    A host without a port is looked up as a name service in `hdfs-site.xml`, as Hadoop's own clients
    do. If it is none, it is the host of a single name node. The user and password of the URL come
    first, then a delegation token, then HADOOP_USER_NAME, then, without Kerberos, who runs this
    process.

    Args:
        url: The URL.
        environment: The environment variables.
    """
    parts, config = urlsplit(url), _configuration(environment)
    is_secure = parts.scheme == "swebhdfs"
    name_nodes: tuple[str, ...] = ()
    if parts.port is None:
        name_nodes = name_nodes_of(_host_of(parts), config, is_secure=is_secure)
    options: dict[str, Any] = {
        "name_nodes": name_nodes
        or (f"{_bracketed(parts.hostname)}:{parts.port or _DEFAULT_PORTS[parts.scheme]}",),
        "is_secure": is_secure,
        "retry": current_policy(),
    }
    if environment.get("SSL_CERT_FILE"):
        options["certificates"] = environment["SSL_CERT_FILE"]
    if parts.username:
        options["user"] = unquote(parts.username)
        options["password"] = None if parts.password is None else unquote(parts.password)
    elif environment.get(TOKEN):
        options["token"] = environment[TOKEN]
    else:
        options["user"] = environment.get("HADOOP_USER_NAME") or _login_name(config)
    return options


def _login_name(config: Mapping[str, str]) -> str | None:
    """Who runs this process, as Hadoop's own clients tell a cluster without Kerberos. None with
    Kerberos, where it is the ticket that says who asks, or if the system does not know.
    """
    has_kerberos = importlib.util.find_spec("requests_kerberos") is not None
    if has_kerberos or config.get("hadoop.security.authentication", "simple") != "simple":
        return None
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in containers that run as an arbitrary user
        return None


def _host_of(parts: SplitResult) -> str:
    """The host as the URL has it, without brackets; "" if none. `parts.hostname` is in lower case,
    and names of services and mount tables need not be.
    """
    host = parts.netloc.rpartition("@")[2]
    return re.sub(r":\d*$", "", host) if not host.startswith("[") else parts.hostname or ""


def _bracketed(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else host or "localhost"


def hadoop_properties(path: Path) -> dict[str, str]:
    """The properties of a configuration file of Hadoop; empty if there is no such file.

    Raises:
        OSError: The file cannot be read, or is no XML.
    """
    status = status_of(path)
    return {} if status is None else _parsed(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _parsed(path: Path, modified_ns: int, size_bytes: int) -> dict[str, str]:
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise OSError(f"{path} is not a configuration file of Hadoop ({error})") from None
    found = ((item.findtext("name"), item.findtext("value")) for item in root.iter("property"))
    return {name.strip(): (value or "").strip() for name, value in found if name}


def name_nodes_of(
    service: str, properties: Mapping[str, str], *, is_secure: bool
) -> tuple[str, ...]:
    """The HTTP addresses of a name service's name nodes. Pure.

    Args:
        service: The name service, such as `prod`.
        properties: The properties of `hdfs-site.xml`.
        is_secure: Whether to take the addresses for HTTPS.

    Returns:
        Each `host:port`. Empty if there is no such name service.
    """
    kind = "https" if is_secure else "http"
    names = properties.get(f"{_SERVICE}.{service}", "").split(",")
    keys = [f"dfs.namenode.{kind}-address.{service}.{name.strip()}" for name in names]
    return tuple(properties[key] for key in keys if properties.get(key))
