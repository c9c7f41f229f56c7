"""Listings of a path, a directory or a glob on any storage: files with their sizes and versions."""

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, cast

from featstore.errors import InputError
from featstore.files.storage import (
    SCHEME,
    FileSystem,
    absolute,
    filesystem,
    has_object_store,
    head,
    local_path,
    scheme,
    version_of,
)
from featstore.files.store_errors import as_store_errors
from featstore.redaction import redact

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a listing.

    Attributes:
        url: The URL that opens the file.
        name: Its path below the listed directory.
        size_bytes: Its size.
        version: A text that changes when the content is replaced: the modification time or an ETag;
            empty if the store reports neither.
        modified_ns: The modification time in ns since the epoch, if that is the version, else 0.
        changed_ns: For local files the time of the last change of content or metadata (ctime), in
            ns since the epoch, else 0.
        inode: For local files the inode, else 0.
    """

    url: str = field(repr=False)
    name: str
    size_bytes: int
    version: str = ""
    modified_ns: int = 0
    changed_ns: int = 0
    inode: int = 0

    def is_same(self, other: "FileEntry") -> bool:
        """Whether two entries of one file describe the same content.

        Sizes must be equal, and versions too unless one is unknown. One of inode and `changed_ns`
        may differ, but not both, as they do if the file was replaced by another. A new hard link or
        other permissions change only the time. A mount in user space (FUSE) may give a file another
        inode, on another host or after the kernel dropped it from its cache.
        """
        # Times are compared in ns, since `version` is a text of a float in seconds.
        versions = {file.modified_ns or file.version for file in (self, other)} - {""}
        is_same_inode = self.inode == other.inode or self.changed_ns == other.changed_ns
        return self.size_bytes == other.size_bytes and len(versions) <= 1 and is_same_inode

    def __str__(self) -> str:
        """Size and version, for messages."""
        version = f"version {self.version or 'unknown'}"
        if self.inode:
            version = f"modified {self.modified_ns} ns after 1970, inode {self.inode}"
        return f"{self.size_bytes:,} bytes, {version}"


def listing_digest(files: Iterable[FileEntry]) -> str:
    """A digest of listed files, which changes if any of them is added, removed or replaced.

    It is the SHA-256 (hex) over the sorted lines `name, size, version` of the files, tab-separated.
    """
    lines = sorted(f"{file.name}\t{file.size_bytes}\t{file.version}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_unchanged(listed: FileEntry, now: FileEntry | None) -> None:
    """Checks, after a raw file was read, that it is still the file that was listed.

    Args:
        listed: The entry before it was read.
        now: The entry afterwards; None if the file is gone.

    Raises:
        InputError: The file changed.
    """
    if now is None or not listed.is_same(now):
        raise InputError(
            f"{redact(listed.url)} changed while it was read: expected {listed}, found "
            f"{now or 'no such file'}; nothing is committed: run it again once the file is "
            f"complete. Write such files under a name that begins with '_' or '.', and rename them "
            f"when they are complete"
        )


def find_file(url: str) -> FileEntry | None:
    """The entry of a single file; None if there is no such file."""
    root = _listing_root(url)
    entry = _single(filesystem(url), url, root)
    return None if entry is None else _entry(url, root, entry, posixpath.dirname(root))


def list_files(
    url: str,
    suffix: str | tuple[str, ...] = ".parquet",
    *,
    hidden: bool = False,
    literal: bool = False,
) -> list[FileEntry]:
    """Lists the files of a path, of a directory (recursively) or of a glob.

    Args:
        url: A file, a directory or a glob.
        suffix: The end, or ends, of the names to list in directories, including those that a glob
            matches. It does not apply to a single file and to files that a glob matches.
        hidden: Include names that begin with `_` or `.`, which Spark and Hive ignore too.
        literal: Treat the URL as a path even if it has characters of a glob.

    Returns:
        The files, sorted by name. Empty if nothing matches.
    """
    fs, root = filesystem(url), _listing_root(url)
    glob = None if literal else _GLOB.search(root)
    if glob:
        base = root[: glob.start()].rpartition("/")[0]
        infos = _matches(url, lambda: _with_directories(fs, fs.glob(root, detail=True), suffix))
    elif (info := _single(fs, url, root)) is not None:
        base, infos = posixpath.dirname(root), {root: info}
        hidden = True  # a file that is named outright is read whatever its name
    else:
        base, infos = root, _matches(url, lambda: _below(fs, root, suffix))
    entries = (_entry(url, path, info, base) for path, info in infos.items())
    visible = (
        entry for entry in entries if entry is not None and (hidden or not _is_hidden(entry.name))
    )
    return sorted(visible, key=lambda entry: entry.name)


def _listing_root(url: str) -> str:
    """The path to list, in the form of the file system's listings: those of object stores have no
    scheme.
    """
    path = local_path(url)
    if path is not None:
        return str(path.absolute())
    return SCHEME.sub("", url) if has_object_store(url) else url


def _below(
    fs: FileSystem, directory: str, suffix: str | tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    infos = fs.find(directory, detail=True).items()
    return {path: info for path, info in infos if info["type"] == "file" and path.endswith(suffix)}


def _with_directories(
    fs: FileSystem, matched: dict[str, dict[str, Any]], suffix: str | tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """The files that a glob matched, and those below the directories that it matched."""
    infos = {path: info for path, info in matched.items() if info["type"] == "file"}
    for path in matched.keys() - infos.keys():
        infos |= _below(fs, path, suffix)
    return infos


def _single(fs: FileSystem, url: str, root: str) -> dict[str, Any] | None:
    """The file system's information if the URL is a single file, else None."""
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
    """The result of a listing. It is empty for a web server that only serves files, which cannot be
    distinguished from one that has none.
    """
    try:
        with as_store_errors(url):
            return listing()
    except FileNotFoundError:
        return {}
    except OSError:
        # Web servers answer a request for a directory in many ways.
        if scheme(url) in ("http", "https"):
            return {}
        raise


