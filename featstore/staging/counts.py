"""The metrics of a stager."""

import threading
from dataclasses import dataclass, replace


@dataclass(kw_only=True)
class StagingStats:
    """Counts since the stager was made.

    Attributes:
        num_staged: Files that were published in the cache.
        staged_bytes: Bytes that those hold.
        fetched_bytes: Bytes that came over the network.
        num_ranges: Published files that hold ranges only.
        num_direct: Files left to their reader, since they are gone or damaged at the store.
        num_hits: Files that were in the cache already.
        num_retries: Attempts after a failed one.
        num_evicted: Files that the cache evicted to make room.
        num_waits: How often the reader found no file ready.
        wait_s: For how long it waited then, in seconds.
        room_wait_s: For how long files waited for room in the budget, in seconds of all threads.
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
    room_wait_s: float = 0.0


class Counts:
    """Adds up a `StagingStats`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = StagingStats()

    def add(self, **more: float) -> None:
        """Adds to the fields of these names."""
        with self._lock:
            for name, number in more.items():
                setattr(self._stats, name, getattr(self._stats, name) + number)

    def stats(self, num_evicted: int) -> StagingStats:
        """A copy of the counts, with `num_evicted` as the cache counts it."""
        with self._lock:
            return replace(self._stats, num_evicted=num_evicted)
