"""CPU seconds and memory of this process and of all that it started, from /proc."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REST_S = 0.5
_AT_REST_CORES = 0.1
_PARENT = 1  # positions after the program's name in /proc/<pid>/stat
_TIMES = slice(
    11, 15
)  # of the process itself and of its children that have ended, each in user mode and in the kernel


def tree_cpu_s() -> dict[int, float]:
    """CPU seconds so far of this process and of each of its living descendants, by process id, with
    those of its children that have ended.
    """
    return {pid: sum(map(int, _stat(pid)[_TIMES])) / _TICKS_PER_S for pid in _tree()}


def spent_s(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds between two results of `tree_cpu_s`.

    Processes that ended in between count for nothing. The system forgets what a Python worker of
    Spark has spent when it ends, because its parent ignores SIGCHLD: a difference of totals would
    subtract all of it from whatever ran meanwhile.
    """
    return sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in after.items())


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
    return max((_peak_bytes(pid) for pid in _tree() if pid != os.getpid()), default=0)


def _tree() -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))):
            children.setdefault(int(stat[_PARENT]), []).append(int(entry.name))
    waiting = [os.getpid()]
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


def _peak_bytes(pid: int) -> int:
    """0 for what is no Python process, or has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "python" not in fields["Name"] or "VmHWM" not in fields:
        return 0
    return int(fields["VmHWM"].split()[0]) * 1024
