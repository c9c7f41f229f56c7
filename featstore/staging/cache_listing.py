"""The contents of a cache's directory, read from file names alone.

Thousands of files are listed for each one that is staged. With 8,000 files that takes 47 ms of CPU
time, while the directory is locked for all processes of the host (benchmarks/staging_cache.md).
"""

import heapq
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

STAGED, HELD, PART = ".staged", ".held", ".part"
_OURS = re.compile(r"[0-9a-f]{40}\.(?:0|[1-9][0-9]{0,17})\.(?:staged|held|part)")
# Hex digits of a name.
_NAME_LENGTH = 40
# A directory's modification time has the resolution of the kernel's clock tick, at most 10 ms
# (CONFIG_HZ of 100); twice that is safe. Larger values only list again more often.
_TICK_NS = 20_000_000


def number_of(name: str) -> int:
    """The number in a file's name: how many bytes of the budget the file takes."""
    return int(name.split(".")[1])


@dataclass
class CacheListing:
    """A listing of a cache's directory, by file names.

    Names of another form, and what is no regular file, are left out.

    Attributes:
        staged: Files that have a record.
        parts: Downloads in progress, or left behind by a process that died.
        left_over: Other remains of such a process: files without a record, and records without a
            file.
    """

    staged: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path) -> "CacheListing":
        """Lists the directory `root`."""
        with os.scandir(root) as entries:
            names = {
                entry.name
                for entry in entries
                if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            }
        listing = cls()
        for name in names:
            if name.endswith(PART):
                listing.parts.append(name)
            elif name.endswith(STAGED):
                has_record = name[: -len(STAGED)] + HELD in names
                (listing.staged if has_record else listing.left_over).append(name)
            elif name[: -len(HELD)] + STAGED not in names:
                listing.left_over.append(name)
        return listing

    def staged_of(self, name: str) -> Iterator[str]:
        """The staged files that hold all or a part of the file of this name."""
        return (other for other in self.staged if other.startswith(name))


class StagedNames:
    """Which files are staged, looked up without locks.

    The directory is listed again only after it has changed. Several threads may call this: the
    listing is replaced in one assignment.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._seen = root, (-1, frozenset[str]())

    def has(self, name: str) -> bool:
        """Whether all or a part of the file of this name is staged."""
        try:
            changed_at_ns = self._root.stat().st_mtime_ns
            if changed_at_ns == self._seen[0]:
                return name in self._seen[1]
            others = os.listdir(self._root)  # noqa: PTH208  no object for each of thousands
            names = frozenset(other[:_NAME_LENGTH] for other in others if other.endswith(STAGED))
        except FileNotFoundError:
            return False
        # A change within the same clock tick would leave the modification time as it is: such a
        # listing is used once, and not kept.
        is_settled = time.time_ns() - changed_at_ns > _TICK_NS
        self._seen = (changed_at_ns if is_settled else -1), names
        return name in names


class LastUses:
    """When files were last used, from their modification times.

    Earlier readings are kept, because the true time can only be later. Not thread-safe: the cache
    calls it under its lock.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._used_at_ns = root, dict[str, int]()

    def in_order(self, names: list[str]) -> Iterator[str]:
        """Yields the files, the least recently used first.

        Reads the times of new files, and of those at the head of the order. A file that was used
        since its last reading goes back into the heap at its new time.
        """
        self._used_at_ns = {
            name: self._used_at_ns.get(name) or self._read_ns(name) for name in names
        }
        heap = [(used_at_ns, name) for name, used_at_ns in self._used_at_ns.items()]
        heapq.heapify(heap)
        while heap:
            used_at_ns, name = heapq.heappop(heap)
            if (now_ns := self._read_ns(name)) == used_at_ns:
                yield name
            else:
                self._used_at_ns[name] = now_ns
                heapq.heappush(heap, (now_ns, name))

    def _read_ns(self, name: str) -> int:
        """The modification time in ns; 0 if somebody removed the file meanwhile."""
        try:
            return (self._root / name).stat().st_mtime_ns
        except FileNotFoundError:
            return 0
