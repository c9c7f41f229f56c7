"""What a loader has done so far, in numbers."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from featstore.loader.verdict import EpochTimes

Item = TypeVar("Item")
_COUNTS = (
    "rows",
    "batches",
    "epochs",
    "null_labels_dropped",
    "null_labels_filled",
    "rows_filtered",
    "row_groups_pruned",
    "row_groups_skipped",
    "row_groups_sliced",
    "negatives_dropped",
)


@dataclass
class Stats:
    """Counts and seconds by name. Each name has one writing thread, so no lock is needed."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    verdict: str = ""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def each(self, name: str, items: Iterator[Item]) -> Iterator[Item]:
        """The items, and the time that each takes to come."""
        while True:
            with self.timed(name):
                item = next(items, None)
            if item is None:
                return
            yield item
            del item

    def times(self, staging_wait_s: float) -> EpochTimes:
        """Where the clocks stand."""
        return EpochTimes(
            total_s=time.perf_counter(),
            data_wait_s=self.seconds["wait_s"],
            decode_s=self.seconds["decode_s"],
            staging_wait_s=staging_wait_s,
        )

    def to_dict(self) -> dict[str, int | float]:
        zeros = dict.fromkeys(_COUNTS, 0)
        return {**zeros, **self.counts, "wait_s": 0.0, "decode_s": 0.0, "assemble_s": 0.0, **self.seconds}
