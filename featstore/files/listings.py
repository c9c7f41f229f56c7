"""Listings of a path, a directory or a glob on any storage: files with their sizes and versions."""

import errno
import hashlib
import logging
import os
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath

from featstore.base.errors import ChangedInputError, StoreError
from featstore.base.redaction import redact
from featstore.files.looks import ABSENT
from featstore.files.storage import (
    SCHEME,
    absolute,
    filesystem,
    has_object_store,
    head,
    scheme,
    version_of,
)
from featstore.files.table_marks import MARKS, check_no_table
from featstore.files.walking import (
    MAGIC,
    Item,
    LocalTree,
    Tree,
    Wanted,
    gone,
    matches,
    root_of,
    tree_of,
)

# The ends of the names of Parquet files, whatever the case.
PARQUET = (".parquet", ".parq", ".pq")
_NUM_SHOWN = 3  # of files that are left out
_LOG = logging.getLogger(__name__)


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
        # Azure's listings give ETags without quotes.
        versions = {f.modified_ns or f.version.strip('"') for f in (self, other)} - {""}
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
        ChangedInputError: The file changed.
    """
    if now is None or not listed.is_same(now):
        raise ChangedInputError(
            f"{redact(listed.url)} changed while it was read: expected {listed}, found "
            f"{now or 'no such file'}; nothing is committed: run it again once the file is "
            f"complete. Write such files under a name that begins with '_' or '.', and rename them "
            f"when they are complete"
        )


def find_file(url: str) -> FileEntry | None:
    """The entry of a single file; None if there is no such file."""
    root = root_of(url)
    item = _single(tree_of(url, Wanted()), url, root)
    return None if item is None else _entry(url, item, posixpath.dirname(root))


def list_files(
    url: str,
    suffix: str | tuple[str, ...] = PARQUET,
    *,
    looks_above: bool = True,
) -> list[FileEntry]:
    """Lists the files of a path, of a directory (recursively) or of a glob. Names that begin with
    `_` or `.` are left out, as Spark and Hive do.

    Links are followed. Files in directories that have other names are left out, and so are links
    that lead in a circle or to what is listed anyway; if others are found, a warning names some and
    counts them.

    Args:
        url: A file, a directory or a glob.
        suffix: The end, or ends, of the names to list in directories, including those that a glob
            matches, in lower case. It does not apply to a single file and to files that a glob
            matches.
        looks_above: Look for marks of table formats also at the place and above it, and not only
            in what is listed. In a store that takes a request for each directory.

    Returns:
        The files, sorted by name. Empty if nothing matches.

    Raises:
        TableFormatError: The files are those of a table of Delta, Iceberg or another format.
        ChangedInputError: A file or a directory was listed, and is not there.
        StoreError: Something cannot be looked at.
    """
    suffixes = (suffix,) if isinstance(suffix, str) else suffix
    wanted = Wanted(suffixes=suffixes, marks=frozenset(MARKS))
    entries = _listed(url, wanted, literal=False)
    is_local = scheme(url) == "file"
    noted = {path: path if is_local else _with_scheme(url, path) for path in wanted.noted}
    check_no_table(url, directories(url) if looks_above else (), noted)
    if entries and wanted.left_out:
        _LOG.warning(
            "%s: %d files are left out, since their names do not end in %s, or since a link "
            "reaches them twice: %s",
            redact(url),
            len(wanted.left_out),
            " or ".join(suffixes),
            ", ".join(sorted(map(posixpath.basename, wanted.left_out))[:_NUM_SHOWN]),
        )
    return entries


def list_own(url: str, suffix: str = "", *, hidden: bool = True) -> list[FileEntry]:
    """Lists the files of a directory in which featstore itself adds and removes files, such as a
    table's or that of its log.

    Links are left out, and so is a file that is gone by the time it is looked at.

    Args:
        url: The directory.
        suffix: The end of the names to list.
        hidden: Include names that begin with `_` or `.`.

    Returns:
        The files, sorted by name. Empty if there is no directory.

    Raises:
        StoreError: Something cannot be looked at.
    """
    wanted = Wanted(suffixes=(suffix,), hidden=hidden, is_own=True)
    return _listed(url, wanted, literal=True)


def _listed(url: str, wanted: Wanted, *, literal: bool) -> list[FileEntry]:
    tree, root = tree_of(url, wanted), root_of(url)
    glob = None if literal else MAGIC.search(root)
    if glob:
        base = root[: glob.start()].rpartition("/")[0]
        items = _found(url, lambda: _below_matches(tree, base, root[len(base) :]), is_glob=True)
    elif (item := _single(tree, url, root)) is not None:
        base, items = posixpath.dirname(root), {root: item}
    else:
        base, items = root, _found(url, lambda: {item.path: item for item in tree.files(root)})
    if isinstance(tree, LocalTree) and tree.has_links:
        items = _once(items, wanted.left_out)
    entries = (_entry(url, item, base) for item in items.values())
    return sorted(entries, key=lambda entry: entry.name)


def _once(items: dict[str, Item], left_out: list[str]) -> dict[str, Item]:
    """The local files without those that a link reaches which are listed without it, too."""
    seen, kept = set[tuple[int, int]](), dict[str, Item]()
    for path in sorted(items, key=lambda path: (os.path.realpath(path) != path, path)):
        info = items[path].info
        assert isinstance(info, os.stat_result)
        if os.path.realpath(path) == path or (info.st_dev, info.st_ino) not in seen:
            kept[path] = items[path]
        else:
            left_out.append(path)
        seen.add((info.st_dev, info.st_ino))
    return kept


def _below_matches(tree: Tree, base: str, pattern: str) -> dict[str, Item]:
    """The files that a glob matches, and those below the directories that it matches, by path."""
    found = dict[str, Item]()
    for item in matches(tree, base or "/", pattern.strip("/").split("/")):
        try:
            below = (item,) if item.info is not None else tree.files(item.path)
            found |= {item.path: item for item in below}
        except ABSENT:
            raise gone(item.path) from None
    return found


def _single(tree: Tree, url: str, root: str) -> Item | None:
    """The file at the URL; None if it is none."""
    if has_object_store(url):
        try:
            return Item(root, head(url))
        except FileNotFoundError:
            return None
    item = tree.item(root)
    return None if item is None or item.info is None else item


def _found(
    url: str, listing: Callable[[], dict[str, Item]], *, is_glob: bool = False
) -> dict[str, Item]:
    """The result of a listing. It is empty if the place is not there, and for a web server that
    only serves files, which cannot be distinguished from one that has none.
    """
    try:
        return listing()
    except ABSENT:
        if is_glob:  # What it reaches is there when it is reached.
            raise gone(url) from None
        return {}
    except StoreError as error:
        # Web servers refuse a request for a directory in many ways. One that is in trouble, for
        # which `errno` is EIO, has not answered.
        if scheme(url) in ("http", "https") and error.errno == errno.EINVAL:
            return {}
        raise


def _entry(url: str, item: Item, base: str) -> FileEntry:
    status = item.info
    if isinstance(status, os.stat_result):
        return FileEntry(
            url=item.path,
            name=_name(item.path, base),
            size_bytes=status.st_size,
            version=str(status.st_mtime),
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns,
            inode=status.st_ino,
        )
    assert status is not None, item.path
    full, version = _with_scheme(url, item.path), version_of(status)
    # Some file systems report a number in listings and a date for a single file.
    time_s = version.timestamp() if isinstance(version, datetime) else version
    return FileEntry(
        url=full,
        name=_name(full, _with_scheme(url, base)),
        size_bytes=int(status["size"]),
        version=str(version),
        modified_ns=int(time_s * 1e9) if isinstance(time_s, int | float) else 0,
    )


def _name(path: str, base: str) -> str:
    return path.removeprefix(base.rstrip("/")).lstrip("/")


def _with_scheme(url: str, path: str) -> str:
    """The URL of a listed path. File systems that are bound to a host list paths without it."""
    if SCHEME.match(path):
        return path
    match = re.match(r"[^:/]+://[^/]*", url)
    assert match is not None
    head, rest = match.group(), url[match.end() :].rstrip("/")
    is_host = (
        not has_object_store(url)
        and head.partition("://")[2]
        and filesystem(url)._strip_protocol(url).rstrip("/") == rest
    )
    return f"{head}/{path.lstrip('/')}" if is_host else f"{scheme(url)}://{path.lstrip('/')}"


def directories(url: str) -> list[str]:
    """The URL itself, or the directory in which its glob begins, and all directories above,
    innermost first.
    """
    root = absolute(url)
    head = match.group() if (match := SCHEME.match(root)) else ""
    glob = MAGIC.search(root)
    start = PurePosixPath((root[: glob.start()].rpartition("/")[0] if glob else root)[len(head) :])
    return [f"{head}{directory}" for directory in (start, *start.parents) if str(directory) != "."]
