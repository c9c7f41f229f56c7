"""The cores and the memory that this process may use."""

import os
from collections.abc import Iterator
from pathlib import Path

# Where Linux says how much memory a container may use: control groups of version 2 and 1.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def num_cores() -> int:
    """The number of cores that this process may use.

    Where the system does not report that (macOS), the number of cores of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """The memory of this machine, or of the container if it may use less."""
    return min(_memory_limits())


def _memory_limits() -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        if path.exists() and (limit := path.read_text().strip()).isdigit():
            yield int(limit)
