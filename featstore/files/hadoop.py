"""Hadoop's file systems by URL: which client reads them, where its name nodes are, and what it
lacks. `docs/design/files.md` says why.

| scheme | client |
|---|---|
| `webhdfs://`, `swebhdfs://` | `webhdfs.py`: the REST interface, without Java |
| `hdfs://`, `viewfs://` | pyarrow's, which loads Hadoop's libhdfs and Java |
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from featstore.base.libraries import LazyModule
from featstore.files.looks import exists, is_file_at
from featstore.files.retry import current_policy

if TYPE_CHECKING:
    import fsspec
else:
    fsspec = LazyModule("fsspec")

WEB_SCHEMES = frozenset({"webhdfs", "swebhdfs"})
HADOOP_SCHEMES = WEB_SCHEMES | {"hdfs", "viewfs"}
# A delegation token, as `hdfs fetchdt` and the operation GETDELEGATIONTOKEN give it.
TOKEN = "FEATSTORE_HDFS_TOKEN"
# Not fsspec's own name: other users of fsspec in the process keep its client.
_PROTOCOL = "featstore-webhdfs"
_CLIENT = "featstore.files.webhdfs.WebHdfs"  # imported when it is used, and requests with it
_DEFAULT_PORTS = {"webhdfs": 9870, "swebhdfs": 9871}
_JVM = (
    "lib/server/libjvm.so",
    "jre/lib/amd64/server/libjvm.so",
    "jre/lib/aarch64/server/libjvm.so",
)
_DEFAULT_JAVA = "/usr/lib/jvm/default-java"  # where pyarrow looks too
_JARS = ("hadoop-common", "hadoop-client-api")
FileSystem: TypeAlias = "fsspec.AbstractFileSystem"


def hadoop_filesystem(url: str, environment: Mapping[str, str]) -> FileSystem:
    """The file system of a URL of one of `HADOOP_SCHEMES`.

    Args:
        url: The URL.
        environment: The environment variables.

    Raises:
        OSError: What the client needs is missing.
        ImportError: The package of the client is not installed.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in WEB_SCHEMES:
        fsspec.register_implementation(
            _PROTOCOL, _CLIENT, clobber=True, errtxt="it needs requests: install featstore[hdfs]"
        )
        options = web_options(url, environment)
        return cast("FileSystem", fsspec.filesystem(_PROTOCOL, **options))
    if missing := missing_for_libhdfs(environment):
        raise OSError(f"missing for Hadoop's client: {'; '.join(missing)}")
    return cast("FileSystem", fsspec.filesystem("hdfs", **libhdfs_options(url)))


def libhdfs_options(url: str) -> dict[str, Any]:
    """The options of fsspec's client over libhdfs. Pure.

    A URL without a host means the default file system of Hadoop's configuration. A mount table
    (`viewfs://`) is named with its scheme, since libhdfs takes a bare host for one of `hdfs://`.
    """
    parts = urlsplit(url)
    options: dict[str, Any] = {"host": parts.hostname or "default"}
    if parts.scheme == "viewfs":
        options["host"] = f"viewfs://{parts.hostname or ''}"
    if parts.port:
        options["port"] = parts.port
    if parts.username:
        options["user"] = unquote(parts.username)
    return options


def missing_for_libhdfs(environment: Mapping[str, str]) -> list[str]:
    """What libhdfs lacks: each a text that names the variable to set."""
    missing = []
    java = environment.get("JAVA_HOME", "")
    if not any(is_file_at(Path(java or _DEFAULT_JAVA, name)) for name in _JVM):
        missing.append(f"JAVA_HOME ({_found(java)}) is no Java with {_JVM[0]}")
    library = environment.get("ARROW_LIBHDFS_DIR", "")
    home = environment.get("HADOOP_HOME", "")
    places = [library, home and f"{home}/lib/native"]
    places += environment.get("LD_LIBRARY_PATH", "").split(":")
    if not any(is_file_at(Path(place, "libhdfs.so")) for place in filter(None, places)):
        missing.append(f"HADOOP_HOME ({_found(home)}) is no Hadoop with lib/native/libhdfs.so")
    classes = environment.get("CLASSPATH", "")
    if not any(jar in classes for jar in _JARS):
        missing.append(
            f"CLASSPATH ({_found(classes)}) names no jar of Hadoop, each of which must be written "
            f"out, as `hadoop classpath --glob` does"
        )
    return missing


def _found(value: str) -> str:
    return "not set" if not value else value if len(value) <= 60 else f"{value[:60]}..."


def web_options(url: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The options of `WebHdfs` for a URL: name nodes, credentials, and the thread's retry policy.

    A host without a port is looked up as a name service in `hdfs-site.xml`, as Hadoop's own clients
    do. If it is none, it is the host of a single name node. The user and password of the URL come
    first, then a delegation token, then HADOOP_USER_NAME.

    Args:
        url: The URL.
        environment: The environment variables.
    """
    parts = urlsplit(url)
    name_nodes: tuple[str, ...] = ()
    if parts.port is None and environment.get("HADOOP_CONF_DIR"):
        site = hadoop_properties(Path(environment["HADOOP_CONF_DIR"], "hdfs-site.xml"))
        name_nodes = name_nodes_of(parts.hostname or "", site, is_secure=parts.scheme == "swebhdfs")
    options: dict[str, Any] = {
        "name_nodes": name_nodes
        or (f"{_bracketed(parts.hostname)}:{parts.port or _DEFAULT_PORTS[parts.scheme]}",),
        "is_secure": parts.scheme == "swebhdfs",
        "retry": current_policy(),
    }
    if environment.get("SSL_CERT_FILE"):
        options["session_verify"] = environment["SSL_CERT_FILE"]
    if parts.username:
        options["user"] = unquote(parts.username)
        options["password"] = None if parts.password is None else unquote(parts.password)
    elif environment.get(TOKEN):
        options["token"] = environment[TOKEN]
    else:
        options["user"] = environment.get("HADOOP_USER_NAME") or None
    return options


def _bracketed(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else host or "localhost"


def hadoop_properties(path: Path) -> dict[str, str]:
    """The properties of a configuration file of Hadoop; empty if there is no such file.

    Raises:
        OSError: The file cannot be read, or is no XML.
    """
    if not exists(path):
        return {}
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
    names = properties.get(f"dfs.ha.namenodes.{service}", "").split(",")
    keys = [f"dfs.namenode.{kind}-address.{service}.{name.strip()}" for name in names]
    return tuple(properties[key] for key in keys if properties.get(key))
