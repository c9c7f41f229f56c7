"""Files by URL, local or remote: opened, written, linked, deleted. Only this package uses fsspec
and obstore.

A URL without a scheme is a local path. HTTP, S3, GCS and Azure go through obstore behind the fsspec
interface, everything else through fsspec itself. fsspec is transport only: nothing here caches.
"""

import contextlib
import errno
import functools
import io
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias, cast
from urllib.parse import urlsplit

import fsspec
import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.fsspec import FsspecStore
from obstore.store import ObjectStore, from_url

from featstore.errors import ConfigError, StagingError
from featstore.files.credentials import require_credentials
from featstore.files.redirects import kept_home
from featstore.files.store_errors import as_store_errors, naming_full_disks
from featstore.redaction import LINKS, redact, redact_text, secrets_of

_OBSTORE = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "azure"})
_ALIASES = {"s3a": "s3", "gcs": "gs", "azure": "az"}
_CLIENT_OPTIONS = {
    "allow_http": True,
    "connect_timeout": "10s",
    "read_timeout": "60s",
    "timeout": "1day",
}
_RETRIES = 4
_BLOCK_BYTES = 8 << 20
# What a reader in place asks a store for at a time.
BUFFER_BYTES = 1 << 20
_NO_LINKS = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
FileSystem: TypeAlias = fsspec.AbstractFileSystem
# With `::`, the links of an fsspec chain before it, such as `simplecache::https://host/x`.
SCHEME = re.compile(r"^((?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+)://")


def scheme(url: str) -> str:
    """The URL's scheme in lower case, `file` for a plain path."""
    found = SCHEME.match(url)
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


def filesystem(url: str) -> FileSystem:
    """The fsspec file system for a URL's scheme; credentials come from the environment, as each
    store defines them.

    ConfigError where there is none, StoreError where the store cannot be reached.
    """
    name = scheme(url)
    if name not in _OBSTORE:
        return _foreign_filesystem(url)
    _require_unforked(url)
    require_credentials(url, name, os.environ)
    protocol: Any = _ALIASES.get(name, name)
    with as_store_errors(url):
        return cast(FileSystem, FsspecStore(protocol, **_options(protocol, _RETRIES)))


def _foreign_filesystem(url: str) -> FileSystem:
    """fsspec's own, with user, host and port, where the URL has them."""
    if LINKS.search(url):
        expected = "expected the URL of the file itself"
        raise ConfigError(f"{redact(url)}: a chain of file systems cannot be read; {expected}")
    with as_store_errors(url):
        try:
            return cast(FileSystem, fsspec.core.url_to_fs(url)[0])
        except (ValueError, ImportError) as error:
            reason = redact_text(" ".join(str(error).split()), secrets_of(url))
            raise ConfigError(
                f"{redact(url)}: no file system for {scheme(url)}:// ({reason}); expected a URL of "
                f"a scheme "
                f"that fsspec knows, and the package that it needs"
            ) from None


def _options(protocol: str, max_retries: int) -> dict[str, Any]:
    return {
        "client_options": _CLIENT_OPTIONS | kept_home(protocol, os.environ),
        "retry_config": {"max_retries": max_retries},
    }


_client_process: list[int] = []


def _require_unforked(url: str) -> None:
    """The remote client's threads do not live on in a forked child, where it would wait for them
    for ever.
    """
    if not _client_process:
        _client_process.append(os.getpid())
    if _client_process[0] != os.getpid():
        raise StagingError(
            f"{redact(url)} cannot be read in this process: it was forked from one that had "
            f"already used a remote store, whose "
            "client does not survive a fork; start worker processes by 'spawn' or 'forkserver' "
            "(DataLoader: multiprocessing_context='spawn')"
        )


def connect(url: str, max_retries: int = _RETRIES) -> tuple[ObjectStore, str]:
    """The object store and the key in it that a URL names. The client itself repeats what failed up
    to `max_retries` times.
    """
    _require_unforked(url)
    require_credentials(url, scheme(url), os.environ)
    with as_store_errors(url):
        parts = urlsplit(canonical(url))
        if parts.query and parts.scheme in ("http", "https"):
            expected = "expected one that ends with the file's path"
            raise ConfigError(f"{redact(url)}: a URL with a query cannot be read; {expected}")
        return _store(f"{parts.scheme}://{parts.netloc}/", max_retries), parts.path.lstrip("/")


@functools.lru_cache(maxsize=16)
def _store(root: str, max_retries: int) -> ObjectStore:
    return from_url(root, **_options(scheme(root), max_retries))


def canonical(url: str) -> str:
    """The URL under the one of its scheme's names that all clients know: `gs://` for `gcs://`."""
    name = scheme(url)
    return _ALIASES.get(name, name) + url[len(name) :] if name in _ALIASES else url


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
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[
            whence
        ]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size_bytes - self._position)
        if length <= 0:
            return 0
        with as_store_errors(self._url):
            found = obstore.get_range(self._store, self._key, start=self._position, length=length)
        buffer[: len(found)] = memoryview(found)
        self._position += len(found)
        return len(found)


