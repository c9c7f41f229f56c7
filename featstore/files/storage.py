"""Opening, writing, linking and deleting files by URL, local or remote.

A URL without a scheme is a local path. HTTP, S3, GCS and Azure are accessed with obstore, in part
behind the fsspec interface, everything else with fsspec. Nothing is cached here.
"""

import contextlib
import errno
import functools
import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast
from urllib.parse import urlsplit

from featstore.base.closing import cleaned_up_on_failure
from featstore.base.errors import ConfigError, StagingError, UnsafeStoreError
from featstore.base.libraries import LazyModule
from featstore.base.processes import first_user
from featstore.base.redaction import LINKS, redact, redact_text, secrets_of
from featstore.files.credentials import own_hosts_only, require_credentials
from featstore.files.hadoop import HADOOP_SCHEMES, RPC_SCHEMES, hadoop_filesystem
from featstore.files.looks import looking
from featstore.files.random_reader import RandomReader
from featstore.files.retry import BRIEF, RetryPolicy, current_policy
from featstore.files.store_errors import as_store_errors, as_write_errors, is_lasting

# Files on local disk are read without them.
if TYPE_CHECKING:
    import fsspec
    import obstore
    import obstore.exceptions as obstore_errors
    import obstore.store as obstore_store
else:
    fsspec = LazyModule("fsspec")
    obstore = LazyModule("obstore")
    obstore_errors = LazyModule("obstore.exceptions")
    obstore_store = LazyModule("obstore.store")
object_files: Any = LazyModule("featstore.files.object_files")  # which imports this module

