"""Walks directories of any storage. A directory that cannot be read is an error that names it, and
so is a file that was named and is gone: neither makes a listing shorter.

fsspec's `find`, `walk` and `glob` leave out what they fail to look at, so only its `ls` and `info`
are used, of one place each.
"""

import errno
import fnmatch
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from featstore.base.errors import ChangedInputError
from featstore.base.redaction import redact
from featstore.files.looks import ABSENT, looking, status_of
from featstore.files.storage import (
    SCHEME,
    filesystem,
    has_object_store,
    local_path,
)
from featstore.files.store_errors import as_store_errors

MAGIC = re.compile(r"[*?\[]")
# Before a directory is listed again that named a file which is gone: a file that is being replaced,
# or a mount that is late (NFS, FUSE), is there again in less.
_PAUSES_S = (0.0, 0.05, 0.2)
# Whether a file of this name is looked at.
Takes: TypeAlias = Callable[[str], bool]
# What a store tells of a file: the system's status of a local one, a mapping of any other.
Info: TypeAlias = os.stat_result | Mapping[str, Any]


class Item(NamedTuple):
    """A file or a directory.

    Attributes:
        path: Its path in the store's form, which names no scheme for object stores.
        info: What the store tells of a file; None for a directory.
    """

    path: str
    info: Info | None

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


def _may_be_data(name: str) -> bool:
    """Whether a directory of data may have the name: none has an ending, but in a partition."""
    return "." not in name or "=" in name


def is_hidden(name: str) -> bool:
    """Whether Spark and Hive ignore a file or directory of this name."""
    # A directory such as `_key=value` is a partition, as for Spark.
    return name.startswith(("_", ".")) and "=" not in name


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a walk looks for.

    Attributes:
        suffixes: The ends of the names of files, in lower case.
        hidden: Also names that begin with `_` or `.`, and what is in such directories.
        is_own: Whether the place is one where featstore itself adds and removes files. Links are
            then not followed, and a file that is gone when it is looked at is left out; otherwise
            that is an error.
        marks: Names to note where one is seen, entered or not.
        left_out: Gets the paths of files that have other names, and of links that lead nowhere or
            in a circle.
        noted: Gets the paths of what has the names of `marks`.
    """

    suffixes: tuple[str, ...] = ("",)
    hidden: bool = False
    is_own: bool = False
    marks: frozenset[str] = frozenset()
    left_out: list[str] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)

    def enters(self, name: str) -> bool:
        """Whether a directory, or any file, of this name is looked at."""
        return self.hidden or not is_hidden(name)

    def takes(self, path: str) -> bool:
        """Whether a file has one of the names. It is left out otherwise."""
        if path.lower().endswith(self.suffixes):
            return True
        self.left_out.append(path)
        return False


class Tree:
    """The directories of one store.

    Args:
        url: Any URL in the store.
        wanted: What to look for.
    """

    def __init__(self, url: str, wanted: Wanted) -> None:
        self._url, self._wanted = url, wanted

    def item(self, path: str) -> Item | None:
        """What is at a path; None if there is nothing."""
        raise NotImplementedError

    def items(self, directory: str, takes: Takes, enters: Takes = _may_be_data) -> list[Item]:
        """What is in a directory: all directories, and files of the names that are taken. `enters`
        tells which names matter if a link of this name leads nowhere.

        Raises:
            FileNotFoundError: There is no such directory.
            ChangedInputError: A file that is taken was named, and is gone.
            StoreError: It cannot be read.
        """
        raise NotImplementedError

    def files(self, directory: str, above: frozenset[object] = frozenset()) -> Iterator[Item]:
        """Yields the files in a directory and in those below it. `above` are the directories
        through which a walk came here, see `within`.

        Raises:
            FileNotFoundError: There is no such directory.
            ChangedInputError: A directory was named by the one above it, and is gone.
            StoreError: One of them cannot be read.
        """
        if (inside := self.within(directory, above)) is None:
            return
        for item in self.items(directory, self._wanted.takes):
            if item.info is not None:
                yield item
                continue
            try:
                yield from self.files(item.path, inside)
            except ABSENT:
                if not self._wanted.is_own:
                    raise gone(item.path) from None

    def within(self, directory: str, above: frozenset[object]) -> frozenset[object] | None:
        """The identities of a directory and of those above it; None if it is one of those, to which
        a link has led back.
        """
        identity = self._identity(directory)
        if identity in above:
            self._wanted.left_out.append(directory)
            return None
        return above | {identity}

    def _identity(self, directory: str) -> object:
        """What a directory has that is the same by whatever links it was reached."""
        return directory


class LocalTree(Tree):
    """The directories of this machine.

    Attributes:
        has_links: Whether a link was followed.
    """

    has_links = False

    def item(self, path: str) -> Item | None:
        status = status_of(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            return Item(path, None)
        return None if status is None or not stat.S_ISREG(status.st_mode) else Item(path, status)

    def items(self, directory: str, takes: Takes, enters: Takes = _may_be_data) -> list[Item]:
        lost: set[str] = set()
        for attempt, pause_s in enumerate((0.0, *_PAUSES_S)):
            time.sleep(pause_s)
            found, now_lost = self._scan(directory, takes)
            if self._wanted.is_own and attempt:
                lost &= now_lost  # Others remove and add files; one that stays named is not gone.
            else:
                lost = now_lost | (lost - {item.name for item in found})
            if not lost:
                return found
        for name in sorted(lost):
            if takes(name) or enters(name):
                raise gone(str(Path(directory, name)))
        return found

    def _scan(self, directory: str, takes: Takes) -> tuple[list[Item], set[str]]:
        """What is in a directory, and the names of what is gone when it is looked at."""
        found, lost = list[Item](), set[str]()
        with looking(directory), os.scandir(directory) as entries:
            for entry in entries:
                if entry.name in self._wanted.marks:
                    self._wanted.noted.add(entry.path)
                if not self._wanted.enters(entry.name):
                    continue
                try:
                    item = self._item_of(entry, takes)
                except OSError as error:
                    if not isinstance(error, ABSENT) and error.errno != errno.ELOOP:
                        raise
                    lost.add(entry.name)
                    continue
                if item is not None:
                    found.append(item)
        return found, lost

    def _item_of(self, entry: "os.DirEntry[str]", takes: Takes) -> Item | None:
        follows = not self._wanted.is_own
        self.has_links = self.has_links or (follows and entry.is_symlink())
        if entry.is_dir(follow_symlinks=follows):
            return Item(entry.path, None)
        # Nothing known of the kind: neither, a link that leads nowhere, or gone by now.
        if not entry.is_file(follow_symlinks=follows):
            status = entry.stat(follow_symlinks=follows)
            if stat.S_ISDIR(status.st_mode):
                return Item(entry.path, None)
            if not stat.S_ISREG(status.st_mode):
                return None
        if not takes(entry.name):
            return None
        return Item(entry.path, entry.stat(follow_symlinks=follows))

    def _identity(self, directory: str) -> object:
        if self._wanted.is_own:
            return directory
        with looking(directory):
            status = os.stat(directory)  # noqa: PTH116  as above
        return status.st_dev, status.st_ino


class RemoteTree(Tree):
    """The directories of a store, through its fsspec file system."""

    def __init__(self, url: str, wanted: Wanted) -> None:
        super().__init__(url, wanted)
        self._fs = filesystem(url)

    def item(self, path: str) -> Item | None:
        try:
            with as_store_errors(self._url):
                info = self._fs.info(path)
        except FileNotFoundError:
            return None
        return Item(path, None if info["type"] == "directory" else info)

    def items(self, directory: str, takes: Takes, enters: Takes = _may_be_data) -> list[Item]:
        with as_store_errors(self._url):
            infos = self._fs.ls(directory, detail=True)
        found = []
        for info in infos:
            item = Item(info["name"], None if info["type"] == "directory" else info)
            if item.name in self._wanted.marks:
                self._wanted.noted.add(item.path)
            # Some stores list the directory among what is in it.
            if item.path.rstrip("/") == directory.rstrip("/") or not self._wanted.enters(item.name):
                continue
            if item.info is None or (info["type"] == "file" and takes(item.name)):
                found.append(item)
        return found


def tree_of(url: str, wanted: Wanted) -> Tree:
    """The tree of the URL's store."""
    if local_path(url) is not None:
        return LocalTree(url, wanted)
    return RemoteTree(url, wanted)


