"""Files by URL, local or remote: the only use of fsspec and obstore.

A URL without a scheme is a local path. HTTP, S3, GCS and Azure go through obstore behind the fsspec interface, everything
else through fsspec itself. fsspec is transport only: nothing here caches.
"""

import contextlib
import errno
import functools
import io
import os
import posixpath
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast
from urllib.parse import urlsplit

import fsspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.fsspec import FsspecStore
from obstore.store import ObjectStore, from_url

from featstore.errors import ConfigError, ReplacedError, StagingError
from featstore.redirects import kept_home

_OBSTORE = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "azure"})
_ALIASES = {"s3a": "s3", "gcs": "gs", "azure": "az"}
_CLIENT_OPTIONS = {"allow_http": True, "connect_timeout": "10s", "read_timeout": "60s", "timeout": "1day"}
_RETRIES = 4
_REFUSED = re.compile(r"status(?: code)?:? (?!408|429)4\d\d\b")
_BLOCK_BYTES = 8 << 20
# What a reader in place asks a store for at a time.
BUFFER_BYTES = 1 << 20
_NO_LINKS = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
_VERSION_KEYS = ("mtime", "e_tag", "ETag", "etag", "last_modified", "LastModified", "created")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
# A user ends with the last @ before the path; one with a password that is not escaped, with the first one there is.
_USER = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+://)(?:[^/?#]*@|(?!\[)[^/?#@:]*:(?!\d*(?:[/?#]|$))[^@]*@)")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a listing: `url` opens it, `name` is its path below what was listed.

    `version` changes when the content is replaced: the time of the last change, or what the store calls its version;
    empty where the store says neither.
    """

    url: str
    name: str
    size_bytes: int
    version: str = ""


def scheme(url: str) -> str:
    """The URL's scheme in lower case, `file` for a plain path."""
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else "file"


def has_object_store(url: str) -> bool:
    """Whether the URL is read through an object store's own client rather than through fsspec."""
    return scheme(url) in _OBSTORE


def local_path(url: str) -> Path | None:
    """The local path that a URL or path names, or None where it is remote."""
    if scheme(url) != "file":
        return None
    return Path(url.removeprefix("file://")).expanduser()


def join(base: str, *parts: str) -> str:
    """`base` extended by relative parts, with single slashes."""
    return "/".join([base.rstrip("/"), *(part.strip("/") for part in parts if part)])


def redact(url: str) -> str:
    """The URL without user, password, query and fragment: what may stand in names, logs and errors."""
    bare = without_user(url)
    return bare if scheme(url) == "file" else re.sub(r"[?#].*$", "", bare, flags=re.DOTALL)


def redact_text(text: str) -> str:
    """The text with each URL in it redacted."""
    return re.sub(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>)\]]+", lambda found: redact(found.group()), text)


def without_user(url: str) -> str:
    """The URL without user and password: what names the content."""
    return _USER.sub(r"\1", url)


def filesystem(url: str) -> fsspec.AbstractFileSystem:
    """The fsspec file system for a URL's scheme; credentials come from the environment, as each store defines them."""
    name = scheme(url)
    if name not in _OBSTORE:
        try:
            return cast(fsspec.AbstractFileSystem, fsspec.core.url_to_fs(url)[0])  # with user, host and port, where it has them
        except (ValueError, ImportError) as error:
            raise ConfigError(f"{redact(url)}: no file system for {name}://: {error}") from error
    _require_unforked(url)
    protocol: Any = _ALIASES.get(name, name)
    return cast(fsspec.AbstractFileSystem, FsspecStore(protocol, **_options(protocol, _RETRIES)))


def _options(protocol: str, max_retries: int) -> dict[str, Any]:
    return {
        "client_options": _CLIENT_OPTIONS | kept_home(protocol, os.environ),
        "retry_config": {"max_retries": max_retries},
    }


_client_process: list[int] = []


