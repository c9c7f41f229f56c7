"""Files by URL, local or remote: the only use of fsspec and obstore.

A URL without a scheme is a local path. HTTP, S3, GCS and Azure go through obstore behind the fsspec interface, everything
else through fsspec itself. fsspec is transport only: nothing here caches.
"""

import contextlib
import os
import posixpath
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import fsspec
from obstore.fsspec import FsspecStore

_OBSTORE = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "azure"})
_ALIASES = {"s3a": "s3", "gcs": "gs", "azure": "az"}
_BLOCK_BYTES = 8 << 20
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a listing: `url` opens it, `name` is its path below what was listed."""

    url: str
    name: str
    size_bytes: int


def scheme(url: str) -> str:
    """The URL's scheme in lower case, `file` for a plain path."""
    found = _SCHEME.match(url)
    return found.group(1).lower() if found else "file"


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
    bare = re.sub(r"[?#].*$", "", url) if scheme(url) != "file" else url
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+://)[^/@]*@", r"\1", bare)


def filesystem(url: str) -> fsspec.AbstractFileSystem:
    """The fsspec file system for a URL's scheme; credentials come from the environment, as each store defines them."""
    name = scheme(url)
    if name in _OBSTORE:
        options: dict[str, Any] = {"client_options": {"allow_http": True}}
        return cast(fsspec.AbstractFileSystem, FsspecStore(_ALIASES.get(name, name), **options))
    return fsspec.filesystem(name)


def open_read(url: str) -> BinaryIO:
    """A seekable binary reader; the caller closes it. FileNotFoundError where there is none."""
    path = local_path(url)
    if path is not None:
        return path.open("rb")
    return cast(BinaryIO, filesystem(url).open(url, "rb"))


@contextlib.contextmanager
def open_write(url: str) -> Iterator[IO[bytes]]:
    """A binary writer whose file appears under `url` whole, at the end of the block, or not at all.

    Local files are written under a hidden name, synced and renamed; remote stores publish an object when it is closed.
    """
    path = local_path(url)
    if path is None:
        with _discard_on_error(filesystem(url).open(url, "wb")) as file:
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
    return path.stat().st_size if path is not None else int(filesystem(url).info(url)["size"])


def delete(url: str) -> None:
    """Removes one file; a file that is already gone is no error."""
    path = local_path(url)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        filesystem(url).rm_file(url)


def list_files(url: str, suffix: str = ".parquet") -> list[FileEntry]:
    """The files that a path, a directory (recursively) or a glob names, sorted by name.

    Below a directory, names that begin with `_` or `.` are left out, as Spark and Hive do. A glob, or a single file, is
    taken as given. Empty where nothing matches.
    """
    fs = filesystem(url)
    root = str(local_path(url) or url)
    if _GLOB.search(root):
        base = root[: _GLOB.search(root).start()].rpartition("/")[0]  # type: ignore[union-attr]
        found = fs.glob(root, detail=True)
    elif fs.isfile(root):
        base, found = posixpath.dirname(root), {root: fs.info(root)}
    else:
        base, found = root, fs.find(root, detail=True) if fs.isdir(root) else {}
    stem = fs._strip_protocol(base).rstrip("/")
    entries = (_entry(url, path, entry, stem) for path, entry in found.items() if entry["type"] == "file")
    whole = not _GLOB.search(root) and root != base
    kept = [e for e in entries if whole or (e.name.endswith(suffix) and not _is_hidden(e.name))]
    return sorted(kept, key=lambda entry: entry.name)


def _entry(url: str, path: str, entry: dict[str, Any], stem: str) -> FileEntry:
    name = path.removeprefix(stem).lstrip("/")
    full = path if scheme(url) == "file" else _with_scheme(url, path)
    return FileEntry(url=full, name=name, size_bytes=int(entry["size"]))


def _with_scheme(url: str, path: str) -> str:
    return path if _SCHEME.match(path) else f"{scheme(url)}://{path.lstrip('/')}"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) and "=" not in part for part in name.split("/"))


def fetch(url: str, target: IO[bytes]) -> int:
    """Reads the file front to back in large blocks into `target`; returns the bytes written."""
    written = 0
    with open_read(url) as source:
        while block := source.read(_BLOCK_BYTES):
            target.write(block)
            written += len(block)
    return written
