"""What of its host's cores and memory a process takes, where several processes of a job read."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from featstore.loader.run.worker import LoaderWorker

# One process takes this much, and all of a host together at most a quarter of its memory. Chosen,
# not measured.
_BUDGET_BYTES, _SHARE = 512_000_000, 4
# Where Linux says how much memory a container may use: control groups of version 2 and 1.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class HostShare:
    """What one process takes.

    Attributes:
        num_threads: How many threads decode a row group.
        budget_bytes: The memory budget.
    """

    num_threads: int
    budget_bytes: int

    @classmethod
    def of(cls, worker: LoaderWorker) -> "HostShare":
        """What a process takes unless it is told otherwise.

        The cores that it may run on are divided among the ranks of its host; a worker of a
        DataLoader takes one, as torch computes on one core there. The memory is 512 MB, or less
        where all workers of the host would take more than a quarter of what they may use.
        """
        cores = len(os.sched_getaffinity(0)) // worker.ranks_on_host
        return cls(
            num_threads=1 if worker.is_dataloader else max(1, cores),
            budget_bytes=min(_BUDGET_BYTES, usable_memory_bytes() // (_SHARE * worker.num_on_host)),
        )


def usable_memory_bytes() -> int:
    """The memory of this machine, or of the container if it may use less."""
    return min(_memory_limits())


def _memory_limits() -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        if path.exists() and (limit := path.read_text().strip()).isdigit():
            yield int(limit)
