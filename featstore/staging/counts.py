"""What a stager has done so far, in numbers."""

import threading
from dataclasses import dataclass, replace


@dataclass(kw_only=True)
class StagingStats:
    """Counts since the stager was made.

    `num_staged`, `staged_bytes`: files published, and what they hold; `num_ranges` of them hold
    ranges only. `fetched_bytes`: what came over the network. `num_hits`: files that were there
    already. `num_direct`: files left to be read in place. `num_waits`, `wait_s`: how often and how
    long the reader found nothing ready.
    """

    num_staged: int = 0
    staged_bytes: int = 0
    fetched_bytes: int = 0
    num_ranges: int = 0
    num_direct: int = 0
    num_hits: int = 0
    num_retries: int = 0
    num_evicted: int = 0
    num_waits: int = 0
    wait_s: float = 0.0


class Counts:
    """Adds up. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = StagingStats()

    def add(self, **more: float) -> None:
        """Adds to the numbers of these names."""
        with self._lock:
            for name, number in more.items():
                setattr(self._stats, name, getattr(self._stats, name) + number)

    def stats(self, num_evicted: int) -> StagingStats:
        """A copy; how much was evicted the cache knows."""
        with self._lock:
            return replace(self._stats, num_evicted=num_evicted)
