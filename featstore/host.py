"""The cores, the memory and the open files that this process may use."""

import os
import resource
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


def allow_descriptors(num_wanted: int) -> None:
    """Lets this process, and those that it starts, open so many files more.

    Raises the soft limit (`ulimit -n`) if it is too low, as far as the hard limit allows. It is
    kept as low as it can be, since programs that use `select()` fail beyond 1,024 descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = descriptor_limit(soft, hard, num_wanted + len(list(Path("/dev/fd").iterdir())))
    if limit != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def descriptor_limit(soft: int, hard: int, num_needed: int) -> int:
    """The soft limit to set: `num_needed`, but no less than now, and no more than the hard one."""
    if soft == resource.RLIM_INFINITY or soft >= num_needed:
        return soft
    return num_needed if hard == resource.RLIM_INFINITY else min(num_needed, hard)


def _memory_limits() -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        if path.exists() and (limit := path.read_text().strip()).isdigit():
            yield int(limit)
