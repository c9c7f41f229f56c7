"""What a path, a directory or a glob names, on any storage: files with their sizes and versions."""

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, cast

from featstore.errors import InputError
from featstore.files.storage import (
    SCHEME,
    FileSystem,
    filesystem,
    has_object_store,
    head,
    local_path,
    scheme,
)
from featstore.files.store_errors import as_store_errors
from featstore.redaction import redact

_VERSION_KEYS = ("mtime", "e_tag", "ETag", "etag", "last_modified", "LastModified", "created")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a listing: `url` opens it, `name` is its path below what was listed.

    `version` changes when the content is replaced: the time of the last change, or what the store
    calls its version; empty where the store says neither. Where it is a time, `modified_ns` is the
    same time in ns. Local files alone have an inode, and in `changed_ns` the time when anything of
    them changed.
    """

    url: str = field(repr=False)
    name: str
    size_bytes: int
    version: str = ""
    modified_ns: int = 0
    changed_ns: int = 0
    inode: int = 0

    def is_same(self, other: "FileEntry") -> bool:
        """Whether two looks at one file saw the same content: equal sizes, and versions that are
        equal or that one of the looks does not tell.

        Of inode and `changed_ns` one may differ. A new hard link or other permissions change the
        time alone; a mount in user space (FUSE) may number a file anew, on another host or once
        the kernel forgot it. A file that took the place of another differs in both.
        """
        versions = {file.modified_ns or file.version for file in (self, other)} - {""}
        is_same_inode = self.inode == other.inode or self.changed_ns == other.changed_ns
        return self.size_bytes == other.size_bytes and len(versions) <= 1 and is_same_inode

    def __str__(self) -> str:
        """What tells its content, for messages."""
        version = f"version {self.version or 'unknown'}"
        if self.inode:
            version = f"modified {self.modified_ns} ns after 1970, inode {self.inode}"
        return f"{self.size_bytes:,} bytes, {version}"


def check_unchanged(listed: FileEntry, now: FileEntry | None) -> None:
    """InputError unless a raw file is, after it was read, what it was when it was listed.

    `now` is a second look at it, None where it is gone.
    """
    if now is None or not listed.is_same(now):
        raise InputError(
            f"{redact(listed.url)} changed while it was read: expected {listed}, found "
            f"{now or 'no such file'}; nothing is committed: run it again once the file is whole. "
            f"Write such files under a name that begins with '_' or '.', and rename them when they "
            f"are whole"
        )


def find_file(url: str) -> FileEntry | None:
    """The one file that a URL names, None where there is none."""
    root = _listing_root(url)
    entry = _single(filesystem(url), url, root)
    return None if entry is None else _entry(url, root, entry, posixpath.dirname(root))


def list_files(
    url: str, suffix: str = ".parquet", *, hidden: bool = False, literal: bool = False
) -> list[FileEntry]:
    """The files that a path, a directory (recursively) or a glob names, sorted by name; empty where
    nothing matches.

    Names that begin with `_` or `.` are left out, as Spark and Hive do, unless `hidden`. In a
    directory, also in one that a glob names, only names that end with `suffix` count; other files
    that a glob matches, and a single file, are taken as given. With `literal` the URL is no glob,
    whatever characters are in it.
    """
    fs, root = filesystem(url), _listing_root(url)
    glob = None if literal else _GLOB.search(root)
    if glob:
        base = root[: glob.start()].rpartition("/")[0]
        found = _matches(url, lambda: _with_directories(fs, fs.glob(root, detail=True), suffix))
    elif (entry := _single(fs, url, root)) is not None:
        base, found = posixpath.dirname(root), {root: entry}
        hidden = True
    else:
        base, found = root, _matches(url, lambda: _below(fs, root, suffix))
    entries = (_entry(url, path, entry, base) for path, entry in found.items())
    there = (
        entry for entry in entries if entry is not None and (hidden or not _is_hidden(entry.name))
    )
    return sorted(there, key=lambda entry: entry.name)


def _listing_root(url: str) -> str:
    """What to list, as the file system's own listings name it: object stores leave the scheme
    out.
    """
    path = local_path(url)
    if path is not None:
        return str(path.absolute())
    return SCHEME.sub("", url) if has_object_store(url) else url


def _below(fs: FileSystem, directory: str, suffix: str) -> dict[str, dict[str, Any]]:
    found = fs.find(directory, detail=True).items()
    return {
        path: entry for path, entry in found if entry["type"] == "file" and path.endswith(suffix)
    }


def _with_directories(
    fs: FileSystem, matched: dict[str, dict[str, Any]], suffix: str
) -> dict[str, dict[str, Any]]:
    """What a glob matched, each directory replaced by the files below it."""
    found = {path: entry for path, entry in matched.items() if entry["type"] == "file"}
    for path in matched.keys() - found.keys():
        found |= _below(fs, path, suffix)
    return found


def _single(fs: FileSystem, url: str, root: str) -> dict[str, Any] | None:
    """The listing's entry where the URL is one file."""
    try:
        with as_store_errors(url):
            if not has_object_store(url):
                return cast(dict[str, Any], fs.info(root)) if fs.isfile(root) else None
            return head(url)
    except FileNotFoundError:
        return None