def _require_unforked(url: str) -> None:
    """The remote client's threads do not live on in a forked child, where it would wait for them for ever."""
    if not _client_process:
        _client_process.append(os.getpid())
    if _client_process[0] != os.getpid():
        raise StagingError(
            f"{redact(url)} cannot be read in this process: it was forked from one that had already used a remote store, whose "
            "client does not survive a fork; start worker processes by 'spawn' or 'forkserver' "
            "(DataLoader: multiprocessing_context='spawn')"
        )


def connect(url: str, max_retries: int = _RETRIES) -> tuple[ObjectStore, str]:
    """The object store and the key in it that a URL names. The client itself repeats what failed up to `max_retries` times."""
    _require_unforked(url)
    parts = urlsplit(canonical(url))
    if parts.query and parts.scheme in ("http", "https"):
        raise ConfigError(f"{redact(url)}: a URL with a query cannot be read; expected one that ends with the file's path")
    return _store(f"{parts.scheme}://{parts.netloc}/", max_retries), parts.path.lstrip("/")


@functools.lru_cache(maxsize=16)
def _store(root: str, max_retries: int) -> ObjectStore:
    return from_url(root, **_options(scheme(root), max_retries))


def canonical(url: str) -> str:
    """The URL under the one of its scheme's names that all clients know: `gs://` for `gcs://`."""
    name = scheme(url)
    return _ALIASES.get(name, name) + url[len(name) :] if name in _ALIASES else url


@contextlib.contextmanager
def as_os_errors(url: str) -> Iterator[None]:
    """Errors of the remote client as what the same failure of a local file raises, without credentials.

    ReplacedError where a condition on the object's version did not hold. Of other errors `errno` is EINVAL where the store
    refused the request, which it will again, and EIO where it failed.
    """
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "No such file", redact(url)) from None
    except PreconditionError:
        raise ReplacedError(f"{redact(url)} was replaced while it was read") from None
    except (PermissionDeniedError, UnauthenticatedError):
        raise PermissionError(errno.EACCES, "The store refuses access", redact(url)) from None
    except BaseError as error:
        reason = redact_text(str(error).partition("\n")[0])
        code = errno.EINVAL if _REFUSED.search(reason) else errno.EIO
        raise OSError(code, f"The store failed: {reason}", redact(url)) from None


class _RemoteFile(io.RawIOBase):
    """Reads an object by ranges, without a buffer."""

    def __init__(self, url: str, size_bytes: int) -> None:
        self._url, self._size_bytes, self._position = url, size_bytes, 0
        self._store, self._key = connect(url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size_bytes - self._position)
        if length <= 0:
            return 0
        with as_os_errors(self._url):
            found = obstore.get_range(self._store, self._key, start=self._position, length=length)
        buffer[: len(found)] = memoryview(found)
        self._position += len(found)
        return len(found)


def open_read(url: str) -> BinaryIO:
    """A seekable binary reader; the caller closes it. FileNotFoundError where there is none."""
    path = local_path(url)
    if path is not None:
        return path.open("rb")
    if scheme(url) in _OBSTORE:
        return cast(BinaryIO, io.BufferedReader(_RemoteFile(url, size_bytes(url)), BUFFER_BYTES))
    return cast(BinaryIO, filesystem(url).open(url, "rb"))


@contextlib.contextmanager
def open_write(url: str) -> Iterator[IO[bytes]]:
    """A binary writer whose file appears under `url` whole, at the end of the block, or not at all.

    Local files are written under a hidden name, synced and renamed; remote stores publish an object when it is closed.
    """
    path = local_path(url)
    if path is None:
        with as_os_errors(url), _discard_on_error(filesystem(url).open(canonical(url), "wb")) as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _discard_on_error(file: Any) -> Iterator[Any]:
    try:
        yield file
    except BaseException:
        discard = getattr(file, "discard", None)
        if discard is not None:
            discard()
        raise
    else:
        file.close()