class _StoreFile(io.RawIOBase):
    """A file of a client, which has its buffer; errors are featstore's."""

    def __init__(self, url: str, mode: str) -> None:
        self._url, self._mode, self._num_written = url, mode, 0
        with as_store_errors(url):
            self._file: Any = _client_file(url, mode)

    def readable(self) -> bool:
        return self._mode == "rb"

    def writable(self) -> bool:
        return self._mode == "wb"

    def seekable(self) -> bool:
        return self._mode == "rb"

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with as_store_errors(self._url):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return self._num_written if self._mode == "wb" else int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        with as_store_errors(self._url):
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def write(self, data: Any) -> int:
        num_bytes = memoryview(data).nbytes
        with as_store_errors(self._url):
            self._file.write(data)
        self._num_written += num_bytes
        return num_bytes

    def close(self) -> None:
        """Publishes what was written; a second call does nothing."""
        if self.closed:
            return
        super().close()
        with as_store_errors(self._url):
            self._file.close()

    def discard(self) -> None:
        """Closes the file; what was written is not published, where the client can take it back."""
        super().close()
        with contextlib.suppress(AttributeError):  # a client that cannot
            self._file.discard()
        if isinstance(self._file, fsspec.spec.AbstractBufferedFile):
            self._file.closed = True  # else it is closed, and so published, when it is forgotten


def _client_file(url: str, mode: str) -> Any:
    if mode == "wb" and scheme(url) in _OBSTORE:
        return obstore.open_writer(*connect(url))  # published when closed, and not when forgotten
    return filesystem(url).open(canonical(url), mode)


def open_read(url: str, listed_bytes: int | None = None) -> BinaryIO:
    """A seekable binary reader; the caller closes it. FileNotFoundError where there is none.

    `listed_bytes` is the size that the caller knows from a listing: an object store is then not
    asked for it.
    """
    path = local_path(url)
    if path is not None:
        return path.open("rb")
    if scheme(url) in _OBSTORE:
        file = _RemoteFile(url, size_bytes(url) if listed_bytes is None else listed_bytes)
        return cast(BinaryIO, io.BufferedReader(file, BUFFER_BYTES))
    return cast(BinaryIO, io.BufferedReader(_StoreFile(url, "rb"), BUFFER_BYTES))


@contextlib.contextmanager
def open_write(url: str) -> Iterator[IO[bytes]]:
    """A binary writer whose file appears under `url` whole, at the end of the block, or not at all.

    Local files are written under a hidden name, synced and renamed; remote stores publish an object
    when it is closed. DiskFullError where the disk is full.
    """
    path = local_path(url)
    if path is None:
        with _discard_on_error(_StoreFile(url, "wb")) as remote:
            yield cast(IO[bytes], remote)
        return
    with naming_full_disks(url), _renamed_when_whole(path) as file:
        yield file


@contextlib.contextmanager
def _renamed_when_whole(path: Path) -> Iterator[IO[bytes]]:
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
def _discard_on_error(file: _StoreFile) -> Iterator[_StoreFile]:
    try:
        yield file
    except BaseException:
        file.discard()
        raise
    else:
        file.close()


def size_bytes(url: str) -> int:
    """The file's size. FileNotFoundError where there is none."""
    path = local_path(url)
    if path is not None:
        return path.stat().st_size
    if scheme(url) not in _OBSTORE:
        with as_store_errors(url):
            return int(filesystem(url).info(url)["size"])
    return int(head(url)["size"])


def head(url: str) -> dict[str, Any]:
    """What an object store says of one object. FileNotFoundError where there is none."""
    store, key = connect(url)
    with as_store_errors(url):
        if not key:
            raise FileNotFoundError
        return dict(obstore.head(store, key))


def delete(url: str) -> None:
    """Removes one file; a file that is already gone is no error."""
    path = local_path(url)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError), as_store_errors(url):
        filesystem(url).rm_file(canonical(url))


def link(source: str, target: str) -> None:
    """The file `source`, which is never changed, under a second name on the same storage; a name
    that is taken is kept.

    Locally a hard link (a copy where the file system has none), in an object store one server-side
    copy, elsewhere a copy through this machine. The name appears whole or not at all.
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
        with as_store_errors(source):
            obstore.copy(store, connect(source)[1], key)
        return
    with open_read(source) as reader, open_write(target) as writer:
        shutil.copyfileobj(reader, writer, _BLOCK_BYTES)


def _link_local(source: Path, target: Path) -> None:
    with naming_full_disks(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with naming_full_disks(str(target)):
            target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with source.open("rb") as reader, open_write(str(target)) as writer:
            shutil.copyfileobj(reader, writer, _BLOCK_BYTES)


def has_put_if_absent(directory: str) -> bool:
    """Whether the store refuses to write a name that is taken, tried with a tiny object below
    `directory`.

    True without a trial outside of object stores. OSError where the store cannot be written at all.
    """
    if scheme(directory) not in _OBSTORE:
        return True
    url = join(directory, f"_probe-{uuid.uuid4().hex}")
    store, key = connect(url)
    with as_store_errors(url):
        obstore.put(store, key, b"1", mode="create", use_multipart=False)
        try:
            obstore.put(store, key, b"2", mode="create", use_multipart=False)
        except AlreadyExistsError:
            return True
        finally:
            obstore.delete(store, key)
    return False


def modified_s(url: str) -> float:
    """When the file was last written, in seconds since 1970. FileNotFoundError where there is
    none.
    """
    path = local_path(url)
    if path is not None:
        return path.stat().st_mtime
    with as_store_errors(url):
        return float(filesystem(url).modified(canonical(url)).timestamp())


def fetch(url: str, target: IO[bytes]) -> int:
    """Reads the file front to back in large blocks into `target`; returns the bytes written.

    From an object store it is one request, which the client takes up again where a connection
    breaks.
    """
    if scheme(url) in _OBSTORE:
        return sum(target.write(memoryview(block)) for block in _blocks(url))
    with open_read(url) as source:
        return sum(target.write(block) for block in iter(lambda: source.read(_BLOCK_BYTES), b""))


def _blocks(url: str) -> Iterator[obstore.Bytes]:
    """Errors of who takes the blocks are not the store's, and do not come through here."""
    store, key = connect(url)
    with as_store_errors(url):
        yield from obstore.get(store, key).stream(min_chunk_size=_BLOCK_BYTES)
