"""What a loader has done so far, in numbers."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts and seconds by name. Each name has one writing thread, so no lock is needed."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def to_dict(self) -> dict[str, int | float]:
        zeros = dict.fromkeys(("rows", "batches", "epochs", "null_labels_dropped", "null_labels_filled", "rows_filtered"), 0)
        return {**zeros, **self.counts, "wait_s": 0.0, "decode_s": 0.0, **self.seconds}
