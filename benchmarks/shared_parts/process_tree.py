"""CPU seconds and memory of a process and of all that it started, from /proc."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REST_S = 0.5
_AT_REST_CORES = 0.1
_PARENT = 1  # positions after the program's name in /proc/<pid>/stat
# Of the process itself, and of its children that have ended: in user mode, and in the kernel.
_OWN, _ENDED = slice(11, 13), slice(13, 15)


@dataclass(frozen=True, kw_only=True)
class ProcessTimes:
    """CPU seconds of one process so far.

    Attributes:
        parent: The id of its parent.
        own_s: Its own.
        children_s: Those of its children that have ended and that it has waited for.
    """

    parent: int
    own_s: float
    children_s: float


def tree_cpu_s() -> dict[int, ProcessTimes]:
    """The CPU seconds so far of this process and of each of its living descendants, by id."""
    found = {}
    for pid in _tree():
        if stat := _stat(pid):
            own, ended = (sum(map(int, stat[part])) / _TICKS_PER_S for part in (_OWN, _ENDED))
            found[pid] = ProcessTimes(parent=int(stat[_PARENT]), own_s=own, children_s=ended)
    return found


def spent_s(before: dict[int, ProcessTimes], after: dict[int, ProcessTimes]) -> float:
    """CPU seconds between two results of `tree_cpu_s`.

    When a process ends, its parent gets all that it has ever spent, so what it had spent before is
    subtracted. A parent that ignores SIGCHLD, as that of Spark's Python workers does, gets nothing,
    and what such a process spent in between is not known.
    """
    none = ProcessTimes(parent=0, own_s=0.0, children_s=0.0)
    total = 0.0
    got = dict[int, float]()  # by process: what children that have ended gave it
    for pid, times in after.items():
        earlier = before.get(pid, none)
        got[pid] = times.children_s - earlier.children_s
        total += times.own_s - earlier.own_s + got[pid]
    for pid, times in before.items():
        past_s = times.own_s + times.children_s
        if pid not in after and got.get(times.parent, 0.0) >= past_s:
            got[times.parent] -= past_s
            total -= past_s
    return total


def settle(limit_s: float = 60.0) -> None:
    """Waits until the tree does next to nothing any more: what a job leaves behind (code being
    compiled, garbage) is its own.

    TimeoutError where it does not come to rest.
    """
    deadline = time.monotonic() + limit_s
    before = tree_cpu_s()
    while time.monotonic() < deadline:
        time.sleep(_REST_S)
        now = tree_cpu_s()
        if spent_s(before, now) < _AT_REST_CORES * _REST_S:
            return
        before = now
    raise TimeoutError(
        f"expected the processes to come to rest within {limit_s} s, found them at work"
    )


def peak_worker_bytes() -> int:
    """The largest peak of resident memory among the Python processes below this one."""
    return max((_peak_bytes(pid, "python") for pid in _tree() if pid != os.getpid()), default=0)


def peak_bytes() -> int:
    """The largest peak of resident memory among this process and those below it."""
    return max(map(_peak_bytes, _tree()))


def tree_pss_bytes(pid: int) -> int:
    """The memory of a process and of those below it, what they share counted once (PSS)."""
    return sum(map(pss_bytes, _tree(pid)))


def pss_bytes(pid: int) -> int:
    """The memory of a process, with its part of what it shares; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(of.split()[1]) * 1024 for of in lines if of.startswith("Pss:")), 0)


def _tree(root: int | None = None) -> Iterator[int]:
    """The ids of a process, of this one if none is said, and of those below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))):
            children.setdefault(int(stat[_PARENT]), []).append(int(entry.name))
    waiting = [os.getpid() if root is None else root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        yield pid


def _stat(pid: int) -> list[str]:
    """The fields after the program's name; none where the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _peak_bytes(pid: int, name: str = "") -> int:
    """0 for a program without this in its name, and for what has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if name not in fields["Name"] or "VmHWM" not in fields:
        return 0
    return int(fields["VmHWM"].split()[0]) * 1024