def size_bytes(url: str) -> int:
    """The file's size. FileNotFoundError where there is none."""
    path = local_path(url)
    if path is not None:
        return path.stat().st_size
    if scheme(url) not in _OBSTORE:
        return int(filesystem(url).info(url)["size"])
    store, key = connect(url)
    with as_os_errors(url):
        return int(obstore.head(store, key)["size"])


def delete(url: str) -> None:
    """Removes one file; a file that is already gone is no error."""
    path = local_path(url)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError), as_os_errors(url):
        filesystem(url).rm_file(canonical(url))


def link(source: str, target: str) -> None:
    """The file `source`, which is never changed, under a second name on the same storage; a name that is taken is kept.

    Locally a hard link (a copy where the file system has none), in an object store one server-side copy, elsewhere a copy
    through this machine. The name appears whole or not at all.
    """
    place = local_path(target)
    if place is not None:
        _link_local(Path(str(local_path(source))), place)
        return
    with contextlib.suppress(FileNotFoundError):
        size_bytes(target)
        return
    if scheme(target) in _OBSTORE:
        store, key = connect(target)
        with as_os_errors(source):
            obstore.copy(store, connect(source)[1], key)
        return
    with open_read(source) as reader, open_write(target) as writer:
        shutil.copyfileobj(reader, writer, _BLOCK_BYTES)