_OBSTORE = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "azure"})
_ALIASES = {"s3a": "s3", "gcs": "gs", "azure": "az"}
_CLIENT_OPTIONS = {
    "allow_http": True,
    "connect_timeout": "10s",
    "read_timeout": "60s",  # between two reads of a response
    "timeout": "1day",  # of a whole request, which streams a file of any size
}
# Of a sequential read: large enough that the cost per call does not count.
_BLOCK_BYTES = 8 << 20
# Pages of Parquet have tens of kilobytes: the kernel takes as many together in 0.7 of the time.
_WRITTEN_BYTES = 1 << 18
_PROBE = "_featstore"  # an object that is asked for and need not exist
_NUM_TRIES = 3  # of making a directory and a file in it, while another run removes empty ones
# The size of a reader's requests when it reads a remote file in place. Larger ones fetch more bytes
# that are not used, smaller ones take more round trips.
BUFFER_BYTES = 1 << 20
LOCAL_BUFFER_BYTES = 1 << 16  # of a local file, where a read costs microseconds
_NO_LINKS = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
# Keys under which fsspec's file systems and obstore report a file's version, the preferred first:
# the modification time, which `FileEntry.is_same` compares in ns, then ETags, then other times.
_VERSION_KEYS = (
    *("mtime", "e_tag", "ETag", "etag"),
    *("last_modified", "LastModified", "modified", "created"),
)
FileSystem: TypeAlias = "fsspec.AbstractFileSystem"
# The prefix with `::` matches the links of an fsspec chain, such as `simplecache::https://host/x`.
# Before the path of a local URL: `file:/a`, which Java writes, is `file:///a`.
_LOCAL = re.compile(r"^file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)
SCHEME = re.compile(r"^((?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+)://")


def scheme(url: str) -> str:
    """The URL's scheme in lower case; `file` for a plain path."""
    match = SCHEME.match(url)
    return match.group(1).lower() if match else "file"


def has_object_store(url: str) -> bool:
    """Whether obstore reads the URL, rather than fsspec."""
    return scheme(url) in _OBSTORE


def local_path(url: str) -> Path | None:
    """The local path of a URL or path; None if it is remote."""
    if scheme(url) != "file":
        return None
    return Path(_LOCAL.sub("", url)).expanduser()


def absolute(url: str) -> str:
    """The URL, or for a local one its absolute path."""
    path = local_path(url)
    return url if path is None else str(path.absolute())


def lies_within(url: str, directory: str) -> bool:
    """Whether a URL is a directory or below it."""
    inner, outer = (f"{absolute(each).rstrip('/')}/" for each in (url, directory))
    return inner.startswith(outer)


def spark_url(url: str) -> str:
    """The URL in the form that Spark and Hive expect: a path without a scheme is local."""
    path = local_path(url)
    return url if path is None else f"file://{path.absolute()}"


def join(base: str, *parts: str) -> str:
    """`base` extended by relative parts, with single slashes."""
    return "/".join([base.rstrip("/"), *(part.strip("/") for part in parts if part)])


def version_of(info: Mapping[str, Any]) -> Any:
    """The version of a file from what its file system reports: a time or an ETag, or the empty
    string if it reports neither.
    """
    return next((info[key] for key in _VERSION_KEYS if info.get(key)), "")


# What `looking_by` has set, for all threads of the process.
_files_of_session: list[FileSystem] = []


@contextlib.contextmanager
def looking_by(files: FileSystem) -> Iterator[None]:
    """Has files of Hadoop, and of stores that no client here knows, looked at and read by another
    file system in the block, in all threads: that of an engine which reads them anyway. What the
    engine reads is then never refused for want of a client or its configuration.
    """
    _files_of_session.append(files)
    try:
        yield
    finally:
        _files_of_session.remove(files)


def filesystem(url: str) -> FileSystem:
    """The fsspec file system for a URL. Credentials come from the environment, in the variables of
    each store.

    Raises:
        ConfigError: There is no file system for the scheme.
        AccessError: There are no credentials.
        StoreError: The store cannot be reached.
    """
    name = scheme(url)
    if name not in _OBSTORE:
        return _foreign_filesystem(url)
    _require_unforked(url)
    require_credentials(url, name, os.environ)
    return object_files.ObjectFiles(_ALIASES.get(name, name))


def _foreign_filesystem(url: str) -> FileSystem:
    """A file system of fsspec itself, for the URL's user, host and port if it has them."""
    if LINKS.search(url):
        expected = "expected the URL of the file itself"
        raise ConfigError(f"{redact(url)}: a chain of file systems cannot be read; {expected}")
    if _files_of_session and scheme(url) in HADOOP_SCHEMES:
        return _files_of_session[-1]
    if scheme(url) in RPC_SCHEMES:
        _require_unforked(url, "hdfs-native")
    with as_store_errors(url):
        try:
            if scheme(url) in HADOOP_SCHEMES:
                return hadoop_filesystem(url, os.environ)
            return cast("FileSystem", fsspec.core.url_to_fs(url)[0])
        except ConfigError:
            raise
        except (ValueError, ImportError) as error:
            if _files_of_session:
                return _files_of_session[-1]
            reason = redact_text(" ".join(str(error).split()), secrets_of(url))
            raise ConfigError(
                f"{redact(url)}: no file system for {scheme(url)}:// ({reason}); expected a URL of "
                f"a scheme that fsspec knows, and the package that it needs"
            ) from None


def _options(protocol: str, policy: RetryPolicy) -> dict[str, Any]:
    return {
        "client_options": _CLIENT_OPTIONS | own_hosts_only(protocol, os.environ),
        "retry_config": {
            "max_retries": policy.max_retries,
            "retry_timeout": timedelta(seconds=policy.retry_s),
            "backoff": {
                "init_backoff": timedelta(seconds=policy.first_pause_s),
                "max_backoff": timedelta(seconds=policy.longest_pause_s),
                "base": 2,
            },
        },
    }


def _require_unforked(url: str, library: str = "obstore") -> None:
    """StagingError in a forked child of a process that has used the remote client: the client's
    threads do not survive the fork, and it would wait for them for ever.
    """
    if not first_user(library).is_this():
        raise StagingError(
            f"{redact(url)} cannot be read in this process: it was forked from one that had "
            "already used a remote store, whose client does not survive a fork; start worker "
            "processes by 'spawn' or 'forkserver' (DataLoader: multiprocessing_context='spawn')"
        )


def connect(url: str) -> "tuple[obstore_store.ObjectStore, str]":
    """The object store of a URL, and the key in it.

    Clients are cached, each with the policy by which it retries, and may be shared by threads.

    Raises:
        ConfigError: An HTTP URL has a query.
        AccessError: There are no credentials.
        StoreError: The store's name does not resolve, which is tried by a brief policy only.
        StagingError: This process was forked from one that had used the client.
    """
    _require_unforked(url)
    require_credentials(url, scheme(url), os.environ)
    with as_store_errors(url):
        known = canonical(url)
        if scheme(known) in ("http", "https"):
            parts = urlsplit(known)
            if parts.query:
                expected = "expected one that ends with the file's path"
                raise ConfigError(f"{redact(url)}: a URL with a query cannot be read; {expected}")
            known = parts._replace(fragment="").geturl()
        # Keys of an object store may hold ? and #.
        host, _, key = SCHEME.sub("", known).partition("/")
        root = f"{scheme(known)}://{host}/"
        return _store(root, current_policy()), key.lstrip("/")


@functools.lru_cache(maxsize=16)
def _store(root: str, policy: RetryPolicy) -> "obstore_store.ObjectStore":
    if policy.max_attempts is None:
        _check_reachable(root, replace(policy, max_attempts=BRIEF.max_attempts))
    return obstore_store.from_url(root, **_options(scheme(root), policy))


def _check_reachable(root: str, policy: RetryPolicy) -> None:
    """Raises what the client would repeat for as long as it may, although it does not pass."""
    try:
        obstore.head(_store(root, policy), _PROBE)
    except Exception as error:  # another library's boundary
        if is_lasting(root, error):
            raise


def canonical(url: str) -> str:
    """The URL with the name of its scheme that all clients know: `gs://` for `gcs://`."""
    name = scheme(url)
    return _ALIASES.get(name, name) + url[len(name) :] if name in _ALIASES else url


class _RemoteFile(RandomReader):
    """An unbuffered reader of an object: each read is a range request."""

    def __init__(self, url: str, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._url, (self._store, self._key) = url, connect(url)

    def fetch(self, first: int, num_bytes: int) -> Any:
        with as_store_errors(self._url):
            return obstore.get_range(self._store, self._key, start=first, length=num_bytes)


class _LocalFile(io.FileIO):
    """An unbuffered reader whose errors name the file: the system names none of an open one."""

    def readinto(self, buffer: Any, /) -> int | None:
        with looking(str(self.name)):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with looking(str(self.name)):
            return super().readall()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        with looking(str(self.name)):
            return super().seek(offset, whence)


class _StoreFile(io.RawIOBase):
    """Wraps a file of a client, which buffers, and translates its errors."""

    def __init__(self, url: str, mode: str) -> None:
        self._url, self._mode, self._num_written = url, mode, 0
        self._file: Any = None  # for `close`, which is also called if the client raises
        with as_store_errors(url):
            # obstore's writer publishes when it is closed, and not when it is garbage-collected.
            if mode == "wb" and scheme(url) in _OBSTORE:
                self._file = obstore.open_writer(*connect(url))
            else:
                self._file = filesystem(url).open(canonical(url), mode)

    def readable(self) -> bool:
        return self._mode == "rb"

    def writable(self) -> bool:
        return self._mode == "wb"

    def seekable(self) -> bool:
        return self._mode == "rb"

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with as_store_errors(self._url):
            self._file.seek(offset, whence)  # that of paramiko returns nothing
            return int(self._file.tell())

    def tell(self) -> int:
        return self._num_written if self._mode == "wb" else int(self._file.tell())

    def readall(self) -> bytes:
        """The rest of the file, by one call: the inherited method makes one for each 8 KiB."""
        with as_store_errors(self._url):
            return bytes(self._file.read(-1))

    def readinto(self, buffer: Any) -> int:
        with as_store_errors(self._url):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        num_bytes = memoryview(data).nbytes
        with as_store_errors(self._url):
            self._file.write(data)
        self._num_written += num_bytes
        return num_bytes

    def close(self) -> None:
        """Publishes the written file. A second call does nothing."""
        if self.closed:
            return
        super().close()
        if self._file is not None:
            with as_store_errors(self._url):
                self._file.close()

    def discard(self) -> None:
        """Closes the file without publishing it, if the client is able to."""
        super().close()
        with contextlib.suppress(AttributeError):  # not all clients have it
            self._file.discard()
        # fsspec's buffered files otherwise close, and so publish, when they are garbage-collected.
        if isinstance(self._file, fsspec.spec.AbstractBufferedFile):
            self._file.closed = True


def open_read(url: str, listed_bytes: int | None = None) -> BinaryIO:
    """Opens a seekable binary reader. The caller closes it.

    Args:
        url: The file.
        listed_bytes: The size, if the caller knows it from a listing, which saves a request to an
            object store.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: The store cannot be reached or refuses.
    """
    path = local_path(url)
    if path is not None:
        with looking(path):
            return cast(BinaryIO, io.BufferedReader(_LocalFile(path), LOCAL_BUFFER_BYTES))
    if scheme(url) in _OBSTORE:
        file = _RemoteFile(url, size_bytes(url) if listed_bytes is None else listed_bytes)
        return cast(BinaryIO, io.BufferedReader(file, BUFFER_BYTES))
    return cast(BinaryIO, io.BufferedReader(_StoreFile(url, "rb"), BUFFER_BYTES))


def source_of(url: str) -> Path | Callable[[], BinaryIO]:
    """What opens a file in place: the local path, or for a remote file a function."""
    return local_path(url) or partial(open_read, url)


@contextlib.contextmanager
def open_write(url: str) -> Iterator[IO[bytes]]:
    """Opens a binary writer. The file appears whole at the end of the block, or not at all if the
    block raises.

    Local files are written under a hidden name, synced and renamed. Remote stores publish an object
    when it is closed.

    Raises:
        DiskFullError: The disk, or the quota on it, is full.
        StoreError: The store cannot be reached or refuses.
    """
    path = local_path(url)
    if path is None:
        remote = _StoreFile(url, "wb")
        with cleaned_up_on_failure(remote.discard):
            yield cast(IO[bytes], remote)
        remote.close()
        return
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    with as_write_errors(url):
        try:
            with _created(partial) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _created(path: Path) -> IO[bytes]:
    """A new file, with its directories. Another run that removes empty directories
    (`remove_empty_directories`, `remove_if_empty`) may take one away before the file is in it.
    """
    for _ in range(_NUM_TRIES):
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("wb", buffering=_WRITTEN_BYTES)
    return path.open("wb", buffering=_WRITTEN_BYTES)


def remove_empty_directories(root: Path) -> None:
    """Removes a local directory and those in it, if there is no file in any of them."""
    # Someone else may have put a file there, or have removed it.
    with contextlib.suppress(OSError):
        if not _has_files(root):
            _remove_empty_in(root, hidden=True)
            root.rmdir()


def _has_files(directory: Path) -> bool:
    """Whether there is anything else than directories in a directory or below it."""
    with os.scandir(directory) as entries:
        return any(
            not entry.is_dir(follow_symlinks=False) or _has_files(Path(entry.path))
            for entry in entries
        )


def remove_if_empty(root_url: str, below: str) -> None:
    """Removes a directory below a local root, with those in it and those between it and the root,
    each only if it is empty. The root stays, and so do directories whose names begin with `_`,
    other than `below`.

    Args:
        root_url: The root. Nothing is done if it is not local.
        below: The path of the directory in it; "" for the root itself.
    """
    root = local_path(root_url)
    if root is None:
        return
    start = root / below
    # Removing a directory that is not empty fails, so a file that someone else has just put there
    # is safe; who has only made the directory makes it again (`_created`).
    with contextlib.suppress(OSError):
        _remove_empty_in(start, hidden=False)
        while start != root:
            start.rmdir()
            start = start.parent


def _remove_empty_in(directory: Path, *, hidden: bool) -> None:
    with os.scandir(directory) as entries:
        below = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    for entry in below:
        if hidden or not entry.name.startswith("_"):
            with contextlib.suppress(OSError):
                _remove_empty_in(Path(entry.path), hidden=hidden)
                os.rmdir(entry.path)  # noqa: PTH106  no second path


def size_bytes(url: str) -> int:
    """The file's size. FileNotFoundError if there is no such file."""
    path = local_path(url)
    if path is not None:
        with looking(path):
            return path.stat().st_size
    if scheme(url) not in _OBSTORE:
        with as_store_errors(url):
            return int(filesystem(url).info(url)["size"])
    return int(head(url)["size"])


def head(url: str) -> dict[str, Any]:
    """The metadata of an object in an object store. FileNotFoundError if there is none."""
    store, key = connect(url)
    with as_store_errors(url):
        if not key:
            raise FileNotFoundError
        return dict(obstore.head(store, key))


def delete(url: str) -> None:
    """Deletes a file. It is no error if the file does not exist."""
    path = local_path(url)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError), as_store_errors(url):
        filesystem(url).rm_file(canonical(url))


def link(source: str, target: str) -> None:
    """Gives a file a second name on the same storage. The name appears whole or not at all.

    Locally this is a hard link (a copy if the file system has no links), in an object store one
    server-side copy, elsewhere a copy through this machine.

    Args:
        source: The file, which must never change.
        target: The second name. If a file of this name exists, it is kept.
    """
    target_path = local_path(target)
    if target_path is not None:
        _link_local(Path(str(local_path(source))), target_path)
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
    with as_write_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with as_write_errors(str(target)):
            target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with source.open("rb") as reader, open_write(str(target)) as writer:
            shutil.copyfileobj(reader, writer, _BLOCK_BYTES)


def put_new(url: str, data: bytes) -> bool:
    """Creates a file on one of Hadoop's file systems unless its name is taken.

    The file is written under a hidden name and renamed in one step, which there never replaces a
    file: of any number of callers with one name, exactly one succeeds.

    Args:
        url: The file.
        data: Its content, which no other caller has.

    Returns:
        Whether the file is this one. False if another one has the name.

    Raises:
        StoreError: The store failed. The file may exist.
    """
    assert scheme(url) in HADOOP_SCHEMES, url
    directory, _, name = url.rpartition("/")
    partial = join(directory, f".{name}.{uuid.uuid4().hex[:8]}.partial")
    with open_write(partial) as file:
        file.write(data)
    fs = filesystem(url)
    try:
        with as_store_errors(url):
            fs.mv(partial, url)
    except OSError:
        # The rename may have been made although its reply was lost, or may be made yet. It cannot
        # once its source is gone, and then the content shows whose file it is.
        delete(partial)
        with contextlib.suppress(FileNotFoundError), open_read(url) as existing:
            return existing.read() == data
        raise
    return True


def has_put_if_absent(directory: str) -> bool:
    """Whether the store honours "put if absent", tried with a tiny object below `directory`.

    Outside of object stores the answer is True, without a trial: see `put_new`.

    Raises:
        OSError: The store cannot be written to.
    """
    if scheme(directory) not in _OBSTORE:
        return True
    url = join(directory, f"_probe-{uuid.uuid4().hex}")
    store, key = connect(url)
    with as_store_errors(url):
        obstore.put(store, key, b"1", mode="create", use_multipart=False)
        try:
            obstore.put(store, key, b"2", mode="create", use_multipart=False)
        except obstore_errors.AlreadyExistsError:
            return True
        finally:
            obstore.delete(store, key)
    return False


@functools.cache
def check_store(url: str) -> None:
    """Checks, by writing a small object, that two writers cannot commit the same version.

    The result is cached per process and table. A failure is not cached.

    Raises:
        UnsafeStoreError: The store overwrites an existing object despite `If-None-Match: *`.
        OSError: The store cannot be written to.
    """
    # With a lock table delta-rs does not rely on conditional writes.
    if "AWS_S3_LOCKING_PROVIDER" in os.environ or has_put_if_absent(url):
        return
    raise UnsafeStoreError(
        f"{redact(url)}: the store overwrites an existing object although the request forbids it "
        f"(PUT with If-None-Match: *), so that one of two writers would lose its commit silently; "
        f"expected a store with conditional writes. Nothing was committed: keep the table "
        f"elsewhere, or set AWS_S3_LOCKING_PROVIDER=dynamodb if delta-rs has a lock table"
    )


def modified_s(url: str) -> float:
    """The file's modification time, in seconds since the epoch. FileNotFoundError if there is no
    such file.
    """
    path = local_path(url)
    if path is not None:
        with looking(path):
            return path.stat().st_mtime
    with as_store_errors(url):
        return float(filesystem(url).modified(canonical(url)).timestamp())


def fetch(url: str, target: IO[bytes]) -> int:
    """Copies a file into `target`, sequentially and in large blocks.

    From an object store this is one request, which the client resumes if the connection breaks.

    Returns:
        The number of bytes written.
    """
    if scheme(url) in _OBSTORE:
        return sum(target.write(memoryview(block)) for block in _blocks(url))
    with open_read(url) as source:
        return sum(target.write(block) for block in iter(lambda: source.read(_BLOCK_BYTES), b""))


def _blocks(url: str) -> "Iterator[obstore.Bytes]":
    """A generator, so that only errors of the store are translated, not those of the consumer."""
    store, key = connect(url)
    with as_store_errors(url):
        yield from obstore.get(store, key).stream(min_chunk_size=_BLOCK_BYTES)