def _matches(
    url: str, listing: Callable[[], dict[str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """A listing; empty for a web server that can only serve files, which cannot be told from one
    that has none.
    """
    try:
        with as_store_errors(url):
            return listing()
    except FileNotFoundError:
        return {}
    except OSError:
        if scheme(url) in ("http", "https"):
            return {}
        raise


def _entry(url: str, path: str, entry: dict[str, Any], base: str) -> FileEntry | None:
    """A file as a listing shows it; None where a local one is gone meanwhile."""
    if scheme(url) == "file":
        return _local_entry(path, _name(path, base))
    full = _with_scheme(url, path)
    version = next((entry[key] for key in _VERSION_KEYS if entry.get(key)), "")
    return FileEntry(
        url=full,
        name=_name(full, _with_scheme(url, base)),
        size_bytes=int(entry["size"]),
        version=str(version),
        modified_ns=_modified_ns(version),
    )


def _modified_ns(version: object) -> int:
    """A file system may tell one time as a number in its listings, and as a date of a single
    file.
    """
    seconds = version.timestamp() if isinstance(version, datetime) else version
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0


def _local_entry(path: str, name: str) -> FileEntry | None:
    """All that it says comes from one look, so that size and version are of the same content."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return FileEntry(
        url=path,
        name=name,
        size_bytes=found.st_size,
        version=str(found.st_mtime),
        modified_ns=found.st_mtime_ns,
        changed_ns=found.st_ctime_ns,
        inode=found.st_ino,
    )


def _name(path: str, base: str) -> str:
    return path.removeprefix(base.rstrip("/")).lstrip("/")


def _with_scheme(url: str, path: str) -> str:
    if SCHEME.match(path):
        return path
    head, rest = without_path(url)
    is_host = (
        not has_object_store(url)
        and head.partition("://")[2]
        and filesystem(url)._strip_protocol(url).rstrip("/") == rest
    )
    return f"{head}/{path.lstrip('/')}" if is_host else f"{scheme(url)}://{path.lstrip('/')}"


def without_path(url: str) -> tuple[str, str]:
    """Scheme, user, host and port of a remote URL, and its path without a slash at the end."""
    head = re.match(r"[^:/]+://[^/]*", url)
    assert head is not None
    return head.group(), url[head.end() :].rstrip("/")


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) and "=" not in part for part in name.split("/"))


def is_directory(url: str) -> bool:
    """Whether a directory is there; in an object store, whether any object lies below it.

    False where that cannot be seen: on a web server, and where the store refuses to list.
    """
    path = local_path(url)
    if path is not None:
        return path.is_dir()
    if scheme(url) in ("http", "https"):
        return False
    fs = filesystem(url)
    try:
        with as_store_errors(url):
            return bool(fs.info(_listing_root(url))["type"] == "directory")
    except (FileNotFoundError, PermissionError):
        return False


def directories(url: str) -> list[str]:
    """What a URL names, or the directory in which its glob begins, and the directories above it,
    innermost first.
    """
    path = local_path(url)
    root = url if path is None else str(path.absolute())
    head = found.group() if (found := SCHEME.match(root)) else ""
    glob = _GLOB.search(root)
    place = PurePosixPath((root[: glob.start()].rpartition("/")[0] if glob else root)[len(head) :])
    return [f"{head}{above}" for above in (place, *place.parents) if str(above) != "."]