def _link_local(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with source.open("rb") as reader, open_write(str(target)) as writer:
            shutil.copyfileobj(reader, writer, _BLOCK_BYTES)


def has_put_if_absent(directory: str) -> bool:
    """Whether the store refuses to write a name that is taken, tried with a tiny object below `directory`.

    True without a trial outside of object stores. OSError where the store cannot be written at all.
    """
    if scheme(directory) not in _OBSTORE:
        return True
    url = join(directory, f"_probe-{uuid.uuid4().hex}")
    store, key = connect(url)
    with as_os_errors(url):
        obstore.put(store, key, b"1", mode="create", use_multipart=False)
        try:
            obstore.put(store, key, b"2", mode="create", use_multipart=False)
        except AlreadyExistsError:
            return True
        finally:
            obstore.delete(store, key)
    return False


def is_directory(url: str) -> bool:
    """Whether a directory is there; in an object store, whether any object lies below it.

    False where that cannot be seen: on a web server, and where the store refuses to list.
    """
    path = local_path(url)
    if path is not None:
        return path.is_dir()
    if scheme(url) in ("http", "https"):
        return False
    try:
        with as_os_errors(url):
            return bool(filesystem(url).info(_listing_root(url))["type"] == "directory")
    except (FileNotFoundError, PermissionError):
        return False


def directories(url: str) -> list[str]:
    """What a URL names, or the directory in which its glob begins, and the directories above it, innermost first."""
    path = local_path(url)
    root = url if path is None else str(path.absolute())
    head = found.group() if (found := _SCHEME.match(root)) else ""
    glob = _GLOB.search(root)
    place = PurePosixPath((root[: glob.start()].rpartition("/")[0] if glob else root)[len(head) :])
    return [f"{head}{above}" for above in (place, *place.parents) if str(above) != "."]


def modified_s(url: str) -> float:
    """When the file was last written, in seconds since 1970. FileNotFoundError where there is none."""
    path = local_path(url)
    if path is not None:
        return path.stat().st_mtime
    with as_os_errors(url):
        return float(filesystem(url).modified(canonical(url)).timestamp())


def list_files(url: str, suffix: str = ".parquet", *, hidden: bool = False) -> list[FileEntry]:
    """The files that a path, a directory (recursively) or a glob names, sorted by name; empty where nothing matches.

    Names that begin with `_` or `.` are left out, as Spark and Hive do, unless `hidden`. In a directory, also in one
    that a glob names, only names that end with `suffix` count; other files that a glob matches, and a single file, are taken
    as given.
    """
    fs, root = filesystem(url), _listing_root(url)
    glob = _GLOB.search(root)
    if glob:
        base = root[: glob.start()].rpartition("/")[0]
        found = _matches(url, lambda: _with_directories(fs, fs.glob(root, detail=True), suffix))
    elif (entry := _single(fs, url, root)) is not None:
        return [_entry(url, root, entry, posixpath.dirname(root))]
    else:
        base, found = root, _matches(url, lambda: _below(fs, root, suffix))
    entries = (_entry(url, path, entry, base) for path, entry in found.items())
    return sorted((entry for entry in entries if hidden or not _is_hidden(entry.name)), key=lambda entry: entry.name)


def _listing_root(url: str) -> str:
    """What to list, as the file system's own listings name it: object stores leave the scheme out."""
    path = local_path(url)
    if path is not None:
        return str(path.absolute())
    return _SCHEME.sub("", url) if scheme(url) in _OBSTORE else url


def _below(fs: fsspec.AbstractFileSystem, directory: str, suffix: str) -> dict[str, dict[str, Any]]:
    found = fs.find(directory, detail=True).items()
    return {path: entry for path, entry in found if entry["type"] == "file" and path.endswith(suffix)}


def _with_directories(
    fs: fsspec.AbstractFileSystem, matched: dict[str, dict[str, Any]], suffix: str
) -> dict[str, dict[str, Any]]:
    """What a glob matched, each directory replaced by the files below it."""
    found = {path: entry for path, entry in matched.items() if entry["type"] == "file"}
    for path in matched.keys() - found.keys():
        found |= _below(fs, path, suffix)
    return found


def _single(fs: fsspec.AbstractFileSystem, url: str, root: str) -> dict[str, Any] | None:
    """The listing's entry where the URL is one file."""
    if scheme(url) not in _OBSTORE:
        return cast(dict[str, Any], fs.info(root)) if fs.isfile(root) else None
    store, key = connect(url)
    try:
        with as_os_errors(url):
            return dict(obstore.head(store, key)) if key else None
    except FileNotFoundError:
        return None


def _matches(url: str, listing: Callable[[], dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """A listing; empty for a web server that can only serve files, which cannot be told from one that has none."""
    try:
        with as_os_errors(url):
            return listing()
    except FileNotFoundError:
        return {}
    except OSError:
        if scheme(url) in ("http", "https"):
            return {}
        raise


def _entry(url: str, path: str, entry: dict[str, Any], base: str) -> FileEntry:
    full = path if scheme(url) == "file" else _with_scheme(url, path)
    stem = base if scheme(url) == "file" else _with_scheme(url, base)
    version = next((entry[key] for key in _VERSION_KEYS if entry.get(key)), "")
    name = full.removeprefix(stem.rstrip("/")).lstrip("/")
    return FileEntry(url=full, name=name, size_bytes=int(entry["size"]), version=str(version))


def _with_scheme(url: str, path: str) -> str:
    if _SCHEME.match(path):
        return path
    head, rest = without_path(url)
    is_host = (
        scheme(url) not in _OBSTORE and head.partition("://")[2] and filesystem(url)._strip_protocol(url).rstrip("/") == rest
    )
    return f"{head}/{path.lstrip('/')}" if is_host else f"{scheme(url)}://{path.lstrip('/')}"


def without_path(url: str) -> tuple[str, str]:
    """Scheme, user, host and port of a remote URL, and its path without a slash at the end."""
    head = re.match(r"[^:/]+://[^/]*", url)
    assert head is not None
    return head.group(), url[head.end() :].rstrip("/")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) and "=" not in part for part in name.split("/"))


def fetch(url: str, target: IO[bytes]) -> int:
    """Reads the file front to back in large blocks into `target`; returns the bytes written.

    From an object store it is one request, which the client takes up again where a connection breaks.
    """
    if scheme(url) in _OBSTORE:
        store, key = connect(url)
        with as_os_errors(url):
            return sum(target.write(memoryview(block)) for block in obstore.get(store, key).stream(min_chunk_size=_BLOCK_BYTES))
    with open_read(url) as source:
        return sum(target.write(block) for block in iter(lambda: source.read(_BLOCK_BYTES), b""))