def _entry(url: str, path: str, info: dict[str, Any], base: str) -> FileEntry | None:
    """The entry of a file; None if a local file is gone meanwhile."""
    if scheme(url) == "file":
        return _local_entry(path, _name(path, base))
    full = _with_scheme(url, path)
    version = version_of(info)
    return FileEntry(
        url=full,
        name=_name(full, _with_scheme(url, base)),
        size_bytes=int(info["size"]),
        version=str(version),
        modified_ns=_modified_ns(version),
    )


def _modified_ns(version: object) -> int:
    """The version in ns if it is a time. Some file systems report a number in listings and a date
    for a single file.
    """
    seconds = version.timestamp() if isinstance(version, datetime) else version
    return int(seconds * 1e9) if isinstance(seconds, int | float) else 0


def _local_entry(path: str, name: str) -> FileEntry | None:
    """The entry from a single `stat`, so that size and version are of the same content."""
    try:
        stat = Path(path).stat()
    except FileNotFoundError:
        return None
    return FileEntry(
        url=path,
        name=name,
        size_bytes=stat.st_size,
        version=str(stat.st_mtime),
        modified_ns=stat.st_mtime_ns,
        changed_ns=stat.st_ctime_ns,
        inode=stat.st_ino,
    )


def _name(path: str, base: str) -> str:
    return path.removeprefix(base.rstrip("/")).lstrip("/")


def _with_scheme(url: str, path: str) -> str:
    """The URL of a listed path. File systems that are bound to a host list paths without it."""
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
    """Splits a remote URL into scheme, user, host and port, and its path without a trailing
    slash.
    """
    head = re.match(r"[^:/]+://[^/]*", url)
    assert head is not None
    return head.group(), url[head.end() :].rstrip("/")


def _is_hidden(name: str) -> bool:
    # A directory such as `_key=value` is a partition, as for Spark.
    return any(part.startswith(("_", ".")) and "=" not in part for part in name.split("/"))


def is_directory(url: str) -> bool:
    """Whether the URL is an existing directory; in an object store, whether any object lies below
    it.

    False if that cannot be determined: on a web server, and if the store refuses to list.
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
    """The URL itself, or the directory in which its glob begins, and all directories above,
    innermost first.
    """
    root = absolute(url)
    head = match.group() if (match := SCHEME.match(root)) else ""
    glob = _GLOB.search(root)
    start = PurePosixPath((root[: glob.start()].rpartition("/")[0] if glob else root)[len(head) :])
    return [f"{head}{directory}" for directory in (start, *start.parents) if str(directory) != "."]