def root_of(url: str) -> str:
    """The path of a URL in the form of its tree."""
    path = local_path(url)
    if path is not None:
        return str(path.absolute())
    return SCHEME.sub("", url) if has_object_store(url) else url


def matches(
    tree: Tree,
    directory: str,
    segments: Sequence[str],
    above: frozenset[object] = frozenset(),
    *,
    is_listed: bool = False,
) -> Iterator[Item]:
    """Yields what a glob matches: files of any name, and directories. Some twice if it has `**`.

    Args:
        tree: The store.
        directory: Where the glob begins.
        segments: Its parts: `*`, `?` and `[...]` stay within a name, `**` is any number of
            directories. A name that is written out as a segment matches it, too.
        above: The directories through which `**` came here, see `Tree.within`.
        is_listed: Whether the directory was named by the one above it, so that it must be there.
    """
    head, *rest = segments
    if head == "**":
        yield from _at_any_depth(tree, directory, rest, above, is_listed=is_listed)
    elif not MAGIC.search(head):
        path = f"{directory.rstrip('/')}/{head}"
        if rest:
            yield from matches(tree, path, rest)
        elif (item := tree.item(path)) is not None:
            yield item
    else:
        is_match = partial(_is_match, head)
        for item in _items(tree, directory, is_match, is_match, is_listed=is_listed):
            if is_match(item.name):
                if not rest:
                    yield item
                elif item.info is None:
                    yield from matches(tree, item.path, rest, is_listed=True)


def _is_match(segment: str, name: str) -> bool:
    return name == segment or fnmatch.fnmatchcase(name, segment)


def _at_any_depth(
    tree: Tree,
    directory: str,
    rest: Sequence[str],
    above: frozenset[object],
    *,
    is_listed: bool,
) -> Iterator[Item]:
    while rest[:1] == ["**"]:  # means the same twice
        rest = rest[1:]
    items = _items(tree, directory, lambda _: not rest, _may_be_data, is_listed=is_listed)
    yield from matches(tree, directory, rest) if rest else items
    if items and (inside := tree.within(directory, above)) is not None:
        for item in (item for item in items if item.info is None):
            yield from matches(tree, item.path, ["**", *rest], inside, is_listed=True)


def _items(
    tree: Tree, directory: str, takes: Takes, enters: Takes, *, is_listed: bool
) -> list[Item]:
    try:
        return tree.items(directory, takes, enters)
    except ABSENT:
        if is_listed:
            raise gone(directory) from None
        return []


def gone(path: str) -> ChangedInputError:
    """The error for a file or directory that was listed and is not there."""
    return ChangedInputError(
        f"{redact(path)} changes while it is read: expected what its directory lists, found "
        f"nothing there, or a link that leads nowhere; nothing is left out for it: run it again "
        f"once the files are complete"
    )
