"""What lies in a cache's directory, told by names alone: thousands of files are listed for each one
that is staged.
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
_HEAD, _TICK_NS = 40, 20_000_000


def number_of(name: str) -> int:
    """The number in a file's name: what it takes of the budget."""
    return int(name.split(".")[1])


@dataclass
class CacheListing:
    """One look at a directory, by file names. `staged`: files that have a record; `parts`: files
    under way, or left so by a process that died; `left_over`: other remains of one. What is not
    named as ours, or is no regular file, is not there."""

    staged: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path) -> "CacheListing":
        with os.scandir(root) as entries:
            names = {
                entry.name
                for entry in entries
                if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            }
        found = cls()
        for name in names:
            if name.endswith(PART):
                found.parts.append(name)
            elif name.endswith(STAGED):
                has_record = name[: -len(STAGED)] + HELD in names
                (found.staged if has_record else found.left_over).append(name)
            elif name[: -len(HELD)] + STAGED not in names:
                found.left_over.append(name)
        return found

    def staged_of(self, name: str) -> Iterator[str]:
        """The staged files that hold the file of this name, or some of it."""
        return (other for other in self.staged if other.startswith(name))


class StagedNames:
    """Which files are staged, looked up without locks, and anew only where the directory has
    changed since.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._seen = root, (-1, frozenset[str]())

    def has(self, name: str) -> bool:
        """Whether the file of this name, or some of it, is staged."""
        try:
            changed_at_ns = self._root.stat().st_mtime_ns
            if changed_at_ns == self._seen[0]:
                return name in self._seen[1]
            others = os.listdir(self._root)  # noqa: PTH208  no object for each of thousands
            names = frozenset(other[:_HEAD] for other in others if other.endswith(STAGED))
        except FileNotFoundError:
            return False
        # The clock of files is coarse: what changes again within its tick cannot be told from what
        # was listed.
        is_settled = time.time_ns() - changed_at_ns > _TICK_NS
        self._seen = (changed_at_ns if is_settled else -1), names
        return name in names


class LastUses:
    """When files were last used, as their modification times say. What was seen of them is kept: it
    can only be later now.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._used_at_ns = root, dict[str, int]()

    def in_order(self, names: list[str]) -> Iterator[str]:
        """These files, the least recently used first. Only those are looked at whose turn it is, or
        that are new.
        """
        self._used_at_ns = {name: self._used_at_ns.get(name) or self._look(name) for name in names}
        turns = [(used_at_ns, name) for name, used_at_ns in self._used_at_ns.items()]
        heapq.heapify(turns)
        while turns:
            used_at_ns, name = heapq.heappop(turns)
            if (now_ns := self._look(name)) == used_at_ns:
                yield name
            else:
                self._used_at_ns[name] = now_ns
                heapq.heappush(turns, (now_ns, name))

    def _look(self, name: str) -> int:
        """0 for a file that somebody removed meanwhile."""
        try:
            return (self._root / name).stat().st_mtime_ns
        except FileNotFoundError:
            return 0
